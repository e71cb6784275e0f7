//! `embedding-service`: serves embeddings, asks for some, and shows both.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

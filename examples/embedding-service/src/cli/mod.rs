//! The command line.
//!
//! Owns which command runs, its runtime, and how it ends: an error is one line that says what to do, and status 1.

mod args;
mod demo;
mod embed;
mod exporter;
mod refused;
mod serve;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

/// What commands fail with.
type Failure = Box<dyn Error + Send + Sync>;

pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let run = async {
        match cli.command {
            None => serve::run(cli.serve).await,
            Some(Command::Serve(args)) => serve::run(*args).await,
            Some(Command::Embed(args)) => embed::run(args).await,
            Some(Command::Demo(args)) => demo::run(args).await,
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

//! The `byway` command. Owns the command line; what it does is in the library.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use byway_cli::doctor;
use clap::{Parser, Subcommand};

/// Tools for byway, which carries gRPC services over RDMA and TCP.
#[derive(Parser)]
#[command(name = "byway", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says whether RDMA is used here, why, and what to do about it.
    ///
    /// Exit status: 0 when RDMA is usable (with PEER: when a channel to it uses it), 1 when not, 2 on bad usage.
    Doctor {
        /// Prints one JSON object instead of text: {summary, checks: [{check, verdict, evidence, remedy}]}.
        #[arg(long)]
        json: bool,
        /// A byway server to ask as well: HOST:PORT.
        #[arg(value_parser = peer_address)]
        peer: Option<String>,
    },
}

/// Checks the form only: what a name stands for is the doctor's to find out.
fn peer_address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("a host and a port are needed, as in 10.0.0.2:50051".into()),
    }
}

fn main() -> ExitCode {
    let Arguments { command: Command::Doctor { json, peer } } = Arguments::parse();
    let report = doctor::run(peer.as_deref());
    let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = if json { report.json() } else { report.text(color) };
    // A reader that has seen enough closes the pipe; the status still tells.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(u8::from(!report.summary.usable))
}

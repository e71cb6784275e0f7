//! Maintenance commands, run as `cargo xtask <command>`.

mod build;
mod guest;
mod outcome;
mod third_party;

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask <command>

  test    runs every test of the workspace, the third-party clients, and the RDMA tests in a guest
  third-party
          calls embedding-service with grpcio and grpcurl (needs python3 with venv, and a network once)
  guest   runs a command in a virtual machine that has a Soft-RoCE device
  bench-verbs
          compares the verbs layer with perftest in one guest
  bench-guest [-- ARGUMENT ...]
          runs the compare bench in a guest, all paths over the address of its RDMA device; arguments are those of
          the bench, `--json FILE` is written here
  endure [--netem SPEC] [-- ARGUMENT ...]
          fails the server of a loaded channel again and again, on two guests; arguments are those of examples/endure
  abi     checks the C layouts and the ibverbs crate (needs cmake, libclang, libibverbs-dev)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("test") => test(args.collect()),
        Some("guest") => guest::command(args.collect()),
        Some("third-party") => outcome::run_all([third_party::run]),
        Some("bench-verbs") => outcome::run_all([guest::jobs::bench_verbs]),
        Some("bench-guest") => outcome::end([guest::jobs::bench_guest(args.collect())]),
        Some("endure") => outcome::end([guest::jobs::endure(args.collect())]),
        Some("abi") => outcome::run_all([guest::jobs::abi]),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs the workspace's tests; further arguments go to `cargo test`. Then what may be missing here: the third-party
/// clients, and last the RDMA tests in the guest, so that the log ends with the count of the NIC suite.
fn test(args: Vec<String>) -> ExitCode {
    match cargo(["test", "--workspace"]).args(args).status() {
        Ok(status) if status.success() => outcome::run_all([third_party::run, guest::jobs::run]),
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cargo could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The cargo that runs this program.
fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

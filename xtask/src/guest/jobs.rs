//! What runs in the guest: the RDMA tests, the checks against other programs, and the comparison with perftest.
//!
//! Owns which programs are built for the guest, and in what order they run. Invariant: whatever keeps a job from the guest
//! is an error, of which only a missing QEMU is excusable. Never lets a skipped test look like a passed one.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::boot::Job;
use super::{GuestError, run as run_job};
use crate::outcome::Outcome;
use crate::{build, cargo};

/// The crate whose tests need a device.
const CRATE: &str = "byway-rdma";

/// Checks the reason that the library gives in every state of a machine without RDMA.
const FALLBACK: &str = include_str!("fallback.sh");

/// Runs the verbs layer and perftest side by side.
const BENCH: &str = include_str!("bench.sh");

/// The checks that need rdma-core's headers, in a workspace of their own.
const ABI_CHECK: &str = "transport-rdma/abi-check";

/// Runs the RDMA tests in the guest. The NIC suite comes last, so the log ends with its count.
pub(crate) fn run() -> Outcome {
    conclude("RDMA tests", rdma_tests())
}

fn rdma_tests() -> Result<u8, GuestError> {
    // Before anything is built, so that a machine without QEMU says so at once.
    super::boot::find_qemu()?;
    let build = |args: &[&str]| build(Path::new("."), &[&["--package", CRATE], args].concat());
    let probe = build(&["--example", "probe"])?;
    let verbs = build(&["--test", "verbs_rxe"])?;
    let suite = build(&["--test", "nic_rxe"])?;
    let byway = self::build(Path::new("."), &["--package", "byway-cli", "--bin", "byway"])?;
    let [probe, verbs, suite, byway] = [probe, verbs, suite, byway].map(|path| path.display().to_string());
    let steps = r#""$1" && bash -c "$0" fallback "$2" "$3" && "$4""#;
    let mut job =
        Job::new(["bash", "-c", steps, FALLBACK, &verbs, &probe, &byway, &suite].map(String::from).to_vec())?;
    job.timeout_seconds = 900;
    run_job(&job)
}

/// Compares the verbs layer with perftest.
pub(crate) fn bench_verbs() -> Outcome {
    conclude("benchmarks", bench())
}

fn bench() -> Result<u8, GuestError> {
    super::boot::find_qemu()?;
    let ours = build(Path::new("."), &["--package", CRATE, "--release", "--example", "perf"])?;
    let ours = ours.display().to_string();
    let mut job = Job::new(["bash", "-c", BENCH, "bench", &ours].map(String::from).to_vec())?;
    job.timeout_seconds = 900;
    run_job(&job)
}

/// Checks our C layouts against `ibverbs-sys` and exchanges messages with the `ibverbs` crate.
pub(crate) fn abi() -> Outcome {
    conclude("ABI checks", abi_checks())
}

fn abi_checks() -> Result<u8, GuestError> {
    let folder = Path::new(ABI_CHECK);
    let layouts = build(folder, &["--bin", "layouts"])?;
    match Command::new(layouts).status() {
        Ok(status) if status.success() => {}
        other => {
            return Err(GuestError::Prepare(format!("the layouts differ: {other:?}")));
        }
    }
    super::boot::find_qemu()?;
    let exchange = build(folder, &["--bin", "exchange"])?;
    run_job(&Job::new(vec![exchange.display().to_string()])?)
}

/// Builds one executable and returns its path.
fn build(folder: &Path, args: &[&str]) -> Result<PathBuf, GuestError> {
    let is_test = args.contains(&"--test");
    let mut command = if is_test { cargo(["test", "--no-run"]) } else { cargo(["build"]) };
    // perftest is one C program, optimised as a whole; so is what it is compared with.
    if args.contains(&"--release") {
        command.env("CARGO_PROFILE_RELEASE_LTO", "fat");
        command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    }
    Ok(build::executable(command.current_dir(folder).args(args))?)
}

fn conclude(what: &str, result: Result<u8, GuestError>) -> Outcome {
    match result {
        Ok(status) => Outcome::of(status),
        // Only a missing QEMU is a state that a developer's machine may be in.
        Err(error) => Outcome::did_not_run(what, &error, matches!(error, GuestError::NoQemu)),
    }
}

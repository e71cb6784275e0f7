//! What runs in the guest: the RDMA tests, the checks against other programs, the comparison with perftest, the compare
//! bench, and failures under load.
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
    let conformance = build(Path::new("."), &["--package", "byway", "--test", "conformance"])?;
    let build = |args: &[&str]| build(Path::new("."), &[&["--package", CRATE], args].concat());
    let probe = build(&["--example", "probe"])?;
    let verbs = build(&["--test", "verbs_rxe"])?;
    let suite = build(&["--test", "nic_rxe"])?;
    let byway = self::build(Path::new("."), &["--package", "byway-cli", "--bin", "byway"])?;
    let first_call = self::build(Path::new("."), &["--package", "byway", "--example", "first_call"])?;
    let [probe, verbs, suite, byway, conformance, first_call] =
        [probe, verbs, suite, byway, conformance, first_call].map(|path| path.display().to_string());
    let steps = r#""$1" && bash -c "$0" fallback "$2" "$3" "$6" && "$5" rdma_device && "$4""#;
    let command = ["bash", "-c", steps, FALLBACK, &verbs, &probe, &byway, &suite, &conformance, &first_call];
    let mut job = Job::new(command.map(String::from).to_vec())?;
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

/// Runs the compare bench over the address of the guest's device, so that every path has the same.
pub(crate) fn bench_guest(args: Vec<String>) -> Outcome {
    conclude("compare bench", compare(args))
}

fn compare(mut args: Vec<String>) -> Result<u8, GuestError> {
    super::boot::find_qemu()?;
    if args.first().is_some_and(|arg| arg == "--") {
        args.remove(0);
    }
    let json = take_value(&mut args, "--json")?;
    if !args.iter().any(|arg| arg == "--rounds") {
        // Enough for medians: a round of all paths takes more than a minute.
        args.extend(["--rounds", "3"].map(String::from));
    }
    let mut command = cargo(["bench", "--no-run", "--bench", "compare"]);
    let bench = build::executable(&mut command)?;
    // Copied, since each server is this program again, and the host's files are far away.
    let steps = r#"cp "$0" /tmp/compare && /tmp/compare --bench --pin --address 10.99.0.1 --json "$OUT/compare.json" "$@""#;
    let mut words = ["bash", "-c", steps, &bench.display().to_string()].map(String::from).to_vec();
    words.append(&mut args);
    let mut job = Job::new(words)?;
    job.timeout_seconds = 900;
    let out = bench.with_file_name("compare-in-guest");
    job.out = Some(out.clone());
    let status = run_job(&job)?;
    if let (0, Some(file)) = (status, json) {
        std::fs::copy(out.join("compare.json"), file)?;
    }
    Ok(status)
}

/// Fails the server of a loaded channel again and again, on two guests.
pub(crate) fn endure(args: Vec<String>) -> Outcome {
    conclude("failures under load", endurance(args))
}

fn endurance(mut args: Vec<String>) -> Result<u8, GuestError> {
    super::boot::find_qemu()?;
    let netem = take_value(&mut args, "--netem")?;
    if args.first().is_some_and(|arg| arg == "--") {
        args.remove(0);
    }
    let mut command = cargo(["build", "--release", "--package", "byway", "--example", "endure"]);
    let program = build::executable(&mut command)?;
    // Copied, since each server is this program again, and the host's files are far away.
    let steps = r#"cp "$0" /tmp/endure && case $HOST in
        1) exec /tmp/endure keep 10.99.0.1:7000 "$@" ;;
        2) exec /tmp/endure call 10.99.0.1:7000 "$@" ;;
    esac"#;
    let mut words = ["bash", "-c", steps, &program.display().to_string()].map(String::from).to_vec();
    words.append(&mut args);
    let mut job = Job::new(words)?;
    (job.hosts, job.netem, job.timeout_seconds) = (2, netem, 1800);
    run_job(&job)
}

/// Removes an option and its value, which is returned.
fn take_value(args: &mut Vec<String>, option: &str) -> Result<Option<String>, GuestError> {
    let Some(at) = args.iter().position(|arg| arg == option) else { return Ok(None) };
    if at + 1 == args.len() {
        return Err(GuestError::Prepare(format!("{option} needs a value")));
    }
    args.remove(at);
    Ok(Some(args.remove(at)))
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

#[cfg(test)]
mod tests {
    use super::take_value;

    #[test]
    fn an_option_is_taken_with_its_value_and_the_rest_stays() {
        let mut args = ["--quick", "--json", "a b", "--only", "tcp"].map(String::from).to_vec();
        assert_eq!(take_value(&mut args, "--json").expect("there is a value").as_deref(), Some("a b"));
        assert_eq!(args, ["--quick", "--only", "tcp"]);
        assert_eq!(take_value(&mut args, "--json").expect("there is no such option"), None);
        let mut args = vec!["--json".to_owned()];
        assert!(take_value(&mut args, "--json").is_err());
    }
}

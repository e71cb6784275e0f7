//! Runs a command in a virtual machine that has a Soft-RoCE device, so that real kernel verbs are exercised on a
//! machine without an RDMA NIC.
//!
//! Owns the command line; `image` builds what the guest boots, `boot` runs it, `jobs` says what runs in it.
//! Invariant: the guest sees this machine's file system read-only, with the RDMA packages laid over it, and its writes
//! stay in its memory; nothing is installed on the host, and no privilege is needed. Never outlives its time limit.

mod boot;
mod image;
pub(crate) mod jobs;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fmt, io};

use boot::Job;

const USAGE: &str = "usage: cargo xtask guest [OPTION ...] -- COMMAND [ARGUMENT ...]

The command runs in this directory. Its exit status is ours; 124 on a time-out.
One guest has the address 10.99.0.1. Of two guests, the second is 10.99.0.2; both run the command,
with HOST=1 or HOST=2, and the second one's end ends both. The device is rxe0 on the interface rdma0.

  --hosts 1|2         how many guests (1)
  --netem SPEC        tc netem parameters for rdma0, for example 'delay 1ms loss 0.1%'
  --timeout SECONDS   kills the guests after that time (300)
  --memory MIB        memory of each guest (1024)
  --out DIR           where files come back to that the command writes below $OUT
  --no-device         starts without rxe0 and without its interface";

/// Why no guest could be run.
#[derive(Debug)]
pub(crate) enum GuestError {
    /// QEMU is not installed.
    NoQemu,
    /// Something that the guest needs could not be made.
    Prepare(String),
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQemu => write!(f, "{} is not installed (Debian: qemu-system-x86)", boot::QEMU),
            Self::Prepare(text) => f.write_str(text),
        }
    }
}

impl From<io::Error> for GuestError {
    fn from(error: io::Error) -> Self {
        Self::Prepare(error.to_string())
    }
}

/// `cargo xtask guest`.
pub(crate) fn command(args: Vec<String>) -> ExitCode {
    let job = match parse(args) {
        Ok(job) => job,
        Err(text) => {
            eprintln!("xtask: {text}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&job) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: no guest: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Boots the guest, runs the job and returns its exit status.
fn run(job: &Job) -> Result<u8, GuestError> {
    boot::find_qemu()?;
    let image = image::prepare()?;
    boot::run(&image, job)
}

fn parse(args: Vec<String>) -> Result<Job, String> {
    let mut args = args.into_iter();
    let mut job = Job::new(Vec::new()).map_err(|error| error.to_string())?;
    while let Some(option) = args.next() {
        if option == "--" {
            job.command = args.collect();
            break;
        }
        if option == "--no-device" {
            job.device = false;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("{option} needs a number, not {value}"));
        match option.as_str() {
            "--hosts" => job.hosts = number()?,
            "--netem" => job.netem = Some(value),
            "--timeout" => job.timeout_seconds = number()?,
            "--memory" => job.memory_mib = number()?,
            "--out" => job.out = Some(env::current_dir().unwrap_or_default().join(PathBuf::from(value))),
            _ => return Err(format!("unknown option {option}")),
        }
    }
    match (job.command.is_empty(), job.hosts) {
        (true, _) => Err("there is no command".into()),
        (_, 1 | 2) => Ok(job),
        (_, n) => Err(format!("{n} guests are not supported")),
    }
}

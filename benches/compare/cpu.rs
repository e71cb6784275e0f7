//! Time that processes spent on a processor, and on which.
//!
//! All threads, user and kernel, from `/proc/PID/task/*/schedstat`. A thread that has ended is not counted, so nothing
//! that is measured may end threads.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where the server and the client run if they are kept apart.
const SERVER: &str = "0";
const CLIENT: &str = "1";

/// Keeps this process, which is the client, on a processor of its own.
///
/// # Errors
/// There is no `taskset`, or no second processor.
pub(crate) fn pin_this_process() -> io::Result<()> {
    let mut taskset = Command::new("taskset");
    taskset.args(["--cpu-list", "--pid", CLIENT, &std::process::id().to_string()]).stdout(Stdio::null());
    match taskset.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("this process cannot be kept on a processor of its own")),
    }
}

/// A command that runs `program` on the server's processor, in the process that is started.
pub(crate) fn pinned(program: &Path) -> Command {
    let mut taskset = Command::new("taskset");
    taskset.args(["--cpu-list", SERVER]).arg(program);
    taskset
}

pub(crate) fn of_this_process() -> io::Result<Duration> {
    of_process(std::process::id())
}

/// # Errors
/// The process is gone, or the system is not Linux.
pub(crate) fn of_process(pid: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        // The first of three numbers: nanoseconds on a processor.
        let on_cpu = text.split_whitespace().next().and_then(|number| number.parse().ok());
        let on_cpu = on_cpu.ok_or_else(|| io::Error::other(format!("not a schedstat: \"{text}\"")))?;
        total += Duration::from_nanos(on_cpu);
    }
    Ok(total)
}

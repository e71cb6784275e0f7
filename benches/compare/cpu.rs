//! Time that processes spent on a processor.
//!
//! All threads, user and kernel, from `/proc/PID/task/*/schedstat`. A thread that has ended is not counted, so nothing
//! that is measured may end threads.

use std::fs;
use std::io;
use std::time::Duration;

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

//! What can be seen of a process and its device from outside: memory, descriptors, queue pairs, counters.
//!
//! Owns the names of files and commands that tell. Never guesses: what cannot be read is an error.

use std::fs;
use std::process::Command;

use crate::Failure;

const COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";

/// One reading. Queue pairs, memory regions and counters are those of the whole device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vitals {
    pub(crate) pid: u64,
    pub(crate) rss_kib: u64,
    pub(crate) descriptors: u64,
    pub(crate) queue_pairs: u64,
    pub(crate) regions: u64,
    /// Receivers that were not ready, seen from either side.
    pub(crate) rnr: u64,
    pub(crate) retransmits: u64,
}

impl Vitals {
    /// Of this process or another one on this machine.
    pub(crate) fn read(pid: u32) -> Result<Self, Failure> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("there is no VmRSS")?;
        let resources = Command::new("rdma").args(["resource", "show"]).output()?;
        let resources = String::from_utf8_lossy(&resources.stdout).into_owned();
        let mut words = resources.split_whitespace();
        let mut resource = |name| {
            words.find(|word| *word == name);
            words.next().and_then(|count| count.parse().ok()).ok_or(format!("{name}: none in {resources}"))
        };
        // In the order in which they are shown.
        let (queue_pairs, regions) = (resource("qp")?, resource("mr")?);
        let counters = |names: [&str; 2]| -> Result<u64, Failure> {
            names.iter().map(|name| number(&fs::read_to_string(format!("{COUNTERS}/{name}"))?)).sum()
        };
        Ok(Self {
            pid: pid.into(),
            rss_kib: number(rss.trim().trim_end_matches(" kB"))?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
            queue_pairs,
            regions,
            rnr: counters(["rcvd_rnr_err", "send_rnr_err"])?,
            retransmits: counters(["completer_retry_err", "rcvd_seq_err"])?,
        })
    }

    /// One line, for the other machine.
    pub(crate) fn encode(&self) -> String {
        let Self { pid, rss_kib, descriptors, queue_pairs, regions, rnr, retransmits } = self;
        format!("{pid} {rss_kib} {descriptors} {queue_pairs} {regions} {rnr} {retransmits}")
    }

    pub(crate) fn decode(line: &str) -> Result<Self, Failure> {
        let numbers: Vec<u64> = line.split_whitespace().map(number).collect::<Result<_, _>>()?;
        let &[pid, rss_kib, descriptors, queue_pairs, regions, rnr, retransmits] = numbers.as_slice() else {
            return Err(format!("these are no vitals: {line}").into());
        };
        Ok(Self { pid, rss_kib, descriptors, queue_pairs, regions, rnr, retransmits })
    }
}

fn number(text: &str) -> Result<u64, Failure> {
    text.trim().parse().map_err(|_| format!("{text} is no number").into())
}

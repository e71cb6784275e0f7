//! Memory that a device may use.

use byway_rdma::verbs::Unavailable;

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// Below this, few connections exhaust the limit: each has hundreds of KiB of receives, and payloads land in locked
/// memory. Defaults of 64 KiB (old systems) and 8 MiB (systemd, containerd) are the usual reason why RDMA is lost.
const COMFORTABLE: u64 = 64 << 20;

/// The bit of the capability that lifts the limit, in `CapEff`.
const CAP_IPC_LOCK: u32 = 14;

const RAISE: &str =
    "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 for a container";

pub(in crate::doctor) fn locked_memory(machine: &Machine, verbs: &Verbs) -> Finding {
    const CHECK: &str = "locked memory";
    let limits = machine.read("proc/self/limits").unwrap_or_default();
    let limit =
        limits.lines().find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    let tried = match &verbs.trial {
        Ok(_) => "; registering memory and creating a queue pair worked",
        Err(Unavailable::LockedMemory { source, .. }) => {
            let evidence = format!("limit {}; {} failed: {}", bytes(limit), source.verb, source.source);
            return Finding::new(CHECK, Verdict::Fail, evidence).remedy(RAISE);
        }
        Err(_) => "; not tried",
    };
    let privileged = machine
        .field("proc/self/status", "CapEff")
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 != 0);
    let limited = limit.is_some_and(|limit| limit != "unlimited");
    let privilege = if limited && privileged { ", lifted by CAP_IPC_LOCK" } else { "" };
    let evidence = format!("limit {}{privilege}{tried}", bytes(limit));
    match limit.map(str::parse::<u64>) {
        None => Finding::new(CHECK, Verdict::Unknown, "/proc/self/limits cannot be read").remedy("ulimit -l"),
        Some(Ok(limit)) if limit < COMFORTABLE && !privileged => {
            Finding::new(CHECK, Verdict::Warn, evidence).remedy(RAISE)
        }
        Some(_) => Finding::new(CHECK, Verdict::Ok, evidence),
    }
}

fn bytes(limit: Option<&str>) -> String {
    match limit.map(str::parse::<u64>) {
        Some(Ok(bytes)) => format!("{} KiB", bytes / 1024),
        _ => limit.unwrap_or("unknown").to_owned(),
    }
}

pub(in crate::doctor) fn huge_pages(machine: &Machine) -> Finding {
    const CHECK: &str = "huge pages";
    let transparent = machine.read("sys/kernel/mm/transparent_hugepage/enabled");
    // As in "always [madvise] never".
    let mode =
        transparent.as_deref().and_then(|text| text.split_once('[')?.1.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some(mode @ ("always" | "madvise")) => {
            Finding::new(CHECK, Verdict::Ok, format!("transparent: {mode}"))
        }
        Some(mode) => Finding::new(CHECK, Verdict::Warn, format!("transparent: {mode}")).remedy(
            "big regions take longer to register and more of the device's tables: \
             echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        None => Finding::new(CHECK, Verdict::Skipped, "this kernel has no transparent huge pages"),
    }
}

//! Where this process runs, seen from the device.

use std::collections::BTreeSet;

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};

/// The share of the throughput that is lost on the wrong node, as ruapc measured it: 1.48 to 1.85 times less.
const LOSS: &str = "a third to a half of the throughput was lost like this elsewhere";

pub(in crate::doctor) fn numa(machine: &Machine) -> Vec<Finding> {
    machine.devices().iter().map(|device| of_device(machine, device)).collect()
}

fn of_device(machine: &Machine, device: &str) -> Finding {
    let check = format!("NUMA node {device}");
    let Some(node) = machine.number::<u32>(&format!("sys/class/infiniband/{device}/device/numa_node")) else {
        return Finding::new(check, Verdict::Skipped, "the device is attached to no node in particular");
    };
    let near = machine.read(&format!("sys/devices/system/node/node{node}/cpulist"));
    let allowed = machine.field("proc/self/status", "Cpus_allowed_list");
    let (Some(near), Some(allowed)) = (near, allowed) else {
        return Finding::new(check, Verdict::Unknown, format!("node {node}; its CPUs cannot be read"))
            .remedy("numactl -H");
    };
    let evidence = format!("node {node} with CPUs {near}; this process may run on {allowed}");
    let bind = format!("numactl --cpunodebind={node} --membind={node} COMMAND");
    let (near, allowed) = (cpus(&near), cpus(&allowed));
    if near.is_disjoint(&allowed) {
        Finding::new(check, Verdict::Warn, evidence).remedy(format!("{LOSS}: {bind}"))
    } else if allowed.is_subset(&near) {
        Finding::new(check, Verdict::Ok, evidence)
    } else {
        Finding::new(check, Verdict::Ok, evidence).remedy(format!("to stay near the device: {bind}"))
    }
}

/// The numbers of a list such as `0-3,8`. A CPU of no known machine is beyond the bound.
fn cpus(list: &str) -> BTreeSet<u32> {
    const CPU_MAX: u32 = 1 << 14;
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?.min(CPU_MAX))
    });
    ranges.flatten().collect()
}

pub(in crate::doctor) fn governor(machine: &Machine) -> Finding {
    const CHECK: &str = "CPU governor";
    let allowed = machine.field("proc/self/status", "Cpus_allowed_list").unwrap_or_default();
    let of = |cpu: u32| machine.read(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<_> = cpus(&allowed).into_iter().filter_map(of).collect();
    let text = governors.iter().cloned().collect::<Vec<_>>().join(", ");
    if governors.is_empty() {
        Finding::new(
            CHECK,
            Verdict::Skipped,
            "no frequency scaling is visible here, as in most virtual machines",
        )
    } else if text == "performance" {
        Finding::new(CHECK, Verdict::Ok, text)
    } else {
        Finding::new(CHECK, Verdict::Warn, text)
            .remedy("latency rises while a core wakes up: sudo cpupower frequency-set -g performance")
    }
}

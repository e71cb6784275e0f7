//! One function for each thing to look at.
//!
//! Owns their order: what has to be there first comes first, so the first failure is the one to mend.

pub(super) mod addresses;
pub(super) mod counters;
pub(super) mod devices;
pub(super) mod firewall;
pub(super) mod kernel;
pub(super) mod library;
pub(super) mod memory;
pub(super) mod mtu;
pub(super) mod placement;

use super::machine::Machine;
use super::report::Finding;
use super::verbs::Verbs;

/// Every check, in order.
pub(super) fn all(machine: &Machine, verbs: &Verbs) -> Vec<Finding> {
    let mut findings = vec![
        library::library(machine, verbs),
        kernel::modules(machine),
        devices::devices(machine, verbs),
        kernel::device_files(machine, verbs),
    ];
    findings.extend(devices::ports(machine));
    findings.extend(addresses::addresses(machine));
    findings.push(addresses::choice(verbs));
    findings.extend(mtu::mtu(machine, verbs));
    findings.push(memory::locked_memory(machine, verbs));
    findings.push(memory::huge_pages(machine));
    findings.extend(placement::numa(machine));
    findings.push(placement::governor(machine));
    findings.extend(counters::counters(machine));
    findings.extend(counters::pause(machine, verbs));
    findings.push(firewall::firewall(machine, verbs));
    findings
}

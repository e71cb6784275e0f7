//! Packet sizes: what the port uses, and what its network interface carries.

use byway_rdma::nic::Mtu;
use byway_rdma::verbs::PortFacts;

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// Bytes around the payload of a RoCE packet, as Linux counts them when it derives a port's packet size from its
/// interface's (`iboe_get_mtu`): global header 40, UDP 8, base header 12, extended headers 32, checksum 4.
const ROCE_OVERHEAD: u32 = 96;

pub(in crate::doctor) fn mtu(machine: &Machine, verbs: &Verbs) -> Vec<Finding> {
    if verbs.ports().is_empty() {
        return vec![Finding::new("MTU", Verdict::Skipped, "libibverbs tells the packet size of no port")];
    }
    verbs.ports().iter().map(|port| of_port(machine, port)).collect()
}

fn of_port(machine: &Machine, port: &PortFacts) -> Finding {
    let check = format!("MTU {}/{}", port.device, port.port);
    let Some(size) = port.mtu.map(Mtu::bytes) else {
        return Finding::new(check, Verdict::Unknown, "the driver gives no valid packet size");
    };
    if !port.ethernet {
        return Finding::new(check, Verdict::Ok, format!("{size} bytes a packet"));
    }
    let interfaces: Vec<(String, u32)> = machine
        .list("sys/class/net")
        .into_iter()
        .filter(|name| {
            machine
                .number(&format!("sys/class/net/{name}/ifindex"))
                .is_some_and(|index| port.interfaces.contains(&index))
        })
        .filter_map(|name| Some((name.clone(), machine.number(&format!("sys/class/net/{name}/mtu"))?)))
        .collect();
    // A VLAN's or a bond's interface may be smaller than the port's own.
    let Some((name, carried)) = interfaces.into_iter().min_by_key(|(_, mtu)| *mtu) else {
        let evidence = format!("{size} bytes a packet; its network interface is not visible here");
        return Finding::new(check, Verdict::Unknown, evidence)
            .remedy("ip link, in the network namespace that has the interface");
    };
    let evidence = format!("{size} bytes a packet, {name} carries {carried}");
    let needed = size + ROCE_OVERHEAD;
    if carried < needed {
        return Finding::new(check, Verdict::Warn, evidence).remedy(format!(
            "packets of this size do not fit and are lost: sudo ip link set {name} mtu {needed}, also on every switch"
        ));
    }
    let finding = Finding::new(check, Verdict::Ok, evidence);
    match size < Mtu::B4096.bytes() {
        true => finding.remedy(format!(
            "fewer and larger packets, where every switch carries them: sudo ip link set {name} mtu {}",
            Mtu::B4096.bytes() + ROCE_OVERHEAD
        )),
        false => finding,
    }
}

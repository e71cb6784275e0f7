//! Addresses of ports, and which one byway takes.

use std::net::Ipv6Addr;

use byway_rdma::verbs::{GidKind, PortFacts, Refusal, gid_text};

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// More are not shown: a host with many VLANs has hundreds.
const SHOWN_MAX: usize = 8;

struct Address {
    index: String,
    address: Ipv6Addr,
    kind: GidKind,
    interface: Option<String>,
}

pub(in crate::doctor) fn addresses(machine: &Machine) -> Vec<Finding> {
    machine.ports().into_iter().map(|(device, port)| of_port(machine, &device, port)).collect()
}

fn of_port(machine: &Machine, device: &str, port: u8) -> Finding {
    let folder = format!("sys/class/infiniband/{device}/ports/{port}");
    let check = format!("addresses {device}/{port}");
    let ethernet = machine.read(&format!("{folder}/link_layer")).is_some_and(|layer| layer == "Ethernet");
    let entries = machine.gids(device, port).into_iter();
    let addresses: Vec<_> =
        entries.map(|(index, address)| Address::read(machine, &folder, index, address, ethernet)).collect();
    let add = || {
        let interface = machine.interfaces(device, port).into_iter().next();
        format!("sudo ip addr add ADDRESS dev {}", interface.as_deref().unwrap_or("INTERFACE"))
    };
    if addresses.is_empty() {
        let entries = machine.list(&format!("{folder}/gids")).len();
        let evidence = format!("{entries} entries, all of them zero");
        return Finding::new(check, Verdict::Fail, evidence).remedy(format!(
            "{}; in a container, whose network has no part of the device: --network host, or an RDMA-aware network plugin",
            add()
        ));
    }
    let shown: Vec<_> = addresses.iter().take(SHOWN_MAX).map(Address::text).collect();
    let evidence = match addresses.len().saturating_sub(SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    };
    let has = |wish: fn(&Address) -> bool| addresses.iter().any(wish);
    if ethernet && !has(|address| address.kind == GidKind::RoceV2) {
        return Finding::new(check, Verdict::Warn, evidence).remedy(
            "no address is RoCE v2, so peers must be on the same Ethernet: enable RoCE v2 in driver or firmware",
        );
    }
    if ethernet && !has(|address| !address.address.is_unicast_link_local()) {
        return Finding::new(check, Verdict::Warn, evidence)
            .remedy(format!("only peers on the same link can be reached: {}", add()));
    }
    Finding::new(check, Verdict::Ok, evidence)
}

impl Address {
    fn read(machine: &Machine, folder: &str, index: String, address: Ipv6Addr, ethernet: bool) -> Self {
        // The kernel has one name for InfiniBand and RoCE v1.
        let kind = match machine.read(&format!("{folder}/gid_attrs/types/{index}")) {
            Some(_) if !ethernet => GidKind::InfiniBand,
            kind => GidKind::from_sysfs(&kind.unwrap_or_default()),
        };
        let interface = machine.read(&format!("{folder}/gid_attrs/ndevs/{index}"));
        Self { index, address, kind, interface }
    }

    fn text(&self) -> String {
        let interface = self.interface.as_ref().map_or(String::new(), |name| format!(", {name}"));
        format!("{} {} ({}{interface})", self.index, gid_text(&self.address.octets()), self.kind)
    }
}

/// Which port and address a connection would use, and why not the others.
pub(in crate::doctor) fn choice(verbs: &Verbs) -> Finding {
    const CHECK: &str = "choice";
    let Ok(listing) = &verbs.listing else {
        return Finding::new(CHECK, Verdict::Skipped, "libibverbs lists no device");
    };
    if listing.ports.is_empty() && !listing.failed.is_empty() {
        return Finding::new(CHECK, Verdict::Skipped, "no device can be opened");
    }
    let Some(decision) = &listing.decision else {
        let reason = verbs.trial.as_ref().err().map_or(String::new(), ToString::to_string);
        return Finding::new(CHECK, Verdict::Fail, reason);
    };
    let refused: Vec<_> =
        decision.refused.iter().map(|(index, refusal)| named(&listing.ports[*index], *refusal)).collect();
    let others = if refused.is_empty() { String::new() } else { format!("; not {}", refused.join(", not ")) };
    match &decision.chosen {
        Ok(chosen) => {
            let port = &listing.ports[chosen.index];
            let (gid, why) = (chosen.gid, chosen.why);
            let evidence = format!(
                "{} port {}, address {} ({}, {}): {why}{others}",
                port.device,
                port.port,
                gid.index,
                gid_text(&gid.raw),
                gid.kind
            );
            Finding::new(CHECK, Verdict::Ok, evidence)
        }
        Err(reason) if refused.len() < 2 => Finding::new(CHECK, Verdict::Fail, reason.to_string()),
        Err(reason) => Finding::new(CHECK, Verdict::Fail, format!("{reason}{others}")),
    }
}

fn named(port: &PortFacts, refusal: Refusal) -> String {
    format!("{} port {} ({refusal})", port.device, port.port)
}

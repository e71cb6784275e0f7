//! Devices and their ports.

use byway_rdma::verbs::{PortState, Unavailable};

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// Network drivers of cards that have RDMA, and the module that adds it.
const COMPANIONS: [(&str, &str); 9] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("ena", "efa"),
];

/// Drivers of software devices, which have no device below them that would name its driver.
const SOFTWARE: [&str; 2] = ["rdma_rxe", "siw"];

pub(in crate::doctor) fn devices(machine: &Machine, verbs: &Verbs) -> Finding {
    let names = machine.devices();
    if names.is_empty() {
        return Finding::new("device", Verdict::Fail, "no RDMA device").remedy(how_to_get_one(machine));
    }
    let described: Vec<_> = names.iter().map(|name| format!("{name} ({})", driver(machine, name))).collect();
    let described = described.join(", ");
    if let Err(Unavailable::Provider { devices }) = &verbs.listing {
        let evidence = format!("{described}; libibverbs has no provider for {}", devices.join(", "));
        return Finding::new("device", Verdict::Fail, evidence)
            .remedy("sudo apt install ibverbs-providers (Debian, Ubuntu); part of libibverbs elsewhere");
    }
    match verbs.failed() {
        [] => Finding::new("device", Verdict::Ok, described),
        failed => {
            let verdict = if verbs.ports().is_empty() { Verdict::Fail } else { Verdict::Warn };
            let reasons: Vec<_> = failed.iter().map(|(_, error)| error.to_string()).collect();
            Finding::new("device", verdict, format!("{described}; {}", reasons.join("; ")))
        }
    }
}

fn driver(machine: &Machine, device: &str) -> String {
    let below = machine.link(&format!("sys/class/infiniband/{device}/device/driver"));
    below.unwrap_or_else(|| {
        let loaded = SOFTWARE.into_iter().filter(|module| machine.exists(&format!("sys/module/{module}")));
        let loaded: Vec<_> = loaded.collect();
        match loaded.as_slice() {
            [] => "software".into(),
            modules => format!("software: {}", modules.join(" or ")),
        }
    })
}

fn how_to_get_one(machine: &Machine) -> String {
    let loaded = |module: &str| machine.exists(&format!("sys/module/{module}"));
    if let Some((_, module)) = COMPANIONS.into_iter().find(|(network, rdma)| loaded(network) && !loaded(rdma))
    {
        return format!("sudo modprobe {module}");
    }
    let interfaces = machine.list("sys/class/net").into_iter().filter(|name| name != "lo");
    let is_down =
        |name: &String| machine.read(&format!("sys/class/net/{name}/operstate")).is_none_or(|s| s != "up");
    let interface = interfaces.min_by_key(is_down);
    format!(
        "where there is no RDMA card, a software device serves to develop with: sudo modprobe rdma_rxe && \
         sudo rdma link add rxe0 type rxe netdev {}",
        interface.as_deref().unwrap_or("INTERFACE")
    )
}

pub(in crate::doctor) fn ports(machine: &Machine) -> Vec<Finding> {
    let ports: Vec<_> =
        machine.ports().into_iter().map(|(device, port)| Port::read(machine, device, port)).collect();
    let some_active = ports.iter().any(|port| port.state == PortState::Active);
    ports.iter().map(|port| port.finding(machine, some_active)).collect()
}

struct Port {
    device: String,
    number: u8,
    state: PortState,
    ethernet: bool,
    text: String,
}

impl Port {
    fn read(machine: &Machine, device: String, number: u8) -> Self {
        let file = |name: &str| machine.read(&format!("sys/class/infiniband/{device}/ports/{number}/{name}"));
        // As in "4: ACTIVE".
        let code = file("state").and_then(|text| text.split(':').next()?.trim().parse().ok());
        let state = PortState::from_code(code.unwrap_or(u32::MAX));
        let layer = file("link_layer").unwrap_or_else(|| "unknown link layer".into());
        let rate = file("rate").unwrap_or_else(|| "unknown rate".into());
        let link = file("phys_state").and_then(|text| Some(text.split_once(':')?.1.trim().to_owned()));
        let link = link
            .filter(|_| state != PortState::Active)
            .map_or(String::new(), |link| format!(", link {link}"));
        let text = format!("{state}{link}, {layer}, {rate}");
        Self { ethernet: layer == "Ethernet", device, number, state, text }
    }

    fn finding(&self, machine: &Machine, some_active: bool) -> Finding {
        let check = format!("port {}/{}", self.device, self.number);
        if self.state == PortState::Active {
            return Finding::new(check, Verdict::Ok, self.text.clone());
        }
        let verdict = if some_active { Verdict::Warn } else { Verdict::Fail };
        let interfaces = machine.interfaces(&self.device, self.number);
        let remedy = match (self.state, self.ethernet) {
            (PortState::Initializing | PortState::Armed, false) => {
                "start a subnet manager in the fabric (sudo systemctl start opensm), or look why it does not see the port"
                    .to_owned()
            }
            (_, true) => format!(
                "sudo ip link set {} up; if it is up, look at cable and switch port",
                interfaces.first().map_or("INTERFACE", |name| name)
            ),
            (_, false) => "look at cable and switch port (ibstat shows the link)".to_owned(),
        };
        Finding::new(check, verdict, self.text.clone()).remedy(remedy)
    }
}

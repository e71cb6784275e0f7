//! What ports have counted.

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// What a counter that is not zero tells. Names differ by driver; those of mlx5, Soft-RoCE and the InfiniBand standard
/// are here, and what counts ordinary traffic is not.
const MEANINGS: [(&[&str], &str); 8] = [
    (
        &["rnr_nak_retry_err", "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err", "out_of_buffer"],
        "a message met no posted receive: some program's flow control failed (byway's credits keep this at zero)",
    ),
    (
        &[
            "local_ack_timeout_err",
            "retry_exceeded_err",
            "completer_retry_err",
            "roce_adp_retrans",
            "roce_adp_retrans_to",
            "roce_slow_restart",
            "duplicate_request",
        ],
        "packets were repeated: the network loses them, or a peer went away",
    ),
    (
        &["out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "rcvd_seq_err", "out_of_seq_request"],
        "packets were missing: a lossless class (PFC) is not set up all the way, or a link is bad",
    ),
    (
        &["np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored"],
        "switches mark congestion, and senders slow down",
    ),
    (
        &[
            "port_xmit_discards",
            "port_rcv_errors",
            "port_rcv_remote_physical_errors",
            "port_rcv_switch_relay_errors",
            "port_xmit_constraint_errors",
            "port_rcv_constraint_errors",
            "VL15_dropped",
            "excessive_buffer_overrun_errors",
            "rx_icrc_encapsulated",
            "send_err",
        ],
        "packets were dropped or damaged",
    ),
    (&["port_xmit_wait"], "sending had to wait: congestion, or a slow receiver"),
    (
        &["symbol_error", "link_error_recovery", "local_link_integrity_errors"],
        "the link makes errors: look at cable and transceiver",
    ),
    (&["link_downed"], "the link was lost"),
];

pub(in crate::doctor) fn counters(machine: &Machine) -> Vec<Finding> {
    machine.ports().into_iter().map(|(device, port)| of_port(machine, &device, port)).collect()
}

fn of_port(machine: &Machine, device: &str, port: u8) -> Finding {
    let check = format!("counters {device}/{port}");
    let folders =
        ["counters", "hw_counters"].map(|name| format!("sys/class/infiniband/{device}/ports/{port}/{name}"));
    let values: Vec<(String, u64)> = folders
        .iter()
        .flat_map(|folder| {
            machine.list(folder).into_iter().map(move |name| (format!("{folder}/{name}"), name))
        })
        .filter_map(|(path, name)| Some((name, machine.number(&path)?)))
        .collect();
    if values.is_empty() {
        return Finding::new(check, Verdict::Unknown, "the driver shows no counters")
            .remedy("rdma statistic show");
    }
    let (mut raised, mut meanings) = (Vec::new(), Vec::new());
    for (names, meaning) in MEANINGS {
        let of_kind = values.iter().filter(|(name, value)| *value > 0 && names.contains(&name.as_str()));
        let before = raised.len();
        raised.extend(of_kind.map(|(name, value)| format!("{name} {value}")));
        if raised.len() > before {
            meanings.push(meaning);
        }
    }
    match raised.is_empty() {
        true => Finding::new(check, Verdict::Ok, format!("{} counters; none tells of a loss", values.len())),
        false => Finding::new(check, Verdict::Warn, raised.join(", ")).remedy(format!(
            "{}. They count since the device was started: look whether they grow",
            meanings.join("; ")
        )),
    }
}

/// Pause frames, which the interface's driver counts, not the RDMA device.
pub(in crate::doctor) fn pause(machine: &Machine, verbs: &Verbs) -> Vec<Finding> {
    let ethernet = verbs.ports().iter().filter(|port| port.ethernet);
    // Software devices have no link of their own.
    let hardware =
        ethernet.filter(|port| machine.exists(&format!("sys/class/infiniband/{}/device", port.device)));
    hardware
        .flat_map(|port| machine.interfaces(&port.device, port.port).into_iter().take(1))
        .map(|interface| of_interface(machine, &interface))
        .collect()
}

fn of_interface(machine: &Machine, interface: &str) -> Finding {
    let check = format!("pause {interface}");
    let Some(statistics) = machine.output("ethtool", &["-S", interface]) else {
        return Finding::new(check, Verdict::Unknown, "ethtool is missing or shows nothing")
            .remedy(format!("sudo ethtool -S {interface} | grep -i pause"));
    };
    let lines = statistics.lines().filter_map(|line| line.trim().rsplit_once(':'));
    let counts = lines.filter_map(|(name, value)| Some((name.trim(), value.trim().parse::<u64>().ok()?)));
    let pauses: Vec<_> =
        counts.filter(|(name, _)| name.contains("pause") && !name.contains("storm")).collect();
    let raised: Vec<_> = pauses
        .iter()
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    match (pauses.is_empty(), raised.is_empty()) {
        (true, _) => Finding::new(check, Verdict::Unknown, "the driver counts no pause frames"),
        (_, true) => Finding::new(check, Verdict::Ok, "no pause frame was sent or received"),
        _ => Finding::new(check, Verdict::Warn, raised.join(", "))
            .remedy("pauses hold whole links up: find the slow receiver, or let ECN act before PFC does"),
    }
}

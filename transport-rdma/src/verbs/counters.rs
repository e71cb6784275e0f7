//! What the RDMA device counts: packets, and what should not happen.
//!
//! Owns the names that drivers give these counters in `/sys/class/infiniband/DEVICE/ports/PORT`. Where both ends of a
//! connection are on one machine and use one device, a packet that the device has sent is one of that connection, data or
//! acknowledgement, counted once. What other programs do with the device is counted too. Drivers refresh counters every
//! 10 ms or so: a reading right after another may be the same.

use std::fs;
use std::path::{Path, PathBuf};

use super::probe::Located;

/// Packets sent. rxe; bnxt_re and erdma; mlx4, mlx5 and hfi1.
const PACKETS: [&str; 3] = ["hw_counters/sent_pkts", "hw_counters/tx_pkts", "counters/port_xmit_packets"];

/// "Receiver not ready", as its receiver counts it: rxe; mlx5; bnxt_re.
const RNR_RECEIVED: [&str; 3] =
    ["hw_counters/rcvd_rnr_err", "hw_counters/rnr_nak_retry_err", "hw_counters/rnr_naks_rcvd"];

/// The same, as its sender counts it: rxe; mlx5.
const RNR_SENT: [&str; 2] = ["hw_counters/send_rnr_err", "hw_counters/out_of_buffer"];

/// Reasons for which packets were sent again: a time-out, or a gap that the peer complained about. rxe; mlx5; bnxt_re.
const RETRANSMITS: [&str; 6] = [
    "hw_counters/completer_retry_err",
    "hw_counters/rcvd_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/to_retransmits",
    "hw_counters/seq_err_naks_rcvd",
];

/// Where a port's counters are.
#[derive(Debug)]
pub struct PortCounters {
    folder: PathBuf,
}

/// One reading. `None` where the driver has no such counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PortCounts {
    /// Packets that the port has sent, acknowledgements included.
    pub packets: Option<u64>,
    /// Refusals for want of a receive that came from peers.
    pub rnr_received: Option<u64>,
    /// Such refusals that went to peers.
    pub rnr_sent: Option<u64>,
    /// Packets that were sent again.
    pub retransmits: Option<u64>,
}

impl PortCounters {
    /// Those of the port in use.
    pub fn of(device: &Located) -> Self {
        let port = format!("/sys/class/infiniband/{}/ports/{}", device.context.name(), device.port.number);
        Self { folder: port.into() }
    }

    /// What they say now.
    pub fn read(&self) -> PortCounts {
        let first = |names: &[&str]| names.iter().find_map(|name| number(&self.folder.join(name)));
        let sum = |names: &[&str]| {
            let counts = names.iter().filter_map(|name| number(&self.folder.join(name)));
            counts.reduce(|sum, count| sum + count)
        };
        PortCounts {
            packets: first(&PACKETS),
            rnr_received: first(&RNR_RECEIVED),
            rnr_sent: first(&RNR_SENT),
            retransmits: sum(&RETRANSMITS),
        }
    }
}

impl PortCounts {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let difference = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            packets: difference(self.packets, before.packets),
            rnr_received: difference(self.rnr_received, before.rnr_received),
            rnr_sent: difference(self.rnr_sent, before.rnr_sent),
            retransmits: difference(self.retransmits, before.retransmits),
        }
    }

    /// How often a receiver was not ready. Both ends may count it, so it is the larger of the two.
    pub fn rnr(self) -> Option<u64> {
        self.rnr_received.max(self.rnr_sent)
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

//! Says whether this process can use RDMA, and if not, why. Always succeeds: RDMA is never required.
//!
//! Usage: `probe [DEVICE] [--local ADDRESS]`, where ADDRESS is the local one of a connection to the peer.

use byway_rdma::verbs::{DeviceChoice, probe};

fn main() {
    let mut choice = DeviceChoice::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--local" => choice.local = args.next().and_then(|address| address.parse().ok()),
            _ => choice.device = Some(arg),
        }
    }
    match probe(&choice) {
        Ok(located) => println!("RDMA on {located}"),
        Err(reason) => println!("no RDMA: {reason}"),
    }
}

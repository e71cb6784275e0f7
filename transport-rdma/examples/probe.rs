//! Says whether this process can use RDMA, and if not, why. Always succeeds: RDMA is never required.

use byway_rdma::verbs::{DeviceChoice, probe};

fn main() {
    let device = std::env::args().nth(1);
    match probe(&DeviceChoice { device, ..DeviceChoice::default() }) {
        Ok(located) => println!("RDMA on {located}"),
        Err(reason) => println!("no RDMA: {reason}"),
    }
}

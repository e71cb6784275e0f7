//! The NIC suite on a kernel device, here Soft-RoCE. Run it with `cargo xtask test`, which boots a guest that has one.
//!
//! Without a device it says so and passes, unless `BYWAY_GUEST` tells that one must be there.

#[path = "runner/device.rs"]
mod device;
mod nic_suite;
mod runner;

use std::process::ExitCode;
use std::time::Duration;

use byway_rdma::verbs::{DeviceChoice, NicOptions, VerbsAdapter, VerbsNic};
use nic_suite::{Deviation, Fixture, Sizes};

/// Soft-RoCE as in Linux 6.1.
struct Rxe;

impl Fixture for Rxe {
    type Nic = VerbsNic;
    type Adapter = VerbsAdapter;

    fn pair(&self, sizes: Sizes) -> (VerbsNic, VerbsNic) {
        let options = NicOptions {
            completions: sizes.completions,
            shared_receives: sizes.shared_receives,
            ..NicOptions::default()
        };
        let open = || VerbsNic::open(&options).expect("the device was probed");
        (open(), open())
    }

    fn adapters(&self, shared_receives: u32) -> (VerbsAdapter, VerbsAdapter) {
        let open = || VerbsAdapter::open(&DeviceChoice::default(), shared_receives);
        (open().expect("the device was probed"), open().expect("the device was probed"))
    }

    fn sleep(&self, nic: &mut VerbsNic, limit: Duration) -> bool {
        nic.wait(limit).expect("a completion channel")
    }

    fn pause(&self) {
        std::thread::yield_now();
    }

    fn deviations(&self) -> &'static [Deviation] {
        &[Deviation::WriteBeyondWindow, Deviation::TooLongIsFailedOperation]
    }
}

fn main() -> ExitCode {
    device::with_device("rxe", |filter| runner::run("rxe", &nic_suite::cases(&Rxe, filter)))
}

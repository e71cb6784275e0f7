//! Runs cases where there is a device.

use std::process::ExitCode;

use byway_rdma::verbs::{DeviceChoice, probe};

/// Calls `run` with the filter from the command line if there is a device. Without one it says so and passes, unless
/// `BYWAY_GUEST` tells that one must be there.
pub(crate) fn with_device(name: &str, run: impl FnOnce(&str) -> bool) -> ExitCode {
    if let Err(reason) = probe(&DeviceChoice::default()) {
        println!("{name}: SKIPPED, no case ran: {reason}");
        return match std::env::var_os("BYWAY_GUEST") {
            Some(_) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        };
    }
    match run(&crate::runner::filter()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

//! Runs cases on a device and counts them, so that a log shows how many there were.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

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
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    match run(filter.as_deref().unwrap_or_default()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs the cases and prints the closing line; `true` when there were some and all passed.
pub(crate) fn run(name: &str, cases: &[(&str, impl Fn())]) -> bool {
    let mut passed = 0;
    for (case_name, case) in cases {
        let start = Instant::now();
        let ok = catch_unwind(AssertUnwindSafe(case)).is_ok();
        let verdict = if ok { "ok" } else { "FAILED" };
        println!("{case_name} ... {verdict} ({} ms)", start.elapsed().as_millis());
        passed += usize::from(ok);
    }
    println!("{name}: {passed} of {} cases", cases.len());
    passed == cases.len() && passed > 0
}

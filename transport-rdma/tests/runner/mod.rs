//! Runs cases and counts them, so that a log shows how many there were.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// What the command line asks to run: the cases whose name contains it.
pub(crate) fn filter() -> String {
    std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default()
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

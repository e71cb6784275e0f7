//! Every reason for which a connection goes without RDMA, and every end of one that had it.
//!
//! Owns one test for each cause that can be made within a process, on simulated devices; those of a machine are made in
//! a virtual one. Each asserts that calls work, what the path says, that there is one warning with reason and remedy, what
//! the gauge of connections shows, how many TCP connections it took, and that a channel that requires RDMA fails with the
//! same reason. The log ends with a table. Tests run one after the other, since the gauge and the warnings are those
//! of the process. Never: asserts how long something took, which the table tells.

mod breaking;
mod causes;
mod falling;
mod front;
#[path = "../server/harness.rs"]
mod harness;
mod stingy;
mod switched_off;
mod warnings;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::causes::CAUSES;

fn main() -> ExitCode {
    if let Some(code) = switched_off::child() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    warnings::keep();
    causes::offers_are_as_named();
    let mut trials: Vec<_> = CAUSES
        .iter()
        .map(|cause| {
            Trial::test(cause.name, || {
                falling::test(cause);
                Ok(())
            })
        })
        .collect();
    let others = switched_off::TESTS.iter().chain(breaking::TESTS);
    trials.extend(others.map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    falling::print_table();
    conclusion.exit_code()
}

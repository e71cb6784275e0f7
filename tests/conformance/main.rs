//! One suite for every path that a call can take.
//!
//! Cases are written once and know no path; [`path::PATHS`] lists the paths. Each case runs over each path on a runtime
//! of one thread and on one of two workers, as a test named `path::case`. A case that hangs fails.

mod calls;
mod cancel;
mod case;
mod client;
mod deadline;
mod drain;
mod exclusions;
mod flow;
mod limits;
mod metadata;
mod panics;
mod path;
mod policy;
mod sizes;
mod status;
mod stock;
mod trailing;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Trial};

use crate::case::Case;
use crate::path::PATHS;

fn cases() -> Vec<Case> {
    let files = [
        calls::cases(),
        metadata::cases(),
        status::cases(),
        deadline::cases(),
        cancel::cases(),
        flow::cases(),
        limits::cases(),
        panics::cases(),
        drain::cases(),
        policy::cases(),
        sizes::cases(),
    ];
    files.into_iter().flatten().collect()
}

fn main() -> ExitCode {
    case::hide_intended_panics();
    let arguments = Arguments::from_args();
    let passed: &'static HashMap<_, _> =
        Box::leak(Box::new(PATHS.iter().map(|path| (path.name, AtomicUsize::new(0))).collect()));
    let mut trials = Vec::new();
    let missing: HashMap<_, _> = PATHS.iter().filter_map(|path| Some((path.name, path.missing()?))).collect();
    for path in PATHS.iter().filter(|path| !missing.contains_key(path.name)) {
        for (name, _) in path.unsupported {
            assert!(cases().iter().any(|case| case.name == *name), "{name} is no case");
        }
        for case in cases() {
            if path.unsupported.iter().any(|(name, _)| *name == case.name) {
                continue;
            }
            trials.push(Trial::test(format!("{}::{}", path.name, case.name), move || {
                case.run(path)?;
                passed[path.name].fetch_add(1, Ordering::Relaxed);
                Ok(())
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        for path in PATHS {
            if let Some(reason) = missing.get(path.name) {
                println!("{}: not on this machine: {reason}", path.name);
                continue;
            }
            let supported = cases().len() - path.unsupported.len();
            println!("{}: {} of {supported} cases", path.name, passed[path.name].load(Ordering::Relaxed));
            for (name, reason) in path.unsupported {
                println!("    without {name}: {reason}");
            }
        }
    }
    conclusion.exit_code()
}

//! Why RDMA is used here, or why not.
//!
//! ```text
//!  machine   files below a root, and commands: all that a check may read
//!  verbs     what libibverbs says, as plain values
//!  checks/   one function for each thing to look at: (machine, verbs) -> findings
//!  peer      the other end, asked over TCP
//!  joined    the path of a channel to it
//!  report    findings, as text and as JSON
//! ```
//!
//! Owns the order of the checks and the conclusion. Invariants: each check is a function of a [`Machine`] and of [`Verbs`],
//! so that it is tested on folders; the conclusion is the trial's alone (a device that looks right and refuses is not
//! usable, one that looks wrong and works is), with a peer also the channel's, in the words that a connection gives as its
//! reason. Never changes
//! anything on the machine.

mod checks;
mod joined;
mod machine;
mod peer;
mod report;
mod verbs;

use byway_rdma::verbs::DeviceChoice;

use peer::Offering;

pub use machine::Machine;
pub use peer::Peer;
pub use report::{Finding, Report, Summary, Verdict};
pub use verbs::{Listing, Trial, Verbs};

/// Looks at this machine, and at a peer if one is named (`HOST:PORT`).
pub fn run(peer: Option<&str>) -> Report {
    let machine = Machine::this();
    // The peer first: its connection's local address decides which device is asked.
    let dialled = peer.map(peer::dial);
    let local = dialled.as_ref().and_then(|dialled| dialled.local());
    let choice = DeviceChoice { local, ..DeviceChoice::default() };
    let verbs = Verbs::ask(&choice);
    let peer = dialled.map(|dialled| dialled.ask(&Offering::make(&choice, &verbs).extension).join());
    examine(&machine, &verbs, peer.as_ref())
}

/// Makes every check, in order, and concludes.
pub fn examine(machine: &Machine, verbs: &Verbs, peer: Option<&Peer>) -> Report {
    let mut findings = checks::all(machine, verbs);
    let mut usable = verbs.trial.is_ok();
    if let Some(peer) = peer {
        findings.extend(peer.findings(verbs));
        usable &= peer.is_usable();
    }
    let conclusion = match (&verbs.trial, peer) {
        (Err(reason), _) => format!("no RDMA: {reason}"),
        (Ok(trial), None) => format!("RDMA on {}", trial.text),
        (Ok(trial), Some(peer)) if usable => {
            format!("RDMA on {}, and {} is reached by it", trial.text, peer.name)
        }
        (Ok(_), Some(peer)) => format!("no RDMA with {}: {}", peer.name, peer.refusal()),
    };
    let verdict = if usable { Verdict::Ok } else { Verdict::Fail };
    findings.push(Finding::new("RDMA", verdict, conclusion.clone()));
    Report::new(usable, conclusion, findings)
}

#[cfg(test)]
mod tests;

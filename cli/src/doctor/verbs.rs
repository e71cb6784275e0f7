//! What libibverbs says, as plain values.
//!
//! Owns the questions to the verbs layer: the survey, the choice and the trial. Invariant: they are the very functions that
//! a connection uses, so the doctor cannot come to another conclusion.

use byway_rdma::verbs::{self, Decision, DeviceChoice, PortFacts, Unavailable, VerbsError};

/// The answers.
#[derive(Debug)]
pub struct Verbs {
    /// What there is to choose from, or why nothing can be listed.
    pub listing: Result<Listing, Unavailable>,
    /// Whether it works: memory registered, a queue pair created.
    pub trial: Result<Trial, Unavailable>,
}

/// What libibverbs lists.
#[derive(Debug)]
pub struct Listing {
    /// Every port of every device that could be opened.
    pub ports: Vec<PortFacts>,
    /// Devices that could not be opened or asked.
    pub failed: Vec<(String, VerbsError)>,
    /// Which of `ports` would be chosen; `None` when a setting is bad.
    pub decision: Option<Decision>,
}

/// A trial that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Device, port, address and the rule that decided for them.
    pub text: String,
}

impl Verbs {
    /// Asks this machine.
    pub fn ask(choice: &DeviceChoice) -> Self {
        let trial = verbs::probe(choice).map(|located| Trial { text: located.to_string() });
        let listing = verbs::survey().map(|survey| {
            let decision = choice.with_environment().ok().map(|wanted| survey.decide(&wanted));
            Listing { ports: survey.ports, failed: survey.failed, decision }
        });
        Self { listing, trial }
    }

    /// The ports; none when nothing could be listed.
    pub(super) fn ports(&self) -> &[PortFacts] {
        self.listing.as_ref().map_or(&[], |listing| &listing.ports)
    }

    /// The devices that could not be opened or asked.
    pub(super) fn failed(&self) -> &[(String, VerbsError)] {
        self.listing.as_ref().map_or(&[], |listing| &listing.failed)
    }

    /// The port that would be used.
    pub(super) fn chosen(&self) -> Option<&PortFacts> {
        let listing = self.listing.as_ref().ok()?;
        let chosen = listing.decision.as_ref()?.chosen.as_ref().ok()?;
        listing.ports.get(chosen.index)
    }
}

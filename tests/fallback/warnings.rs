//! The warnings of this process, as a person would read them.

use std::fmt::{self, Write};
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Begins to keep warnings.
pub(crate) fn keep() {
    tracing::subscriber::set_global_default(Keeper).expect("nobody else listens");
}

/// Forgets what was said so far: a later test may have the same address.
pub(crate) fn forget() {
    SAID.lock().expect("nobody panics").clear();
}

/// Those about RDMA that a channel to `address` has said so far.
pub(crate) fn about(address: &str) -> Vec<String> {
    let said = SAID.lock().expect("nobody panics");
    let target = format!("target={address} ");
    said.iter().filter(|line| line.contains(&target) && line.contains("RDMA")).cloned().collect()
}

struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("byway")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        SAID.lock().expect("nobody panics").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

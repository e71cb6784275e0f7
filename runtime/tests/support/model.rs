//! Two sessions joined by memory, and what is expected of them.
//!
//! Owns the oracle: for each side of each call a [`Seat`], which says in the plainest terms what its owner may do and
//! will find. It is written from docs/wire.md, not from the session: queues of expected parts, sums of costs.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use byway_runtime::session::{CallId, Role, Session};
use byway_runtime::{End, Limits};

use super::{Task, Wire};

/// What a message costs beside its bytes.
pub(crate) const MESSAGE_COST: u64 = 64;

pub(crate) fn cost(message: &Bytes) -> u64 {
    message.len() as u64 + MESSAGE_COST
}

pub(crate) fn other(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

/// An end as text, so that expected and found are compared whole.
pub(crate) fn describe(end: &End) -> String {
    match end {
        End::Outcome(Ok(trailers)) => {
            format!(
                "ok {}",
                trailers
                    .as_map()
                    .and_then(|map| map.get("tag"))
                    .map_or("", |tag| tag.to_str().expect("a number"))
            )
        }
        End::Outcome(Err(status)) => format!("status {:?} {}", status.code(), status.message()),
        End::NotSent(status) => format!("not sent {:?} {}", status.code(), status.message()),
    }
}

/// A part that is on its way or waits for its reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) head: Option<String>,
    pub(crate) message: Option<Bytes>,
    /// The number of its body, while that has not landed.
    pub(crate) later: Option<u64>,
    pub(crate) end: Option<String>,
}

impl Expected {
    pub(crate) fn end(text: String) -> Self {
        Self { end: Some(text), ..Self::default() }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.message.as_ref().map_or(0, cost)
    }
}

/// What one side of a call may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sends {
    Head,
    Messages,
    Nothing,
}

impl Sends {
    pub(crate) fn after(self, head: bool, message: bool, end: bool) -> Option<Self> {
        let allowed = match self {
            Self::Head => head || (end && !message),
            Self::Messages => !head && (message || end),
            Self::Nothing => false,
        };
        let next = if end { Self::Nothing } else { Self::Messages };
        allowed.then_some(next)
    }
}

/// A task that waits, or does not.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    pub(crate) task: Arc<Task>,
    parked: bool,
}

impl Wait {
    pub(crate) fn park(&mut self) {
        self.task.take_woken();
        self.parked = true;
    }

    pub(crate) fn leave(&mut self) {
        self.parked = false;
    }

    /// Whether it still sleeps, and therefore must have nothing to do.
    pub(crate) fn sleeps(&self) -> bool {
        self.parked && !self.task.is_woken()
    }
}

/// One side of one call.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Whether its owner has not let go of it.
    pub(crate) holds: bool,
    /// Whether its session knows it as open.
    pub(crate) open: bool,
    pub(crate) sends: Sends,
    /// What it may still send.
    pub(crate) window: i64,
    /// What it sent and the other side has not heard.
    pub(crate) on_the_way: VecDeque<Expected>,
    /// What it heard and its owner has not read.
    pub(crate) inbox: VecDeque<Expected>,
    /// The charge for a message that was handed over together with the call.
    pub(crate) handed: u64,
    /// What was read and not yet given back to the other side's window.
    pub(crate) unreturned: u64,
    /// Whether nothing more is to come, by the peer's word or this side's.
    pub(crate) heard_end: bool,
    /// Whether this side ended it alone.
    pub(crate) deaf: bool,
    pub(crate) ends_seen: usize,
    pub(crate) sent: Vec<Bytes>,
    pub(crate) read: Vec<Bytes>,
    pub(crate) reader: Wait,
    pub(crate) writer: Wait,
    /// Whether the part that waits is in place as far as order goes: with a head, and with an end.
    pub(crate) writes: (bool, bool),
    pub(crate) watcher: Wait,
}

impl Seat {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            holds: false,
            open: false,
            sends: Sends::Head,
            window: i64::from(window),
            on_the_way: VecDeque::new(),
            inbox: VecDeque::new(),
            handed: 0,
            unreturned: 0,
            heard_end: false,
            deaf: false,
            ends_seen: 0,
            sent: Vec::new(),
            read: Vec::new(),
            reader: Wait::default(),
            writer: Wait::default(),
            writes: (false, false),
            watcher: Wait::default(),
        }
    }

    pub(crate) fn held(&self) -> u64 {
        self.handed + self.inbox.iter().map(Expected::cost).sum::<u64>()
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.inbox.front().is_some_and(|part| part.later.is_none())
    }

    /// Nothing of it is left in its session.
    pub(crate) fn close(&mut self) {
        self.open = false;
        self.inbox.clear();
        self.handed = 0;
    }

    /// As a client: the owner will find `end` after what is there, whatever the peer still says.
    pub(crate) fn end_alone(&mut self, end: String) {
        let whole = self.inbox.iter().take_while(|part| part.later.is_none()).count();
        self.inbox.truncate(whole);
        if self.inbox.back().is_some_and(|last| last.end.is_some()) {
            return;
        }
        (self.heard_end, self.deaf, self.sends) = (true, true, Sends::Nothing);
        self.inbox.push_back(Expected::end(end));
    }

    /// Notes that the owner took `cost`; returns what is to be granted at once.
    pub(crate) fn take(&mut self, cost: u64, window: u32) -> Option<u64> {
        if cost == 0 {
            return None;
        }
        self.unreturned += cost;
        if self.unreturned < u64::from(window / 2) {
            return None;
        }
        let grant = std::mem::take(&mut self.unreturned);
        (!self.heard_end).then_some(grant)
    }

    /// Nobody will ever hear of it again.
    pub(crate) fn is_settled(&self) -> bool {
        !self.holds && !self.open && self.on_the_way.is_empty()
    }
}

/// One call, from both sides.
#[derive(Debug)]
pub(crate) struct CallModel {
    pub(crate) id: CallId,
    /// The link's position when it was opened.
    pub(crate) began: u64,
    pub(crate) client: Seat,
    pub(crate) server: Seat,
}

impl CallModel {
    pub(crate) fn seat(&mut self, role: Role) -> &mut Seat {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.client.is_settled() && self.server.is_settled()
    }
}

/// One session, its link, and the bodies that have not landed.
pub(crate) struct Side {
    pub(crate) session: Session,
    pub(crate) link: Wire,
    /// What this side accepts.
    pub(crate) limits: Limits,
    pub(crate) landing: Vec<(CallId, u64, Bytes)>,
}

impl Side {
    pub(crate) fn new(role: Role, local: Limits, remote: Limits, room: usize) -> Self {
        Self {
            session: Session::new(role, local, remote),
            link: Wire { room, ..Wire::default() },
            limits: local,
            landing: Vec::new(),
        }
    }

    pub(crate) fn wake(&mut self) {
        let mut woken = Vec::new();
        self.session.take_woken(&mut woken);
        woken.into_iter().for_each(std::task::Waker::wake);
    }
}

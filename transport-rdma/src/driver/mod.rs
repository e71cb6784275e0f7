//! What moves one RDMA connection: a function of time over session, protocol and NIC.
//!
//! Owns [`Driver`]. [`Driver::turn`] does what can be done now, once and bounded, and says when to call it again; it
//! waits for nothing, has no clock and starts no task, so that whole connections run on virtual time. One turn:
//! completions; bodies copied and memory bound, without the lock; under one lock everything that arrived, was granted,
//! landed or is to be sent; then the send queue. Only when a turn found nothing is the completion queue armed, and then
//! looked at once more before [`Wake::Bell`]. Invariants: a buffer belongs to its request until that completes; when the
//! driver is dropped the connection's calls have ended, windows are freed before the queue pair, and every receive is
//! posted again.

mod arrivals;
mod bodies;
mod landings;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use byway_runtime::Status;
use byway_runtime::connection::{Connection, Turn};
use byway_runtime::session::{Failure, Incoming, Role};
use tokio::time::Instant;

use self::arrivals::Arrivals;
use self::bodies::Bodies;
use self::landings::Landings;
use crate::host::Share;
use crate::link::RdmaLink;
use crate::nic::Adapter;
use crate::protocol::credit::Credits;
use crate::protocol::{Endpoint, Event, ProtocolError, Transmit};
use crate::wire::{Came, Polled, Slip, Wire};

/// How often a driver looks while requests of its own are out and only the peer's messages would wake it: the time in
/// which a failed queue pair is noticed, beside what the device takes to give up.
const LOOK: Duration = Duration::from_millis(100);

/// Looks at the completion queue between two yields of a driver that spins.
const LOOKS_PER_SPIN: usize = 16;

/// For how long after it last sent: then a device has given up on what was not acknowledged, or will fail the next.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// When to call [`Driver::turn`] again. In any case when the waker that it was given was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// At once: there is more to do.
    Now,
    /// Soon: it is not yet time to sleep.
    Spin,
    /// When the NIC's bell rings, and at this time.
    Bell(Option<Instant>),
}

/// What both sides agreed on: a connected queue pair, proven, with the first of what came over it.
pub struct Joined<A: Adapter> {
    pub(crate) wire: Wire<A::Nic>,
    pub(crate) share: Share<A>,
    pub(crate) endpoint: Endpoint<Slip>,
    pub(crate) polled: Polled,
}

/// Moves one connection.
pub struct Driver<A: Adapter> {
    role: Role,
    wire: Wire<A::Nic>,
    share: Share<A>,
    connection: Arc<Connection<RdmaLink>>,
    polled: Polled,
    arrivals: Arrivals,
    landings: Landings,
    bodies: Bodies,
    /// Calls that arrived, for whoever runs handlers.
    pub(crate) calls: Vec<Incoming>,
    woken: Vec<Waker>,
    /// Memory that is not needed while the driver sleeps, on its way out of the lock.
    idle: Vec<Slip>,
    /// Whether the peer has more to say than it has credits for.
    wants_credits: bool,
    lent: Credits,
    given_back: Option<Credits>,
    asked: Option<Credits>,
    /// Who is woken when credits are asked for.
    told: Waker,
    /// Whether the completion queue is armed, and then whether for all completions.
    armed: Option<bool>,
    /// When something was posted last, and when to look whether it failed.
    flushed_at: Option<Instant>,
    look_at: Option<Instant>,
    /// Until when not to sleep.
    spin_until: Option<Instant>,
    spin: Duration,
    /// Messages that came, for whoever watches whether the peer is alive.
    heard: u64,
    /// Whether nothing can or shall be sent any more, and whether that is the queue pair's fault.
    broken: bool,
    failed: bool,
    /// Why the queue pair is of no more use, found while looking whether to sleep: for the next turn.
    found_failed: Option<String>,
}

/// What one lock of the connection brought.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whether something came of it that needs another turn.
    pub(crate) again: bool,
    /// Whether the link keeps memory for messages.
    has_spare: bool,
    /// When the next call of a client ends by itself.
    pub(crate) deadline: Option<Instant>,
}

impl<A: Adapter> Driver<A> {
    /// Begins to move a connection over what both sides agreed on.
    pub fn new(joined: JoinedConnection<A>) -> Self {
        let JoinedConnection { role, wire, share, polled, connection } = joined;
        let spin = share.host.options.spin;
        Self {
            role,
            wire,
            landings: Landings::new(share.owner, share.host.windows()),
            share,
            connection,
            polled,
            arrivals: Arrivals::default(),
            bodies: Bodies::default(),
            calls: Vec::new(),
            woken: Vec::new(),
            idle: Vec::new(),
            wants_credits: false,
            lent: Credits(0),
            given_back: None,
            asked: None,
            told: Waker::noop().clone(),
            armed: None,
            flushed_at: None,
            look_at: None,
            spin_until: None,
            spin,
            heard: 0,
            broken: false,
            failed: false,
            found_failed: None,
        }
    }

    /// The connection that it moves.
    pub fn connection(&self) -> &Arc<Connection<RdmaLink>> {
        &self.connection
    }

    /// The NIC that it works with.
    pub fn nic(&self) -> &A::Nic {
        self.wire.nic()
    }

    /// Calls that arrived since they were last taken: to be dispatched without any lock, before the next turn.
    pub fn take_calls(&mut self) -> std::vec::Drain<'_, Incoming> {
        self.calls.drain(..)
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// Why the connection is over. Nothing more is sent; what arrived before has been handed over.
    pub fn turn(&mut self, now: Instant, waker: &Waker) -> Result<Wake, Failure> {
        let polled = match self.found_failed.take() {
            Some(reason) => Err(reason),
            None => self.wire.poll(&mut self.polled),
        };
        let pool = Arc::clone(&self.share.host.pool);
        self.landings.take_closed(&mut self.polled, &pool);
        let mut again = polled == Ok(Came::More);
        if polled.is_ok() {
            self.landings.bind(&mut self.wire, &pool);
            again |= self.bodies.copy(&pool, self.wire.room(), waker);
        }
        self.lend(waker);
        let seen = self.look(now, waker)?;
        let came = polled.map_err(|reason| self.fail(reason))?;
        self.landings.close(&mut self.wire).map_err(|reason| self.fail(reason))?;
        let flushed = self.wire.flush(waker).map_err(|reason| self.fail(reason))?;
        if flushed {
            self.flushed_at = Some(now);
        }
        if flushed || came != Came::Nothing {
            self.spin_until = None;
        }
        again |= seen.again || !self.calls.is_empty() || self.landings.is_due();
        if again || self.wants_credits || self.lent > Credits(0) || self.given_back.is_some() {
            return Ok(Wake::Now);
        }
        self.rest(now, &seen)
    }

    /// Nothing is left to do: spins, arms, or sleeps.
    fn rest(&mut self, now: Instant, seen: &Seen) -> Result<Wake, Failure> {
        if self.spin > Duration::ZERO && now < *self.spin_until.get_or_insert(now + self.spin) {
            for _ in 0..LOOKS_PER_SPIN {
                if self.has_come() {
                    return Ok(Wake::Now);
                }
            }
            return Ok(Wake::Spin);
        }
        let all = self.wire.awaits_own() || self.wire.report_last;
        if self.armed.is_none_or(|armed_for_all| all && !armed_for_all) {
            self.wire.arm(all).map_err(|reason| self.fail(reason))?;
            self.armed = Some(all);
            // What completed before the arming wakes nobody.
            if self.has_come() {
                return Ok(Wake::Now);
            }
        }
        let is_recent = self.flushed_at.is_some_and(|at| now < at + LOOK_FOR);
        if !is_recent || !self.wire.is_busy() {
            self.look_at = None;
        } else if self.look_at.is_none_or(|at| at <= now) {
            self.wire.take_events().map_err(|reason| self.fail(reason))?;
            self.look_at = Some(now + LOOK);
        }
        // Whoever sleeps keeps nothing that others may wait for.
        self.wire.spent.clear();
        if seen.has_spare {
            let idle = &mut self.idle;
            self.connection.turn(&mut self.woken, |turn| turn.link().shrink(idle));
            idle.clear();
        }
        Ok(Wake::Bell(seen.deadline.into_iter().chain(self.look_at).min()))
    }

    /// Whether something has completed; the next turn acts on it.
    fn has_come(&mut self) -> bool {
        match self.wire.poll(&mut self.polled) {
            Ok(Came::Nothing) => false,
            Ok(_) => true,
            Err(reason) => {
                // What came before it counts.
                self.found_failed = Some(reason);
                true
            }
        }
    }

    /// Whether the completion queue is armed, so that the bell may ring.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// The bell rang: takes what rang it.
    ///
    /// # Errors
    /// Why the connection is over.
    pub fn rang(&mut self) -> Result<(), Failure> {
        self.armed = None;
        self.wire.take_wakes().map_err(|reason| self.fail(reason))
    }

    /// The queue pair is of no more use.
    pub(crate) fn fail(&mut self, reason: String) -> Failure {
        (self.broken, self.failed) = (true, true);
        Failure::new(reason)
    }

    /// Lends the peer more receives, and asks for some back, as the others of this device need them.
    fn lend(&mut self, waker: &Waker) {
        let (host, id) = (&self.share.host, self.share.id);
        if std::mem::take(&mut self.wants_credits) {
            self.lent.0 += host.receives.borrow(&*host.adapter, id).0;
        }
        if let Some(given) = self.given_back.take() {
            host.receives.handle_given_back(id, given);
        }
        if !self.told.will_wake(waker) {
            self.told.clone_from(waker);
            self.share.mail.register(waker);
        }
        self.asked = self.asked.take().or_else(|| self.share.mail.take_asked());
    }

    /// Everything that needs the connection's lock.
    fn look(&mut self, now: Instant, waker: &Waker) -> Result<Seen, Failure> {
        let Self { connection, wire, polled, arrivals, landings, bodies, calls, heard, .. } = self;
        let (role, lent, asked) = (self.role, &mut self.lent, &mut self.asked);
        let (wants_credits, given_back) = (&mut self.wants_credits, &mut self.given_back);
        let (idle, is_armed) = (&mut self.idle, self.armed.is_some());
        let before = polled.arrivals.len() as u64;
        let result = connection.turn(&mut self.woken, |turn| {
            let mut seen = Seen::default();
            turn.work_on();
            let had_room = turn.link().endpoint.has_room();
            landings.hand_over(turn);
            let mut events = |turn: &mut Turn<'_, RdmaLink>, landings: &mut Landings, bodies: &mut Bodies| {
                while let Some(event) = turn.link().endpoint.poll_event() {
                    match event {
                        Event::Ended(transfer, _) => {
                            turn.link().bodies.remove(&transfer);
                            bodies.forget(transfer);
                        }
                        Event::Landed(landed) => landings.landed(turn, landed),
                        Event::Freed(landing) => landings.freed(turn, landing),
                        Event::CreditsWanted => *wants_credits = true,
                        Event::CreditsGivenBack(credits) => *given_back = Some(credits),
                    }
                }
            };
            arrivals.handle(turn, role, &mut polled.arrivals, landings, calls, &mut |turn, landings| {
                events(turn, landings, bodies);
            })?;
            if *lent > Credits(0) {
                turn.link().endpoint.grow(std::mem::take(lent));
            }
            if let Some(credits) = asked.take()
                && !turn.link().endpoint.ask_back(credits)
            {
                *asked = Some(credits);
            }
            landings.answer(turn);
            seen.again |= bodies.advance(turn.link(), wire);
            if turn.next_deadline().is_some_and(|deadline| deadline.at() <= now) {
                turn.handle_deadlines(now);
            }
            turn.link().give_back(&mut wire.spent);
            let mut sent = 0;
            while wire.room() > 0 {
                if turn.link().push_piece() {
                    events(turn, landings, bodies);
                }
                let Some(transmit) = turn.link().poll_transmit() else { break };
                sent += 1;
                match transmit {
                    Transmit::Message(message) => wire.send(message),
                    Transmit::LastWrite(job) => bodies.write_last(&job, wire),
                }
                events(turn, landings, bodies);
            }
            if !had_room && turn.link().endpoint.has_room() {
                turn.made_room();
                // What waited for it may have gone out with it, such as the answer to a ping.
                seen.again = true;
            }
            landings.note_wanted(turn.link().take_wanted());
            seen.deadline = turn.next_deadline().map(|deadline| deadline.at());
            if is_armed && before == 0 && sent == 0 {
                turn.link().shrink(idle);
            }
            seen.has_spare = turn.link().has_spare();
            turn.wait(waker);
            Ok::<_, Failure>(seen)
        });
        self.idle.clear();
        *heard += before;
        result
    }

    /// The connection has been silent for long: gives up the memory that is bound for replies, and asks the device
    /// whether it has failed.
    ///
    /// # Errors
    /// Why the connection is over.
    pub(crate) fn doze(&mut self) -> Result<(), Failure> {
        let stock = self.connection.turn(&mut self.woken, |turn| turn.link().take_stock());
        self.landings.give_up(stock);
        self.wire.take_events().map_err(|reason| self.fail(reason))
    }

    /// Messages that came so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// Whether anything waits to be sent, or to be acknowledged.
    pub(crate) fn has_to_send(&mut self) -> bool {
        !self.broken && (self.wire.has_to_send() || self.with(|turn| turn.link().endpoint.has_to_send()))
    }

    /// Everything is said, and nothing more is listened to. Until its queue pair is gone a peer that goes on sending would
    /// take receives that others count on.
    pub(crate) fn stop(&mut self) {
        self.broken = true;
        self.wire.stop(&mut self.polled);
        self.polled.arrivals.clear();
        self.landings.take_closed(&mut self.polled, &self.share.host.pool);
    }

    /// Whether the queue pair failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.failed
    }

    /// As the driver: a turn of the connection for whoever owns its phases.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut Turn<'_, RdmaLink>) -> R) -> R {
        self.connection.turn(&mut self.woken, work)
    }

    /// Ends the connection's calls. The peer is told why when that helps it, and a server's replies still go out;
    /// otherwise a client's frames that have not left never will, since their calls begin again elsewhere.
    pub(crate) fn end(&mut self, failure: &Failure) {
        let (is_told, broken) = (failure.is_told(), self.broken);
        let drops = broken || (self.role == Role::Client && !is_told);
        self.connection.turn(&mut self.woken, |turn| {
            let mut delivered = turn.link().endpoint.delivered();
            if is_told && !broken {
                delivered = turn.link().endpoint.position();
                turn.say_goodbye(failure);
            }
            turn.fail(failure, delivered);
        });
        self.wire.report_last = true;
        if drops {
            self.broken = true;
            self.wire.forget();
        }
    }
}

/// A joined queue pair under a connection.
pub struct JoinedConnection<A: Adapter> {
    role: Role,
    wire: Wire<A::Nic>,
    share: Share<A>,
    polled: Polled,
    connection: Arc<Connection<RdmaLink>>,
}

impl<A: Adapter> Joined<A> {
    /// Puts a session over it.
    pub fn connection(
        self,
        role: Role,
        local: byway_runtime::Limits,
        remote: byway_runtime::Limits,
        info: Arc<byway_runtime::ConnectionInfo>,
    ) -> JoinedConnection<A> {
        let Self { wire, share, endpoint, polled } = self;
        let link = RdmaLink::new(endpoint, Arc::clone(&share.host.pool), share.host.options.large_from);
        JoinedConnection {
            role,
            wire,
            share,
            polled,
            connection: Connection::new(role, local, remote, link, info),
        }
    }
}

impl<A: Adapter> Drop for Driver<A> {
    /// A driver that is dropped before its end, with its runtime say, still ends its calls.
    fn drop(&mut self) {
        let failure = Failure::new("its task was dropped");
        let left = self.connection.turn(&mut self.woken, |turn| {
            let delivered = turn.link().endpoint.delivered();
            turn.fail(&failure, delivered);
            turn.link().close()
        });
        drop(left);
        // What had completed after the last turn.
        self.landings.take_closed(&mut self.polled, &self.share.host.pool);
        // What the device says last.
        let _ = self.wire.take_events();
        self.share.lost = Credits(self.wire.lost_receives());
    }
}

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Self {
        Self::told(error.to_string())
    }
}

/// What a call ends with whose message finds no memory here.
pub(crate) fn no_memory(reason: &str) -> Status {
    Status::resource_exhausted(format!("there is no memory for a message of this call: {reason}"))
}

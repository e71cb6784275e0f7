//! A session and its link under one lock.
//!
//! Owns [`Connection`]: what callers, handlers and the link's driver share. Callers encode into the link under the lock
//! and wake the driver once per batch; the driver takes a [`Turn`] for everything that arrived together.
//! Invariant: tasks are woken, and handlers polled, after the lock was released. Never: does I/O or waits under it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::context::ConnectionInfo;
use crate::deadline::Deadline;
use crate::invoke::{
    Call, CallRef, Carrier, Inbound, Invoke, NewCall, Part, ReadyFuture, SendError, StartError,
};
use crate::limits::Limits;
use crate::link::{Body, Link};
use crate::session::{CallId, ConnectionError, Event, Failure, Header, OpenError, Role, Session};

/// One side of a connection.
pub struct Connection<L: Link> {
    state: Mutex<State<L>>,
    /// Callers that wait to open a call.
    openers: AtomicUsize,
    may_open: Notify,
    info: Arc<ConnectionInfo>,
}

struct State<L> {
    session: Session,
    link: L,
    /// The driver's task, while it waits for something to do.
    driver: Option<Waker>,
}

impl<L: Link> Connection<L> {
    /// A connection over a link whose peers have exchanged what they accept.
    pub fn new(role: Role, local: Limits, remote: Limits, link: L, info: Arc<ConnectionInfo>) -> Arc<Self> {
        let session = Session::new(role, local, remote);
        Arc::new(Self {
            state: Mutex::new(State { session, link, driver: None }),
            openers: AtomicUsize::new(0),
            may_open: Notify::new(),
            info,
        })
    }

    /// Where the connection leads and how.
    pub fn info(&self) -> &Arc<ConnectionInfo> {
        &self.info
    }

    /// Why the connection takes no new calls, if so.
    pub fn closed(&self) -> Option<Status> {
        self.lock().session.closed()
    }

    /// As a client: says that no calls will follow, so that the driver closes the connection when the open ones end.
    pub fn retire(&self) {
        let driver = {
            let mut state = self.lock();
            state.session.retire();
            state.driver.take()
        };
        driver.into_iter().for_each(Waker::wake);
    }

    /// As the driver: does everything that is due under one lock, then wakes whom it concerns. `woken` is scratch
    /// space that the driver keeps.
    pub fn turn<R>(&self, woken: &mut Vec<Waker>, work: impl FnOnce(&mut Turn<'_, L>) -> R) -> R {
        let mut state = self.lock();
        let mut turn = Turn { state };
        let result = work(&mut turn);
        state = turn.state;
        state.session.take_woken(woken);
        let may_open = self.opener_may_go(&state);
        drop(state);
        if may_open {
            self.may_open.notify_one();
        }
        woken.drain(..).for_each(Waker::wake);
        result
    }

    /// As a caller or handler: one operation, which may have given the driver something to do.
    fn operate<R>(&self, work: impl FnOnce(&mut Session, &mut L) -> R) -> R {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (position, accepted) = (state.link.position(), state.session.accepts());
        let result = work(&mut state.session, &mut state.link);
        let pushed = state.link.position() != position;
        let resumes = !accepted && state.session.accepts();
        let driver = if pushed || resumes || state.session.is_done() { state.driver.take() } else { None };
        let woken = state.session.has_woken().then(|| {
            let mut woken = Vec::new();
            state.session.take_woken(&mut woken);
            woken
        });
        let may_open = self.opener_may_go(state);
        drop(guard);
        if may_open {
            self.may_open.notify_one();
        }
        if let Some(driver) = driver {
            driver.wake();
        }
        if let Some(woken) = woken {
            woken.into_iter().for_each(Waker::wake);
        }
        result
    }

    fn opener_may_go(&self, state: &State<L>) -> bool {
        self.openers.load(Ordering::Relaxed) > 0
            && (state.session.is_closing() || state.session.may_open(&state.link))
    }

    fn lock(&self) -> MutexGuard<'_, State<L>> {
        // A panic under the lock is a bug of ours; what it left behind is still the best there is for other calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until_may_open(&self) -> Result<(), Status> {
        let _opener = Opener::new(&self.openers);
        loop {
            let notified = self.may_open.notified();
            {
                let state = self.lock();
                if let Some(status) = state.session.closed() {
                    // Whoever else waits learns it from this one: nothing more may ever happen on the connection.
                    self.may_open.notify_one();
                    return Err(status);
                }
                if state.session.may_open(&state.link) {
                    // Whoever is told may not open a call after all, since its time is over. So the next one, if there is
                    // another beside this one, looks for itself.
                    if self.openers.load(Ordering::Relaxed) > 1 {
                        self.may_open.notify_one();
                    }
                    return Ok(());
                }
            }
            notified.await;
        }
    }
}

/// Counts a caller that waits to open a call.
struct Opener<'a>(&'a AtomicUsize);

impl<'a> Opener<'a> {
    fn new(openers: &'a AtomicUsize) -> Self {
        openers.fetch_add(1, Ordering::Relaxed);
        Self(openers)
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The driver's time with the session and its link, under the connection's lock.
pub struct Turn<'a, L: Link> {
    state: MutexGuard<'a, State<L>>,
}

impl<L: Link> Turn<'_, L> {
    /// The link.
    pub fn link(&mut self) -> &mut L {
        &mut self.state.link
    }

    /// Takes a frame that arrived.
    ///
    /// # Errors
    /// The peer broke the protocol; see [`Session::handle_frame`].
    pub fn frame(&mut self, header: &Header, head: Bytes, body: Body) -> Result<Event, ConnectionError> {
        let State { session, link, .. } = &mut *self.state;
        session.handle_frame(link, header, head, body)
    }

    /// Takes a body that was reported as [`Body::Later`].
    pub fn landed(&mut self, id: CallId, number: u64, message: Bytes) {
        self.state.session.handle_landed(id, number, message);
    }

    /// Whether a body that was reported as [`Body::Later`] still has a reader. A link asks before it grants memory for
    /// it: the call may have been over, or have ended since.
    pub fn awaits(&mut self, id: CallId, number: u64) -> bool {
        self.state.session.awaits(id, number)
    }

    /// When the next open call reaches its deadline, or earlier. The driver then calls
    /// [`handle_deadlines`](Self::handle_deadlines).
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.state.session.next_deadline()
    }

    /// Ends the calls whose deadlines have passed at `now`.
    pub fn handle_deadlines(&mut self, now: Instant) {
        let State { session, link, .. } = &mut *self.state;
        session.handle_deadlines(link, now);
    }

    /// Wakes senders: the link has room again.
    pub fn made_room(&mut self) {
        let State { session, link, .. } = &mut *self.state;
        session.handle_room(link);
    }

    /// Whether the driver of a server should go on to hand over frames. What a link exchanges for itself, such as credits
    /// and grants, it reads all the same: that is what makes room.
    pub fn accepts(&self) -> bool {
        self.state.session.accepts() && self.state.link.has_room()
    }

    /// Whether new calls are refused and every call and handler has finished.
    pub fn is_done(&self) -> bool {
        self.state.session.is_done()
    }

    /// Whether no call is open.
    pub fn is_idle(&self) -> bool {
        self.state.session.is_idle()
    }

    /// See [`Session::drain`].
    pub fn drain(&mut self) {
        let State { session, link, .. } = &mut *self.state;
        session.drain(link);
    }

    /// See [`Session::ping`].
    pub fn ping(&mut self) {
        let State { session, link, .. } = &mut *self.state;
        session.ping(link);
    }

    /// See [`Session::say_goodbye`].
    pub fn say_goodbye(&mut self, failure: &Failure) {
        let State { session, link, .. } = &mut *self.state;
        session.say_goodbye(link, failure);
    }

    /// See [`Session::end_calls`].
    pub fn end_calls(&mut self, status: &Status) {
        let State { session, link, .. } = &mut *self.state;
        session.end_calls(link, status);
    }

    /// See [`Session::finish`].
    pub fn finish(&mut self, id: CallId, status: &Status) {
        let State { session, link, .. } = &mut *self.state;
        session.finish(link, id, status);
    }

    /// See [`Session::handle_failure`].
    pub fn fail(&mut self, failure: &Failure, delivered: u64) {
        self.state.session.handle_failure(failure, delivered);
    }

    /// Notes that the driver is at work and will look again: what is pushed meanwhile need not wake it.
    pub fn work_on(&mut self) {
        self.state.driver = None;
    }

    /// Whether this side pauses reading because of handlers that have not finished.
    pub fn has_many_handlers(&self) -> bool {
        !self.state.session.accepts()
    }

    /// Leaves `waker` to be woken by the next frame that a caller or handler pushes.
    pub fn wait(&mut self, waker: &Waker) {
        match &self.state.driver {
            Some(known) if known.will_wake(waker) => {}
            _ => self.state.driver = Some(waker.clone()),
        }
    }
}

impl<L: Link> Carrier for Connection<L> {
    fn poll_receive(&self, id: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.operate(|session, link| session.poll_receive(link, id, cx.waker()))
    }

    fn poll_send(&self, id: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        self.operate(|session, link| session.poll_send(link, id, part, cx.waker()))
    }

    fn poll_over(&self, id: CallId, cx: &mut Context<'_>) -> Poll<()> {
        self.operate(|session, _| session.poll_over(id, cx.waker()))
    }

    fn finish(&self, id: CallId, status: &Status) {
        self.operate(|session, link| session.finish(link, id, status));
    }

    fn abandon(&self, id: CallId, status: &Status) {
        self.operate(|session, link| session.abandon(link, id, status));
    }
}

/// The client's side of a connection, as what begins calls. When it is dropped, the calls that are open go on and the
/// connection closes after the last one.
pub struct Caller<L: Link>(pub Arc<Connection<L>>);

impl<L: Link> Drop for Caller<L> {
    fn drop(&mut self) {
        self.0.retire();
    }
}

impl<L: Link> Invoke for Caller<L> {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        match self.0.operate(|session, link| session.open(link, call)) {
            Ok(id) => {
                Ok(Call::new(CallRef::new(Arc::clone(&self.0) as Arc<dyn Carrier>, id))
                    .awaited_by(call.waker))
            }
            Err(OpenError::Busy) => Err(StartError::Busy),
            Err(OpenError::Closed(status)) => Err(StartError::Closed(status)),
            Err(OpenError::Invalid(error)) => Err(StartError::Failed(error.status())),
        }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(self.0.until_may_open())
    }
}

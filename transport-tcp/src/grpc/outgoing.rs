//! What one side of a call still has to send.
//!
//! Owns [`Outgoing`], which callers or handlers fill and hyper empties through [`Sending`]. Invariant: a message is taken
//! only when hyper asks for one, and small ones up to a page together, so that flow control reaches whoever makes them.
//! Never: knows which side it is on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use byway_runtime::framing::append_framed;
use byway_runtime::output::Segments;
use byway_runtime::session::CallId;
use byway_runtime::{Encode, SendError, register};
use http::HeaderMap;
use http_body::Frame;
use tokio::task::AbortHandle;

use super::peer::Place;
use super::tasks::{self, Sent};

/// The only call of its carrier.
pub(super) const THIS: CallId = CallId(0);

/// Small messages that may wait together, in bytes.
const SMALL: usize = 4096;

/// The length of a message, in bytes.
///
/// # Errors
/// One that gRPC's framing cannot state.
pub(super) fn length(message: &dyn Encode) -> Result<usize, SendError> {
    let (len, limit) = (message.encoded_len(), u32::MAX as usize);
    if len <= limit { Ok(len) } else { Err(SendError::TooLarge { len, limit }) }
}

/// The part of a call that is to be sent, and whether hyper still wants it.
pub(super) struct Outgoing {
    messages: Segments,
    trailers: Option<HeaderMap>,
    phase: Phase,
    /// Whether hyper has looked for a message that was not there, or not looked yet.
    wanted: bool,
    /// hyper's task, which waits for more.
    reader: Option<Waker>,
    /// Who waits for room.
    writer: Option<Waker>,
    /// Who waits for the call to be over.
    observer: Option<Waker>,
    /// The place of a call that its client has given up, for as long as hyper has to do with it.
    place: Option<Place>,
    /// Whether the task that sends it is to be known, and hyper has not looked yet.
    is_new: bool,
    /// hyper's task, where it has one of its own for this.
    task: Option<AbortHandle>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// More may follow.
    Open,
    /// What waits is the last.
    Ended,
    /// The stream is to be reset.
    Reset,
    /// hyper has taken everything, or wants no more.
    Gone,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            messages: Segments::default(),
            trailers: None,
            phase: Phase::Open,
            wanted: true,
            reader: None,
            writer: None,
            observer: None,
            place: None,
            is_new: false,
            task: None,
        }
    }

    /// What a client has to send.
    pub(super) fn of_client() -> Self {
        Self { is_new: true, ..Self::new() }
    }

    /// Whether nothing more may be appended.
    pub(super) fn is_closed(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Whether a message of `len` bytes may be appended now; otherwise `waker` is woken when one may.
    pub(super) fn has_room(&mut self, len: usize, waker: &Waker) -> bool {
        let has_room = match self.messages.len() {
            0 => self.wanted,
            waiting => waiting + len <= SMALL,
        };
        if !has_room {
            register(&mut self.writer, waker);
        }
        has_room
    }

    /// Appends a message of `len` bytes.
    pub(super) fn push(&mut self, message: &dyn Encode, len: usize) {
        append_framed(&mut self.messages, message, len);
        self.wanted = false;
    }

    /// Nothing follows but these trailers.
    pub(super) fn end(&mut self, trailers: Option<HeaderMap>) {
        self.trailers = trailers;
        self.phase = Phase::Ended;
    }

    /// Whether nothing is left to send, and nothing will be.
    pub(super) fn is_all_sent(&self) -> bool {
        self.phase == Phase::Ended && self.messages.is_empty() && self.trailers.is_none()
    }

    /// Gives the call up: nothing more is sent, and the peer is told unless it has everything.
    pub(super) fn reset(&mut self) {
        if self.phase != Phase::Gone && !self.is_all_sent() {
            self.phase = Phase::Reset;
            self.messages = Segments::default();
        }
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Keeps the place of a call that was given up until hyper lets go of it; returns it when hyper has.
    pub(super) fn keep(&mut self, place: Option<Place>) -> Option<Place> {
        if place.is_none() || self.phase == Phase::Gone {
            return place;
        }
        self.place = place;
        None
    }

    /// Ready once nothing more may be appended, whoever saw to that.
    pub(super) fn poll_closed(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        register(&mut self.observer, waker);
        Poll::Pending
    }

    /// hyper's task, which is to be woken after something was appended.
    pub(super) fn take_reader(&mut self) -> Option<Waker> {
        self.reader.take()
    }

    /// Everybody who waits for something.
    pub(super) fn take_waiting(&mut self) -> [Option<Waker>; 3] {
        [self.reader.take(), self.writer.take(), self.observer.take()]
    }

    /// Who waits for the call to be over.
    pub(super) fn take_observer(&mut self) -> Option<Waker> {
        self.observer.take()
    }

    fn poll_next(&mut self, waker: &Waker) -> Poll<Option<Result<Frame<Segments>, h2::Error>>> {
        if !self.messages.is_empty() && self.phase != Phase::Reset {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.messages)))));
        }
        match self.phase {
            Phase::Open => {
                self.wanted = true;
                register(&mut self.reader, waker);
                Poll::Pending
            }
            Phase::Ended => {
                let trailers = self.trailers.take();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Phase::Reset => {
                self.phase = Phase::Gone;
                Poll::Ready(Some(Err(h2::Reason::CANCEL.into())))
            }
            Phase::Gone => Poll::Ready(None),
        }
    }
}

/// A call over HTTP/2: what it sends, and what is particular to its side.
pub(super) struct Stream<T> {
    outgoing: Mutex<Outgoing>,
    rest: Mutex<T>,
}

impl<T> Stream<T> {
    pub(super) fn new(outgoing: Outgoing, rest: T) -> Arc<Self> {
        Arc::new(Self { outgoing: Mutex::new(outgoing), rest: Mutex::new(rest) })
    }

    /// Never taken by who holds [`rest`](Self::rest).
    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rest(&self) -> MutexGuard<'_, T> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What hyper reads the outgoing half of a call from. When hyper drops it, the call wants no more.
pub(super) struct Sending<T>(pub(super) Arc<Stream<T>>);

impl<T: Send + 'static> Sent for Stream<T> {
    fn sent_by(&self, task: AbortHandle) {
        let mut outgoing = self.outgoing();
        match outgoing.phase {
            Phase::Open | Phase::Ended => outgoing.task = Some(task),
            Phase::Reset => task.abort(),
            Phase::Gone => {}
        }
    }
}

impl<T: Send + 'static> http_body::Body for Sending<T> {
    type Data = Segments;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Segments>, h2::Error>>> {
        let (next, writer) = {
            let mut outgoing = self.0.outgoing();
            if std::mem::take(&mut outgoing.is_new) {
                let stream: Weak<Stream<T>> = Arc::downgrade(&self.0);
                tasks::begins(stream);
            }
            let next = outgoing.poll_next(cx.waker());
            (next, if outgoing.wanted { outgoing.writer.take() } else { None })
        };
        writer.into_iter().for_each(Waker::wake);
        next
    }

    fn is_end_stream(&self) -> bool {
        self.0.outgoing().is_all_sent()
    }
}

impl<T> Drop for Sending<T> {
    fn drop(&mut self) {
        tasks::is_over();
        let (woken, _place) = {
            let mut outgoing = self.0.outgoing();
            outgoing.phase = Phase::Gone;
            outgoing.task = None;
            outgoing.messages = Segments::default();
            (outgoing.take_waiting(), outgoing.place.take())
        };
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

//! The client's side of a call over HTTP/2.
//!
//! Owns [`Calling`], the carrier of one call: the reply is read from hyper when its reader asks, requests wait in
//! [`Outgoing`](super::outgoing::Outgoing). Invariants: a call that is given up is reset, and so is what one still sends that
//! the server has ended; it keeps its place among the open ones until its end was read, or until hyper has let go of it.
//! Never: sends a call again.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{MutexGuard, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use byway_runtime::framing::{Acceptance, Messages};
use byway_runtime::session::CallId;
use byway_runtime::{Carrier, Deadline, End, Inbound, NewCall, Part, SendError, register};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tonic::Status;

use super::headers::{ReplyHead, received_end, received_reply};
use super::outgoing::{Sending, Stream, length};
use super::peer::Place;
use super::status::{failure, reply_failed};

/// Bytes of a reply that are kept for its reader when its time is over: more than a window that is not set by hand, and an
/// end to what a server sends that goes on.
const LEFT_MAX: usize = 1 << 20;

/// What comes of a request that hyper was handed.
pub(super) type ResponseFuture = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Sending<ClientHalf>>>>> + Send>,
>;

/// What a client keeps of a call beside what it sends.
pub(super) struct ClientHalf {
    phase: Phase,
    deadline: Option<Deadline>,
    /// Runs out at the deadline, while somebody waits for the reply to begin.
    timer: Option<Pin<Box<Sleep>>>,
    /// Ends the call at the deadline, once the reply has begun: its reader may have no reason to wait for more.
    watch: Option<AbortHandle>,
    /// The call itself.
    call: Weak<Calling>,
    /// The task that waits for the reply.
    reader: Option<Waker>,
    acceptance: Acceptance,
    /// Whether the reply is one message: its end is then looked for at once.
    is_single: bool,
    place: Option<Place>,
}

/// How far the reply is.
#[expect(
    clippy::large_enum_variant,
    reason = "every call comes to the largest, which a box would make dearer"
)]
enum Phase {
    /// Nothing has come.
    Waiting(ResponseFuture),
    /// It has begun.
    Begun(Messages<Incoming>),
    /// It has ended for this side; what came of it, and why nothing follows, is still to be told.
    Left(VecDeque<Inbound>),
    /// Nothing follows.
    Over,
}

impl ClientHalf {
    pub(super) fn new(call: &NewCall<'_>, acceptance: Acceptance, place: Place) -> Self {
        Self {
            phase: Phase::Over,
            deadline: call.deadline,
            timer: None,
            watch: None,
            call: Weak::new(),
            reader: None,
            acceptance,
            is_single: call.expected.single,
            place: Some(place),
        }
    }

    /// The request of `call` was handed to hyper; `response` is what comes of it.
    pub(super) fn wait_for(&mut self, response: ResponseFuture, call: Weak<Calling>) {
        self.phase = Phase::Waiting(response);
        self.call = call;
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        let arrived = match &mut self.phase {
            Phase::Waiting(response) => match ready!(response.as_mut().poll(cx)) {
                Ok(response) => self.begun(response, cx),
                Err(error) => Inbound { end: Some(not_answered(error)), ..Inbound::default() },
            },
            Phase::Begun(messages) => ready!(poll_messages(messages, self.is_single, cx)),
            Phase::Left(left) => left.pop_front().unwrap_or_else(over),
            Phase::Over => over(),
        };
        if arrived.end.is_some() {
            self.close();
        } else if matches!(self.phase, Phase::Begun(_)) {
            self.watch_deadline();
        }
        Poll::Ready(arrived)
    }

    fn begun(&mut self, response: Response<Incoming>, cx: &mut Context<'_>) -> Inbound {
        let (parts, body) = response.into_parts();
        match received_reply(parts.status, parts.headers) {
            ReplyHead::Ended(outcome) => Inbound { end: Some(End::Outcome(outcome)), ..Inbound::default() },
            ReplyHead::Begun(metadata) => {
                let mut messages = Messages::new(body, self.acceptance.clone(), reply_failed);
                let arrived = match poll_messages(&mut messages, self.is_single, cx) {
                    Poll::Ready(arrived) => arrived,
                    Poll::Pending => Inbound::default(),
                };
                self.phase = Phase::Begun(messages);
                Inbound { head: Some(metadata), ..arrived }
            }
        }
    }

    /// Whether the deadline has passed; until then it wakes the task.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline.filter(|_| self.watch.is_none()) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.at())));
        timer.as_mut().poll(cx)
    }

    /// Sees to it that a reply that has begun ends at its deadline.
    fn watch_deadline(&mut self) {
        let Some(deadline) = self.deadline.filter(|_| self.watch.is_none()) else { return };
        let call = Weak::clone(&self.call);
        self.timer = None;
        self.watch = Some(
            tokio::spawn(async move {
                tokio::time::sleep_until(deadline.at()).await;
                if let Some(call) = call.upgrade() {
                    call.expire();
                }
            })
            .abort_handle(),
        );
    }

    /// Nobody waits for the deadline any more.
    fn forget_deadline(&mut self) {
        self.timer = None;
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }

    fn close(&mut self) {
        self.phase = Phase::Over;
        self.forget_deadline();
        self.place = None;
    }
}

/// The next message. With the only one of a reply its end, if it is there: it often comes as a whole.
fn poll_messages(messages: &mut Messages<Incoming>, is_single: bool, cx: &mut Context<'_>) -> Poll<Inbound> {
    let message = match ready!(messages.poll_message(cx)) {
        Ok(message) => message,
        Err(status) => return Poll::Ready(failed(status)),
    };
    let has_ended = match message {
        None => Ok(true),
        Some(_) if is_single => messages.looks_ended(cx),
        Some(_) => Ok(false),
    };
    let end = match has_ended {
        Ok(true) => Some(trailers_of(messages)),
        Ok(false) => None,
        Err(status) => Some(End::Outcome(Err(status))),
    };
    Poll::Ready(Inbound { head: None, message, end })
}

fn trailers_of(messages: &mut Messages<Incoming>) -> End {
    End::Outcome(received_end(messages.take_trailers().unwrap_or_default()))
}

fn failed(status: Status) -> Inbound {
    Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() }
}

fn over() -> Inbound {
    failed(Status::cancelled("the call is over"))
}

fn not_answered(error: TrySendError<Request<Sending<ClientHalf>>>) -> End {
    let never_sent = error.message().is_some();
    let lost = failure(error.error());
    if never_sent || lost.never_seen { End::NotSent(lost.status) } else { End::Outcome(Err(lost.status)) }
}

/// A call that is made.
pub(super) type Calling = Stream<ClientHalf>;

impl Calling {
    /// Gives the call up; `status` is what its reader finds.
    fn give_up(&self, status: Option<Status>) {
        let half = self.rest();
        match status {
            Some(_) if matches!(half.phase, Phase::Over) => {}
            Some(status) => self.leave(half, Phase::Left([failed(status)].into())),
            None => self.leave(half, Phase::Over),
        }
    }

    /// The deadline has passed, and the reply has begun. What came before that is its reader's, and so is its end.
    fn expire(&self) {
        let mut half = self.rest();
        let Phase::Begun(messages) = &mut half.phase else { return };
        let (mut left, mut len) = (VecDeque::new(), 0);
        while left.back().is_none_or(|part: &Inbound| part.end.is_none()) {
            let arrived = poll_messages(messages, false, &mut Context::from_waker(Waker::noop()));
            let arrived = match arrived {
                Poll::Ready(arrived) if len < LEFT_MAX => arrived,
                _ => failed(Deadline::status()),
            };
            len += arrived.message.as_ref().map_or(0, Bytes::len);
            left.push_back(arrived);
        }
        self.leave(half, Phase::Left(left));
    }

    fn leave(&self, mut half: MutexGuard<'_, ClientHalf>, left: Phase) {
        let phase = std::mem::replace(&mut half.phase, left);
        half.forget_deadline();
        let (place, reader) = (half.place.take(), half.reader.take());
        drop(half);
        // What hyper holds of the call is dropped without the locks: it takes them itself.
        drop(phase);
        self.stop_sending(place);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Resets the stream unless hyper has sent everything.
    fn stop_sending(&self, place: Option<Place>) {
        let (woken, _free) = {
            let mut outgoing = self.outgoing();
            outgoing.reset();
            (outgoing.take_waiting(), outgoing.keep(place))
        };
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Carrier for Calling {
    fn poll_receive(&self, _: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        let (reply, passed) = {
            let mut half = self.rest();
            let reply = half.poll_reply(cx);
            if reply.is_pending() {
                register(&mut half.reader, cx.waker());
                (reply, half.poll_deadline(cx))
            } else {
                (reply, Poll::Pending)
            }
        };
        if let Poll::Ready(arrived) = reply {
            if arrived.end.is_some() {
                self.stop_sending(None);
            }
            return Poll::Ready(arrived);
        }
        ready!(passed);
        self.give_up(None);
        Poll::Ready(Inbound { end: Some(End::Outcome(Err(Deadline::status()))), ..Inbound::default() })
    }

    fn poll_send(&self, _: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return Poll::Ready(Err(SendError::Over));
        }
        if let Some(message) = part.message {
            let len = length(message)?;
            if !outgoing.has_room(len, cx.waker()) {
                return Poll::Pending;
            }
            outgoing.push(message, len);
        }
        if part.end.is_some() {
            outgoing.end(None);
        }
        let reader = outgoing.take_reader();
        drop(outgoing);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn poll_over(&self, _: CallId, cx: &mut Context<'_>) -> Poll<()> {
        self.outgoing().poll_closed(cx.waker())
    }

    fn finish(&self, _: CallId, status: &Status) {
        self.give_up(Some(status.clone()));
    }

    fn abandon(&self, _: CallId, _: &Status) {
        self.give_up(None);
    }
}

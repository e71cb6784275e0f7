//! The client's side of a call over HTTP/2.
//!
//! Owns [`Calling`], the carrier of one call: the reply is read from hyper when its reader asks, requests wait in
//! [`Outgoing`](super::outgoing::Outgoing). Invariants: a call that is given up is reset; it keeps its place among the open
//! ones until its end was read. Never: sends a call again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use byway_runtime::framing::{Acceptance, Messages};
use byway_runtime::session::CallId;
use byway_runtime::{Carrier, Deadline, End, Inbound, Part, SendError};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::Sleep;
use tonic::Status;

use super::headers::{ReplyHead, received_end, received_reply};
use super::outgoing::{Sending, Stream};
use super::peer::Place;
use super::status::{failure, reply_failed};

/// What comes of a request that hyper was handed.
pub(super) type ResponseFuture = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Sending<ClientHalf>>>>> + Send>,
>;

/// What a client keeps of a call beside what it sends.
pub(super) struct ClientHalf {
    phase: Phase,
    deadline: Option<Deadline>,
    /// Runs out at the deadline, once somebody waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// The task that waits for the reply.
    reader: Option<Waker>,
    acceptance: Acceptance,
    _place: Option<Place>,
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
    /// It has ended for this side, which is still to be told.
    Ended(Status),
    /// Nothing follows.
    Over,
}

impl ClientHalf {
    pub(super) fn new(deadline: Option<Deadline>, acceptance: Acceptance, place: Place) -> Self {
        Self { phase: Phase::Over, deadline, timer: None, reader: None, acceptance, _place: Some(place) }
    }

    /// The request was handed to hyper; `response` is what comes of it.
    pub(super) fn wait_for(&mut self, response: ResponseFuture) {
        self.phase = Phase::Waiting(response);
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        let arrived = match &mut self.phase {
            Phase::Waiting(response) => match ready!(response.as_mut().poll(cx)) {
                Ok(response) => self.begun(response, cx),
                Err(error) => Inbound { end: Some(not_answered(error)), ..Inbound::default() },
            },
            Phase::Begun(messages) => ready!(poll_messages(messages, cx)),
            Phase::Ended(status) => {
                let status = std::mem::replace(status, Status::ok(""));
                Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() }
            }
            Phase::Over => {
                let status = Status::cancelled("the call is over");
                Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() }
            }
        };
        Poll::Ready(arrived)
    }

    fn begun(&mut self, response: Response<Incoming>, cx: &mut Context<'_>) -> Inbound {
        let (parts, body) = response.into_parts();
        match received_reply(parts.status, parts.headers) {
            ReplyHead::Ended(outcome) => Inbound { end: Some(End::Outcome(outcome)), ..Inbound::default() },
            ReplyHead::Begun(metadata) => {
                let mut messages = Messages::new(body, self.acceptance.clone(), reply_failed);
                // The reply to a unary call often comes as a whole.
                let arrived = match poll_messages(&mut messages, cx) {
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
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.at())));
        timer.as_mut().poll(cx)
    }
}

/// The next message, and the end if it is there.
fn poll_messages(messages: &mut Messages<Incoming>, cx: &mut Context<'_>) -> Poll<Inbound> {
    let message = match ready!(messages.poll_message(cx)) {
        Ok(message) => message,
        Err(status) => {
            return Poll::Ready(Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() });
        }
    };
    let end = if message.is_none() { Some(trailers_of(messages)) } else { None };
    Poll::Ready(Inbound { head: None, message, end })
}

fn trailers_of(messages: &mut Messages<Incoming>) -> End {
    End::Outcome(received_end(messages.take_trailers().unwrap_or_default()))
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
        // What hyper holds of the call is dropped without the locks: it takes them itself.
        let (phase, reader) = {
            let mut half = self.rest();
            if matches!(half.phase, Phase::Over) && status.is_some() {
                return;
            }
            let left = status.map_or(Phase::Over, Phase::Ended);
            let phase = std::mem::replace(&mut half.phase, left);
            half.timer = None;
            half._place = None;
            (phase, half.reader.take())
        };
        drop(phase);
        let woken = {
            let mut outgoing = self.outgoing();
            outgoing.reset();
            [reader, outgoing.take_reader(), outgoing.take_observer()]
        };
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Carrier for Calling {
    fn poll_receive(&self, _: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        let arrived = {
            let mut half = self.rest();
            // Whoever asks need not be woken for what it is told now.
            half.reader = None;
            match half.poll_reply(cx) {
                Poll::Ready(arrived) => arrived,
                Poll::Pending => {
                    half.reader = Some(cx.waker().clone());
                    ready!(half.poll_deadline(cx));
                    Inbound { end: Some(End::Outcome(Err(Deadline::status()))), ..Inbound::default() }
                }
            }
        };
        if arrived.end.is_some() {
            // With its end the call is over, also when the server has not waited for all requests.
            self.give_up(None);
        }
        Poll::Ready(arrived)
    }

    fn poll_send(&self, _: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return Poll::Ready(Err(SendError::Over));
        }
        if let Some(message) = part.message {
            let len = message.encoded_len();
            if u32::try_from(len).is_err() {
                return Poll::Ready(Err(SendError::TooLarge { len, limit: u32::MAX as usize }));
            }
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

//! The server's side of a call over HTTP/2.
//!
//! Owns [`Serving`], the carrier of one call: what comes is read from hyper when a handler asks, what goes waits in
//! [`Outgoing`]. Invariant: the call gets exactly one end, in its headers when nothing came before it and in its trailers
//! otherwise. Never: knows a handler.

use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

use byway_runtime::framing::Messages;
use byway_runtime::session::{CallId, Metadata};
use byway_runtime::{Carrier, End, Inbound, Part, SendError, register};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::headers::{GRPC, over, reply_end, reply_head};
use super::outgoing::{Outgoing, Stream, length};

/// What the pseudo-header of a reply counts, in bytes.
const STATUS_LINE: usize = 42;

/// A call that is served.
pub(super) type Serving = Stream<ServerHalf>;

/// What a server keeps of a call beside what it sends.
pub(super) struct ServerHalf {
    messages: Messages<Incoming>,
    /// Whether the end of the request, or its failure, was handed over.
    received: bool,
    answer: Answer,
    max_headers: usize,
    /// hyper's task, which waits for the reply to begin.
    waiting: Option<Waker>,
}

/// How far the reply is.
enum Answer {
    Nothing,
    /// Its headers are there, for hyper to take.
    Begun(HeaderMap),
    Taken,
}

impl ServerHalf {
    pub(super) fn new(messages: Messages<Incoming>, max_headers: usize) -> Self {
        Self { messages, received: false, answer: Answer::Nothing, max_headers, waiting: None }
    }

    /// # Errors
    /// Headers that are larger than the client accepts.
    fn check(&self, headers: &HeaderMap) -> Result<(), SendError> {
        let limit = self.max_headers;
        over(headers, STATUS_LINE, limit).map_or(Ok(()), |len| Err(SendError::HeadTooLarge { len, limit }))
    }

    fn has_not_begun(&self) -> bool {
        matches!(self.answer, Answer::Nothing)
    }

    /// The headers of the reply, once there are any.
    pub(super) fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<HeaderMap> {
        match std::mem::replace(&mut self.answer, Answer::Taken) {
            Answer::Begun(headers) => Poll::Ready(headers),
            other => {
                self.answer = other;
                register(&mut self.waiting, cx.waker());
                Poll::Pending
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        if self.received {
            let over = End::Outcome(Err(Status::cancelled("the call is over")));
            return Poll::Ready(Inbound { end: Some(over), ..Inbound::default() });
        }
        let Poll::Ready(next) = self.messages.poll_message(cx) else { return Poll::Pending };
        let (message, end) = match next {
            Ok(Some(message)) => (Some(message), self.messages.is_at_end().then(|| Ok(Metadata::default()))),
            Ok(None) => (None, Some(Ok(Metadata::default()))),
            Err(status) => (None, Some(Err(status))),
        };
        self.received = end.is_some();
        Poll::Ready(Inbound { head: None, message, end: end.map(End::Outcome) })
    }
}

impl Serving {
    /// Ends the call with `status` unless it has ended.
    fn end(&self, status: &Status) {
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return;
        }
        let mut half = self.rest();
        let mut headers = reply_end(Err(status));
        if let Err(error) = half.check(&headers) {
            headers = reply_end(Err(&error.status()));
        }
        if half.has_not_begun() {
            half.answer = Answer::Begun(alone(headers));
            outgoing.end(None);
        } else {
            outgoing.end(Some(headers));
        }
        self.wake(outgoing, half);
    }

    /// Wakes hyper's task, wherever it waits. The order of the locks is the same everywhere.
    fn wake(&self, mut outgoing: MutexGuard<'_, Outgoing>, mut half: MutexGuard<'_, ServerHalf>) {
        let woken = [outgoing.take_reader(), half.waiting.take()];
        drop(half);
        drop(outgoing);
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Carrier for Serving {
    fn poll_receive(&self, _: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.rest().poll_receive(cx)
    }

    fn poll_send(&self, _: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let message = part.message.map(|message| Ok((message, length(message)?))).transpose()?;
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return Poll::Ready(Err(SendError::Over));
        }
        let mut half = self.rest();
        let begins = half.has_not_begun();
        // An end that nothing comes before is in the headers, and is all there is.
        let is_alone = message.is_none() && part.head.is_none_or(MetadataMap::is_empty) && part.end.is_some();
        let head = (begins && !is_alone).then(|| reply_head(part.head));
        let end = part.end.map(reply_end);
        for headers in head.iter().chain(&end) {
            if let Err(error) = half.check(headers) {
                return Poll::Ready(Err(error));
            }
        }
        if let Some((message, len)) = message {
            if !outgoing.has_room(len, cx.waker()) {
                return Poll::Pending;
            }
            outgoing.push(message, len);
        }
        match (head, end) {
            (None, Some(end)) if begins => {
                half.answer = Answer::Begun(alone(end));
                outgoing.end(None);
            }
            (head, end) => {
                if let Some(head) = head {
                    half.answer = Answer::Begun(head);
                }
                if end.is_some() {
                    outgoing.end(end);
                }
            }
        }
        self.wake(outgoing, half);
        Poll::Ready(Ok(()))
    }

    fn limit_messages(&self, _: CallId, max: usize) {
        self.rest().messages.limit(max);
    }

    fn poll_over(&self, _: CallId, cx: &mut Context<'_>) -> Poll<()> {
        self.outgoing().poll_closed(cx.waker())
    }

    fn finish(&self, _: CallId, status: &Status) {
        self.end(status);
        let observer = self.outgoing().take_observer();
        observer.into_iter().for_each(Waker::wake);
    }

    fn abandon(&self, _: CallId, status: &Status) {
        self.end(status);
    }
}

/// The headers of a reply that consists of its end.
pub(super) fn alone(mut headers: HeaderMap) -> HeaderMap {
    headers.insert(CONTENT_TYPE, GRPC);
    headers
}

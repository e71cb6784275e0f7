//! What generated clients call: the four kinds of calls, above whatever carries them.
//!
//! Owns a client's policy: time limits (what carries a call keeps its deadline), size limits, retries of what was never sent, cardinality. Invariant: a call is
//! sent a second time only when the first was never sent. Never: knows a transport.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Extensions;
use prost::Message;
use tokio::task::AbortHandle;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::codec::{Encode, decode};
use crate::deadline::Deadline;
use crate::invoke::{Call, CallRef, End, Expected, Inbound, Invoke, NewCall, Part, SendError, StartError};
use crate::limits::DEFAULT_MAX_DECODING;
use crate::method::MethodDescriptor;
use crate::session::{Metadata, RequestHead};
use crate::streaming::{Source, StreamingParts, too_large};

/// How often a call that was never sent is sent again.
///
/// More than one, since a pool of servers that is being restarted may refuse several times; bounded, since every
/// attempt after a refusal opens a connection.
const RESENDS: usize = 4;

/// What a generated client applies to each of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Largest reply, in bytes. Default 4 MiB, as in tonic.
    pub max_decoding_message_size: Option<usize>,
    /// Largest request, in bytes. Default: what the server accepts.
    pub max_encoding_message_size: Option<usize>,
}

impl CallOptions {
    fn decoding_limit(&self) -> usize {
        self.max_decoding_message_size.unwrap_or(DEFAULT_MAX_DECODING)
    }

    fn expected(&self, single: bool) -> Expected {
        Expected { max_message: self.decoding_limit(), single }
    }

    fn check_request(&self, message: &dyn Encode) -> Result<(), Status> {
        check_encoding(message, self.max_encoding_message_size)
    }
}

/// # Errors
/// `RESOURCE_EXHAUSTED` when `message` is larger than its sender allows itself.
pub(crate) fn check_encoding(message: &dyn Encode, limit: Option<usize>) -> Result<(), Status> {
    let Some(limit) = limit else { return Ok(()) };
    let len = message.encoded_len();
    if len <= limit {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "a message of {len} bytes is larger than the {limit} bytes that may be sent (max_encoding_message_size)"
    )))
}

/// One request, one reply.
///
/// # Errors
/// The status that the call ended with.
pub fn unary<I: Invoke, Req: Message, Rep: Message + Default>(
    invoke: &I,
    method: &MethodDescriptor,
    options: CallOptions,
    request: Request<Req>,
) -> impl Future<Output = Result<Response<Rep>, Status>> {
    // Taken apart outside, so that the future keeps the parts where they are first put, and does not move them again.
    let (mut metadata, _, message) = request.into_parts();
    async move {
        options.check_request(&message)?;
        let limit = TimeLimit::take(invoke, &mut metadata)?;
        let mut request =
            Outgoing { path: method.path(), limit, metadata: &metadata, expected: options.expected(true) };
        let mut resends = 0;
        let (head, message) = loop {
            let (mut call, mut reply) = (None, SingleReply::default());
            let ended = poll_fn(|cx| {
                let call = match &mut call {
                    Some(call) => call,
                    none => none.insert(request.start(invoke, Some(&message), true, cx.waker())?),
                };
                reply.poll(call, options.decoding_limit(), cx).map_err(Attempt::Ended)
            });
            match ended.await {
                Ok(reply) => break reply,
                Err(Attempt::Ended(Ended::NotSent(_))) if resends < RESENDS => resends += 1,
                Err(Attempt::Ended(ended)) => return Err(ended.into_status()),
                Err(Attempt::Busy) => request.until_ready(invoke).await?,
            }
            request.has_waited();
        };
        // The map of the request does for the reply: an empty one is not free either.
        let metadata = if head.is_empty() && metadata.is_empty() { metadata } else { head.into_map() };
        Ok(Response::from_parts(metadata, decode(message)?, Extensions::new()))
    }
}

/// Many requests, one reply.
///
/// # Errors
/// The status that the call ended with.
pub async fn client_streaming<I, S, Rep>(
    invoke: &I,
    method: &MethodDescriptor,
    options: CallOptions,
    request: Request<S>,
) -> Result<Response<Rep>, Status>
where
    I: Invoke,
    S: Stream<Item: Message> + Send + 'static,
    Rep: Message + Default,
{
    let (mut metadata, _, messages) = request.into_parts();
    let limit = TimeLimit::take(invoke, &mut metadata)?;
    let mut request =
        Outgoing { path: method.path(), limit, metadata: &metadata, expected: options.expected(true) };
    let mut call = start(invoke, &mut request, None, false).await?;
    let _upload = Upload::spawn(call.by_ref(), messages, options);
    single_reply(&mut call, options.decoding_limit()).await.map_err(Ended::into_status)
}

/// One request, many replies.
///
/// # Errors
/// The status that the call ended with before its first reply.
pub async fn server_streaming<I: Invoke, Req: Message, Rep: Message + Default + 'static>(
    invoke: &I,
    method: &MethodDescriptor,
    options: CallOptions,
    request: Request<Req>,
) -> Result<Response<Streaming<Rep>>, Status> {
    let (mut metadata, _, message) = request.into_parts();
    options.check_request(&message)?;
    let limit = TimeLimit::take(invoke, &mut metadata)?;
    let mut request =
        Outgoing { path: method.path(), limit, metadata: &metadata, expected: options.expected(false) };
    let mut resends = 0;
    loop {
        let call = start(invoke, &mut request, Some(&message), true).await?;
        match many_replies(Replies { call, _upload: None }, options).await {
            Err(Ended::NotSent(_)) if resends < RESENDS => resends += 1,
            Err(ended) => return Err(ended.into_status()),
            Ok(response) => return Ok(response),
        }
        request.has_waited();
    }
}

/// Many requests, many replies.
///
/// # Errors
/// The status that the call ended with before its first reply.
pub async fn streaming<I, S, Rep>(
    invoke: &I,
    method: &MethodDescriptor,
    options: CallOptions,
    request: Request<S>,
) -> Result<Response<Streaming<Rep>>, Status>
where
    I: Invoke,
    S: Stream<Item: Message> + Send + 'static,
    Rep: Message + Default + 'static,
{
    let (mut metadata, _, messages) = request.into_parts();
    let limit = TimeLimit::take(invoke, &mut metadata)?;
    let mut request =
        Outgoing { path: method.path(), limit, metadata: &metadata, expected: options.expected(false) };
    let call = start(invoke, &mut request, None, false).await?;
    let upload = Upload::spawn(call.by_ref(), messages, options);
    many_replies(Replies { call, _upload: Some(upload) }, options).await.map_err(Ended::into_status)
}

/// Why an attempt at a call has no reply.
enum Attempt {
    /// It could not begin; it is worth to wait until it can.
    Busy,
    Ended(Ended),
}

impl From<Status> for Attempt {
    fn from(status: Status) -> Self {
        Self::Ended(status.into())
    }
}

/// How a call ended that has no reply.
enum Ended {
    NotSent(Status),
    Status(Status),
}

impl Ended {
    fn into_status(self) -> Status {
        match self {
            Self::NotSent(status) | Self::Status(status) => status,
        }
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// How long a call may take, and until when that is.
#[derive(Clone, Copy)]
pub(crate) struct TimeLimit {
    timeout: Duration,
    deadline: Deadline,
}

impl TimeLimit {
    /// The limit that the request names, or the default one of what carries it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when the request names none that gRPC knows.
    pub(crate) fn take<I: Invoke + ?Sized>(
        invoke: &I,
        metadata: &mut MetadataMap,
    ) -> Result<Option<Self>, Status> {
        let timeout = Deadline::take(metadata)?.or_else(|| invoke.default_timeout());
        Ok(timeout.and_then(|timeout| Some(Self { timeout, deadline: Deadline::after(timeout)? })))
    }
}

/// What a request says beside its messages, before it is known when it is sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) path: &'a str,
    pub(crate) limit: Option<TimeLimit>,
    pub(crate) metadata: &'a MetadataMap,
    pub(crate) expected: Expected,
}

impl Outgoing<'_> {
    /// Starts the call for the task of `waker`, which then polls it.
    fn start<I: Invoke + ?Sized>(
        &self,
        invoke: &I,
        message: Option<&dyn Encode>,
        end: bool,
        waker: &Waker,
    ) -> Result<Call, Attempt> {
        let timeout = self.limit.map(|limit| limit.timeout);
        let deadline = self.limit.map(|limit| limit.deadline);
        // In less than what the wire can say no call is made, not even to the server that would refuse it.
        if timeout.is_some_and(|timeout| timeout < Duration::from_micros(1)) {
            return Err(Deadline::status().into());
        }
        let head = RequestHead { path: self.path, timeout, metadata: self.metadata };
        let call = NewCall { head, deadline, message, end, expected: self.expected, waker: Some(waker) };
        match invoke.start(&call) {
            Ok(call) => Ok(call),
            Err(StartError::Busy) => Err(Attempt::Busy),
            Err(StartError::Closed(status) | StartError::Failed(status)) => Err(status.into()),
        }
    }

    /// Waits until it is worth to start again.
    async fn until_ready<I: Invoke + ?Sized>(&self, invoke: &I) -> Result<(), Status> {
        let Some(limit) = self.limit else { return invoke.ready().await };
        let ready = tokio::time::timeout_at(limit.deadline.at(), invoke.ready()).await;
        ready.unwrap_or_else(|_| Err(Deadline::status()))
    }

    /// Some of its time has passed.
    fn has_waited(&mut self) {
        if let Some(limit) = &mut self.limit {
            limit.timeout = limit.deadline.remaining();
        }
    }
}

/// Starts a call as soon as there is something to carry it, for the task that then polls it.
pub(crate) async fn start<I: Invoke + ?Sized>(
    invoke: &I,
    request: &mut Outgoing<'_>,
    message: Option<&dyn Encode>,
    end: bool,
) -> Result<Call, Status> {
    loop {
        let started = poll_fn(|cx| Poll::Ready(request.start(invoke, message, end, cx.waker())));
        match started.await {
            Ok(call) => return Ok(call),
            Err(Attempt::Busy) => request.until_ready(invoke).await?,
            Err(Attempt::Ended(ended)) => return Err(ended.into_status()),
        }
        request.has_waited();
    }
}

async fn single_reply<Rep: Message + Default>(call: &mut Call, limit: usize) -> Result<Response<Rep>, Ended> {
    let mut reply = SingleReply::default();
    let (metadata, message) = poll_fn(|cx| reply.poll(call, limit, cx)).await?;
    Ok(Response::from_parts(metadata.into_map(), decode(message)?, Extensions::new()))
}

/// What has arrived of a reply that is one message.
#[derive(Default)]
struct SingleReply {
    metadata: Metadata,
    message: Option<Bytes>,
}

impl SingleReply {
    /// The metadata, trailers included, and the message, once they are there.
    fn poll(
        &mut self,
        call: &mut Call,
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Metadata, Bytes), Ended>> {
        loop {
            let part = ready!(call.poll_reply(cx));
            if let Some(head) = part.head {
                self.metadata = head;
            }
            if let Some(bytes) = part.message {
                if bytes.len() > limit {
                    return Poll::Ready(Err(too_large(bytes.len(), limit).into()));
                }
                if self.message.replace(bytes).is_some() {
                    let status = Status::unimplemented("the server sent several replies to a unary call");
                    return Poll::Ready(Err(status.into()));
                }
            }
            let ended = match part.end {
                None => continue,
                Some(End::NotSent(status)) => Err(Ended::NotSent(status)),
                Some(End::Outcome(Err(status))) => Err(status.into()),
                Some(End::Outcome(Ok(trailers))) => self.take(trailers),
            };
            return Poll::Ready(ended);
        }
    }

    fn take(&mut self, trailers: Metadata) -> Result<(Metadata, Bytes), Ended> {
        let message = self.message.take();
        let message =
            message.ok_or_else(|| Status::unimplemented("the server ended a unary call without a reply"))?;
        let metadata = std::mem::take(&mut self.metadata);
        if trailers.is_empty() {
            return Ok((metadata, message));
        }
        let mut all = metadata.into_map().into_headers();
        all.extend(trailers.into_map().into_headers());
        Ok((MetadataMap::from_headers(all).into(), message))
    }
}

async fn many_replies<Rep: Message + Default + 'static>(
    mut replies: Replies,
    options: CallOptions,
) -> Result<Response<Streaming<Rep>>, Ended> {
    let mut first = poll_fn(|cx| replies.call.poll_reply(cx)).await;
    let metadata = match (first.head.take(), &mut first) {
        (Some(metadata), _) => metadata,
        (None, Inbound { end: Some(End::Outcome(Ok(_))), .. }) => Metadata::default(),
        (None, part) => match part.end.take() {
            Some(End::NotSent(status)) => return Err(Ended::NotSent(status)),
            Some(End::Outcome(Err(status))) => return Err(status.into()),
            _ => return Err(Status::internal("the reply began without initial metadata").into()),
        },
    };
    let parts = StreamingParts { source: replies, first, limit: options.decoding_limit() };
    Ok(Response::from_parts(metadata.into_map(), parts.into_replies(), Extensions::new()))
}

/// The replies to a call, and its requests while they are still being sent.
struct Replies {
    call: Call,
    _upload: Option<Upload>,
}

impl Source for Replies {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.call.poll_reply(cx)
    }
}

/// The task that sends the requests of a call. It ends with the call.
pub(crate) struct Upload(AbortHandle);

impl Upload {
    fn spawn<S>(call: CallRef, messages: S, options: CallOptions) -> Self
    where
        S: Stream<Item: Message> + Send + 'static,
    {
        Self::run(async move {
            let mut messages = std::pin::pin!(messages);
            while let Some(message) = messages.next().await {
                if let Err(status) = options.check_request(&message) {
                    return call.finish(&status);
                }
                if !send(&call, Part { message: Some(&message), ..Part::default() }).await {
                    return;
                }
            }
            end(&call).await;
        })
    }

    pub(crate) fn run(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a part of a request; `false` when the call is over, or ended because of it.
pub(crate) async fn send(call: &CallRef, part: Part<'_>) -> bool {
    match poll_fn(|cx| call.poll_send(cx, part)).await {
        Ok(()) => true,
        // However it ended, its reader learns it.
        Err(SendError::Over) => false,
        Err(error) => {
            call.finish(&error.status());
            false
        }
    }
}

/// Says that the request is complete.
pub(crate) async fn end(call: &CallRef) {
    send(call, Part { end: Some(Ok(None)), ..Part::default() }).await;
}

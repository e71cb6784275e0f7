//! What generated servers implement and call: the four kinds of calls, above whatever carried them here.
//!
//! Owns [`Direct`] (a service that byway dispatches to), [`MethodCall`] (one call, by byway's dispatch or by HTTP),
//! [`ServerCall`] and [`HttpCall`]. Generated code has one table of methods for both. Invariant: every call gets
//! exactly one end. Never: catches panics, watches deadlines or spawns; see `dispatch`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Extensions;
use prost::Message;
use tokio_stream::Stream;
use tonic::codec::{CompressionEncoding, EnabledCompressionEncodings};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::client::check_encoding;
use crate::codec::{Encode, decode_into};
use crate::invoke::{Call, CallRef, End, Inbound, Part};
use crate::limits::DEFAULT_MAX_DECODING;
use crate::method::MethodDescriptor;
use crate::session::{Incoming, Metadata, Path};
use crate::streaming::{Source, StreamingParts, too_large};

/// The work of answering one call. It sends the answer itself.
pub type Handling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service whose methods byway dispatches to by number.
pub trait Direct: Send + Sync + 'static {
    /// Its methods; a method's number is its place.
    fn methods(&self) -> &'static [MethodDescriptor];

    /// Answers a call of the method with number `method`.
    fn handle(&self, method: usize, call: ServerCall) -> Handling;
}

/// What a generated server applies to each of its calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServiceSettings {
    /// Compression accepted over HTTP/2. byway's own framing carries no compressed messages.
    pub accept_compressed: EnabledCompressionEncodings,
    /// Compression used over HTTP/2.
    pub send_compressed: EnabledCompressionEncodings,
    /// Largest request, in bytes. Default 4 MiB, as in tonic.
    pub max_decoding_message_size: Option<usize>,
    /// Largest reply, in bytes. Default: what the client accepts.
    pub max_encoding_message_size: Option<usize>,
}

impl ServiceSettings {
    /// Accepts requests compressed in this way over HTTP/2.
    pub fn accept_compressed(&mut self, encoding: CompressionEncoding) {
        self.accept_compressed.enable(encoding);
    }

    /// Compresses replies in this way over HTTP/2 for clients that accept it.
    pub fn send_compressed(&mut self, encoding: CompressionEncoding) {
        self.send_compressed.enable(encoding);
    }
}

/// One call of a method whose kind and types the generated code knows.
pub trait MethodCall: Sized {
    /// What answers the call.
    type Output;

    /// One request, one reply.
    fn unary<Req, Rep, F, Fut>(self, handler: F) -> Self::Output
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send;

    /// Many requests, one reply.
    fn client_streaming<Req, Rep, F, Fut>(self, handler: F) -> Self::Output
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send;

    /// One request, many replies.
    fn server_streaming<Req, Rep, S, F, Fut>(self, handler: F) -> Self::Output
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send;

    /// Many requests, many replies.
    fn streaming<Req, Rep, S, F, Fut>(self, handler: F) -> Self::Output
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send;

    /// A method that the service does not have.
    fn unknown_method(self) -> Self::Output;
}

/// A call that came by byway's own dispatch.
#[derive(Debug)]
pub struct ServerCall {
    pub(crate) call: Call,
    pub(crate) path: Path,
    pub(crate) metadata: Metadata,
    pub(crate) message: Option<Bytes>,
    pub(crate) ended: bool,
    /// Largest request, in bytes.
    max_request: usize,
    /// Largest reply, in bytes, if the service has a limit of its own.
    max_reply: Option<usize>,
}

impl ServerCall {
    /// A call that its owner has just learned of.
    pub(crate) fn new(call: Call, incoming: Incoming) -> Self {
        let Incoming { head, message, ended, .. } = incoming;
        Self {
            call,
            path: head.path,
            metadata: head.metadata,
            message,
            ended,
            max_request: DEFAULT_MAX_DECODING,
            max_reply: None,
        }
    }

    /// The same call under the settings of its service.
    #[must_use]
    pub fn with_settings(mut self, settings: &ServiceSettings) -> Self {
        self.max_request = settings.max_decoding_message_size.unwrap_or(DEFAULT_MAX_DECODING);
        self.max_reply = settings.max_encoding_message_size;
        self.call.limit_messages(self.max_request);
        self
    }

    /// `/package.Service/Method`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the call with `status`.
    pub fn refuse(&self, status: &Status) {
        self.call.finish(status);
    }

    #[inline]
    fn request<T>(&mut self, message: T) -> Request<T> {
        let metadata = std::mem::take(&mut self.metadata).into_map();
        Request::from_parts(metadata, Extensions::new(), message)
    }

    /// Waits for the whole of a request that is one message.
    async fn gather(&mut self) -> Result<(), Status> {
        while !self.ended {
            let part = poll_fn(|cx| self.call.poll_request(cx)).await;
            if let Some(message) = part.message
                && self.message.replace(message).is_some()
            {
                return Err(Status::unimplemented(
                    "the client sent several requests to a method that takes one",
                ));
            }
            match part.end {
                Some(End::Outcome(Err(status)) | End::NotSent(status)) => return Err(status),
                Some(End::Outcome(Ok(_))) => self.ended = true,
                None => {}
            }
        }
        Ok(())
    }

    /// Reads the only message of a request that must have one and has ended into `request`, which is where the handler
    /// takes it from: requests are large to move.
    fn read_single<Req: Message>(&mut self, request: &mut Request<Req>) -> Result<(), Status> {
        let Some(message) = self.message.take() else {
            return Err(Status::unimplemented("the client sent no request to a method that takes one"));
        };
        if message.len() > self.max_request {
            return Err(too_large(message.len(), self.max_request));
        }
        decode_into(request.get_mut(), message)
    }

    fn many_requests<Req: Message + Default + 'static>(&mut self) -> Request<Streaming<Req>> {
        let end = self.ended.then(|| End::Outcome(Ok(Metadata::default())));
        let first = Inbound { head: None, message: self.message.take(), end };
        let limit = self.max_request;
        let parts = StreamingParts { source: Requests(self.call.by_ref()), first, limit };
        self.request(parts.into_requests())
    }

    /// Answers with what `handler` returns, in the same poll if there is room: what lives across an await is copied into
    /// the future first.
    fn poll_answer_one<Rep, Fut>(
        &mut self,
        cx: &mut Context<'_>,
        handler: Pin<&mut Fut>,
        unsent: &mut Option<Box<(MetadataMap, Rep)>>,
    ) -> Poll<()>
    where
        Rep: Message,
        Fut: Future<Output = Result<Response<Rep>, Status>>,
    {
        if let Some(answer) = unsent {
            return self.poll_send_one(cx, &answer.0, &answer.1);
        }
        let (metadata, message, _) = match ready!(handler.poll(cx)) {
            Ok(response) => response.into_parts(),
            Err(status) => {
                self.refuse(&status);
                return Poll::Ready(());
            }
        };
        if let Err(status) = check_encoding(&message, self.max_reply) {
            self.refuse(&status);
            return Poll::Ready(());
        }
        let sent = self.poll_send_one(cx, &metadata, &message);
        if sent.is_pending() {
            *unsent = Some(Box::new((metadata, message)));
        }
        sent
    }

    fn poll_send_one(
        &mut self,
        cx: &mut Context<'_>,
        metadata: &MetadataMap,
        message: &dyn Encode,
    ) -> Poll<()> {
        let part = Part { head: Some(metadata), message: Some(message), end: Some(Ok(None)) };
        if let Err(error) = ready!(self.call.poll_answer(cx, part)) {
            self.refuse(&error.status());
        }
        Poll::Ready(())
    }

    async fn answer_many<Rep, S>(self, answer: Result<Response<S>, Status>)
    where
        Rep: Message,
        S: Stream<Item = Result<Rep, Status>> + Send,
    {
        let (metadata, messages, _) = match answer {
            Ok(response) => response.into_parts(),
            Err(status) => return self.refuse(&status),
        };
        let limit = self.max_reply;
        let mut answer = Answer { call: self.call, head: Some(metadata) };
        let mut messages = std::pin::pin!(messages);
        loop {
            let next = poll_fn(|cx| match messages.as_mut().poll_next(cx) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                // Initial metadata does not wait for the first message, but travels with it when it is there.
                Poll::Pending if answer.head.is_some() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let sent = match next.await {
                None => answer.send(None, None).await,
                Some(Some(Ok(message))) => match check_encoding(&message, limit) {
                    Ok(()) => answer.send(Some(&message), None).await,
                    Err(status) => answer.send(None, Some(Err(&status))).await,
                },
                Some(Some(Err(status))) => answer.send(None, Some(Err(&status))).await,
                Some(None) => answer.send(None, Some(Ok(None))).await,
            };
            if !sent {
                return;
            }
        }
    }
}

/// A streamed answer, whose initial metadata goes with whatever is sent first.
struct Answer {
    call: Call,
    head: Option<MetadataMap>,
}

impl Answer {
    /// Sends a part; `false` when nothing may follow it.
    async fn send(
        &mut self,
        message: Option<&dyn Encode>,
        end: Option<Result<Option<&MetadataMap>, &Status>>,
    ) -> bool {
        let head = self.head.take();
        let part = Part { head: head.as_ref(), message, end };
        match poll_fn(|cx| self.call.poll_answer(cx, part)).await {
            Ok(()) => end.is_none(),
            Err(error) => {
                self.call.finish(&error.status());
                false
            }
        }
    }
}

struct Requests(CallRef);

impl Source for Requests {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.0.poll_receive(cx)
    }
}

impl MethodCall for ServerCall {
    type Output = Handling;

    fn unary<Req, Rep, F, Fut>(mut self, handler: F) -> Handling
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
    {
        Box::pin(async move {
            if let Err(status) = self.gather().await {
                return self.refuse(&status);
            }
            let mut handler = pin!({
                // Within a block of its own, or the future would keep room for it.
                let mut request = self.request(Req::default());
                if let Err(status) = self.read_single(&mut request) {
                    return self.refuse(&status);
                }
                handler(request)
            });
            let mut unsent = None;
            poll_fn(|cx| self.poll_answer_one(cx, handler.as_mut(), &mut unsent)).await;
        })
    }

    fn client_streaming<Req, Rep, F, Fut>(mut self, handler: F) -> Handling
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
    {
        Box::pin(async move {
            let mut handler = pin!(handler(self.many_requests()));
            let mut unsent = None;
            poll_fn(|cx| self.poll_answer_one(cx, handler.as_mut(), &mut unsent)).await;
        })
    }

    fn server_streaming<Req, Rep, S, F, Fut>(mut self, handler: F) -> Handling
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send,
    {
        Box::pin(async move {
            if let Err(status) = self.gather().await {
                return self.refuse(&status);
            }
            let mut handler = pin!({
                let mut request = self.request(Req::default());
                if let Err(status) = self.read_single(&mut request) {
                    return self.refuse(&status);
                }
                handler(request)
            });
            let answer = handler.as_mut().await;
            self.answer_many(answer).await;
        })
    }

    fn streaming<Req, Rep, S, F, Fut>(mut self, handler: F) -> Handling
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send,
    {
        Box::pin(async move {
            let request = self.many_requests();
            let answer = handler(request).await;
            self.answer_many(answer).await;
        })
    }

    fn unknown_method(self) -> Handling {
        let status = unknown_method(&self.path);
        Box::pin(async move { self.refuse(&status) })
    }
}

/// The status of a call to a method or service that is not there.
pub(crate) fn unknown_method(path: &impl std::fmt::Display) -> Status {
    Status::unimplemented(format!("there is no method {path} on this server"))
}

/// A call that came as an HTTP request, for tonic's server, layers and tests.
#[derive(Debug)]
pub struct HttpCall<B> {
    request: http::Request<B>,
    settings: ServiceSettings,
}

type HttpAnswer =
    Pin<Box<dyn Future<Output = Result<http::Response<tonic::body::Body>, std::convert::Infallible>> + Send>>;

impl<B> HttpCall<B> {
    /// A call under the settings of its service.
    pub fn new(request: http::Request<B>, settings: ServiceSettings) -> Self {
        Self { request, settings }
    }

    fn grpc<Req, Rep>(&self) -> tonic::server::Grpc<ProstCodec<Rep, Req>>
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
    {
        let ServiceSettings {
            accept_compressed,
            send_compressed,
            max_decoding_message_size,
            max_encoding_message_size,
        } = self.settings;
        tonic::server::Grpc::new(ProstCodec::default())
            .apply_compression_config(accept_compressed, send_compressed)
            .apply_max_message_size_config(max_decoding_message_size, max_encoding_message_size)
    }
}

/// A handler as the service that tonic's server wants.
struct Once<F>(Option<F>);

impl<F, T, Fut, R> Service<Request<T>> for Once<F>
where
    F: FnOnce(Request<T>) -> Fut,
    Fut: Future<Output = Result<R, Status>>,
{
    type Response = R;
    type Error = Status;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<T>) -> Fut {
        (self.0.take().expect("tonic calls a handler once"))(request)
    }
}

impl<B> MethodCall for HttpCall<B>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Output = HttpAnswer;

    fn unary<Req, Rep, F, Fut>(self, handler: F) -> HttpAnswer
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
    {
        Box::pin(async move { Ok(self.grpc::<Req, Rep>().unary(Once(Some(handler)), self.request).await) })
    }

    fn client_streaming<Req, Rep, F, Fut>(self, handler: F) -> HttpAnswer
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
    {
        Box::pin(async move {
            Ok(self.grpc::<Req, Rep>().client_streaming(Once(Some(handler)), self.request).await)
        })
    }

    fn server_streaming<Req, Rep, S, F, Fut>(self, handler: F) -> HttpAnswer
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Req>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send,
    {
        Box::pin(async move {
            Ok(self.grpc::<Req, Rep>().server_streaming(Once(Some(handler)), self.request).await)
        })
    }

    fn streaming<Req, Rep, S, F, Fut>(self, handler: F) -> HttpAnswer
    where
        Req: Message + Default + 'static,
        Rep: Message + 'static,
        S: Stream<Item = Result<Rep, Status>> + Send + 'static,
        F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<S>, Status>> + Send,
    {
        Box::pin(
            async move { Ok(self.grpc::<Req, Rep>().streaming(Once(Some(handler)), self.request).await) },
        )
    }

    fn unknown_method(self) -> HttpAnswer {
        let status = unknown_method(&self.request.uri().path());
        Box::pin(async move { Ok(status.into_http()) })
    }
}

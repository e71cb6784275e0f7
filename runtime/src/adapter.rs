//! Between HTTP-shaped gRPC and calls: any tower service as a handler, anything that begins calls as a `GrpcService`.
//!
//! So stock tonic clients run over byway's channel, and stock, layered or intercepted tonic servers behind byway's
//! listener, unchanged. Messages cross without being decoded. Compressed ones are refused: byway's own framing has no
//! place for them. Invariant: of a large message nothing is copied that came
//! in one piece. Never: speaks HTTP/2.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tower_service::Service;

use crate::client::{Outgoing, TimeLimit, Upload, end, send, start};
use crate::codec::Encoded;
use crate::context::CallContext;
use crate::deadline::{TIMEOUT_HEADER, format_timeout};
use crate::framing::{Messages, framed};
use crate::invoke::{Call, CallRef, End, Expected, Inbound, Invoke, Part};
use crate::method::MethodDescriptor;
use crate::server::{Direct, Handling, ServerCall};
use crate::session::Metadata;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// What an [`HttpService`] answers.
pub type HttpFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, BoxError>> + Send>>;

// ---- A tower service as a handler ----

/// A tower service of HTTP requests, of any kind. It is cloned for every request.
pub struct HttpService(Box<dyn CloneService>);

trait CloneService: Send + Sync {
    fn answer(&self, request: http::Request<Body>) -> HttpFuture;
}

impl<S, B> CloneService for S
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn answer(&self, request: http::Request<Body>) -> HttpFuture {
        let mut service = self.clone();
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
            let response = service.call(request).await.map_err(Into::into)?;
            Ok(response.map(Body::new))
        })
    }
}

impl HttpService {
    /// Wraps a service.
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Box::new(service))
    }

    /// Answers one request.
    pub fn answer(&self, request: http::Request<Body>) -> HttpFuture {
        self.0.answer(request)
    }
}

impl std::fmt::Debug for HttpService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService").finish_non_exhaustive()
    }
}

/// A tower service that speaks gRPC, as something that byway dispatches to.
#[derive(Debug)]
pub struct TowerHandler(HttpService);

impl TowerHandler {
    /// Calls go to `service`.
    pub fn new(service: HttpService) -> Self {
        Self(service)
    }
}

impl Direct for TowerHandler {
    fn methods(&self) -> &'static [MethodDescriptor] {
        &[]
    }

    fn handle(&self, _: usize, call: ServerCall) -> Handling {
        let request = http_request(&call);
        match request {
            Err(status) => Box::pin(async move { call.refuse(&status) }),
            Ok(request) => {
                let answer = self.0.answer(request);
                Box::pin(relay(answer, call.call))
            }
        }
    }
}

fn http_request(call: &ServerCall) -> Result<http::Request<Body>, Status> {
    let mut headers = call.metadata.clone().into_map().into_headers();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let context = CallContext::current();
    if let Some(deadline) = context.as_ref().and_then(CallContext::deadline) {
        let timeout = format_timeout(deadline.remaining());
        headers.insert(TIMEOUT_HEADER, timeout.parse().expect("digits and a letter"));
    }
    let end = call.ended.then(|| End::Outcome(Ok(Metadata::default())));
    let first = Inbound { head: None, message: call.message.clone(), end };
    let body =
        RequestBody { call: call.call.by_ref(), pending: first, frames: VecDeque::new(), ended: false };
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() =
        call.path.as_bytes().try_into().map_err(|_| Status::unimplemented("the path is not one"))?;
    *request.headers_mut() = headers;
    if let Some(context) = context {
        request.extensions_mut().insert(context);
    }
    Ok(request)
}

/// The messages of a call as an HTTP request body.
struct RequestBody {
    call: CallRef,
    pending: Inbound,
    frames: VecDeque<Bytes>,
    ended: bool,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(message) = self.pending.message.take() {
                self.frames.extend(framed(message));
                continue;
            }
            match self.pending.end.take() {
                Some(End::Outcome(Ok(_))) => self.ended = true,
                Some(End::Outcome(Err(status)) | End::NotSent(status)) => {
                    self.ended = true;
                    // Not CANCELLED: tonic takes a request body that fails with it for one that ended well, and an
                    // upload that was cut off would look complete.
                    return Poll::Ready(Some(Err(Status::unknown(status.message()))));
                }
                None => match self.call.poll_receive(cx) {
                    Poll::Ready(part) => self.pending = part,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}

/// Sends an HTTP response as the answer to `call`.
async fn relay(answer: HttpFuture, mut call: Call) {
    let response = match answer.await {
        Ok(response) => response,
        Err(error) => return call.finish(&Status::from_error(error)),
    };
    let (parts, body) = response.into_parts();
    if let Some(status) = Status::from_header_map(&parts.headers) {
        return relay_end(&mut call, None, outcome(status, parts.headers)).await;
    }
    if parts.status != http::StatusCode::OK {
        let text = format!("the service answered with HTTP status {}", parts.status);
        return call.finish(&Status::unknown(text));
    }
    let mut head = Some(MetadataMap::from_headers(parts.headers));
    let mut messages = Messages::within(body);
    loop {
        match poll_fn(|cx| messages.poll_message(cx)).await {
            Ok(Some(message)) => {
                let metadata = head.take();
                let encoded = Encoded(message);
                let part = Part { head: metadata.as_ref(), message: Some(&encoded), end: None };
                if let Err(error) = poll_fn(|cx| call.poll_answer(cx, part)).await {
                    return call.finish(&error.status());
                }
            }
            Ok(None) => {
                let trailers = messages.take_trailers().unwrap_or_default();
                let status = Status::from_header_map(&trailers)
                    .unwrap_or_else(|| Status::unknown("the service ended without a grpc-status"));
                return relay_end(&mut call, head, outcome(status, trailers)).await;
            }
            Err(status) => return relay_end(&mut call, head, Err(status)).await,
        }
    }
}

async fn relay_end(call: &mut Call, head: Option<MetadataMap>, outcome: Result<MetadataMap, Status>) {
    let part = Part { head: head.as_ref(), message: None, end: Some(outcome.as_ref().map(Some)) };
    if let Err(error) = poll_fn(|cx| call.poll_answer(cx, part)).await {
        call.finish(&error.status());
    }
}

/// What trailers say: metadata when the status in them is OK.
fn outcome(status: Status, trailers: HeaderMap) -> Result<MetadataMap, Status> {
    if status.code() == tonic::Code::Ok { Ok(MetadataMap::from_headers(trailers)) } else { Err(status) }
}

// ---- What begins calls as a GrpcService ----

/// Makes the call that an HTTP request of gRPC describes.
///
/// # Errors
/// A status, when the call ended before the server said anything; tonic's client hands it to its caller as it is.
pub async fn call<I: Invoke>(
    invoke: I,
    request: http::Request<Body>,
) -> Result<http::Response<ResponseBody>, Status> {
    let (parts, body) = request.into_parts();
    let mut metadata = MetadataMap::from_headers(parts.headers);
    let limit = TimeLimit::take(&invoke, &mut metadata)?;
    let mut head =
        Outgoing { path: parts.uri.path(), limit, metadata: &metadata, expected: Expected::default() };
    let mut messages = Messages::within(body);
    let (first, ended) = messages.ready_now().await?;
    let first = first.map(Encoded);
    let first = first.as_ref().map(|first| first as &dyn crate::Encode);
    let mut call = start(&invoke, &mut head, first, ended).await?;
    let upload = (!ended).then(|| upload(call.by_ref(), messages));
    let mut first = poll_fn(|cx| call.poll_reply(cx)).await;
    let headers = match (first.head.take(), first.end.take_if(|_| first.message.is_none())) {
        (None, Some(End::Outcome(Err(status)) | End::NotSent(status))) => return Err(status),
        (head, end) => {
            first.end = first.end.or(end);
            head.unwrap_or_default().into_map().into_headers()
        }
    };
    let mut response = http::Response::new(ResponseBody {
        exchange: Some(Exchange { call, _upload: upload }),
        pending: first,
        frames: VecDeque::new(),
    });
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

fn upload(call: CallRef, mut messages: Messages<Body>) -> Upload {
    Upload::run(async move {
        loop {
            match poll_fn(|cx| messages.poll_message(cx)).await {
                Ok(Some(message)) => {
                    let encoded = Encoded(message);
                    if !send(&call, Part { message: Some(&encoded), ..Part::default() }).await {
                        return;
                    }
                }
                Ok(None) => return end(&call).await,
                Err(status) => return call.finish(&status),
            }
        }
    })
}

struct Exchange {
    call: Call,
    _upload: Option<Upload>,
}

/// The replies to a call as an HTTP response body. Dropping it cancels the call.
#[derive(Default)]
pub struct ResponseBody {
    exchange: Option<Exchange>,
    pending: Inbound,
    frames: VecDeque<Bytes>,
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(frame) = this.frames.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            let Some(exchange) = &mut this.exchange else { return Poll::Ready(None) };
            if let Some(message) = this.pending.message.take() {
                this.frames.extend(framed(message));
                continue;
            }
            if let Some(end) = this.pending.end.take() {
                this.exchange = None;
                return Poll::Ready(Some(match end {
                    End::Outcome(Ok(trailers)) => {
                        let mut headers = trailers.into_map().into_headers();
                        headers.insert("grpc-status", HeaderValue::from_static("0"));
                        Ok(Frame::trailers(headers))
                    }
                    End::Outcome(Err(status)) | End::NotSent(status) => Err(status),
                }));
            }
            this.pending = ready!(exchange.call.poll_reply(cx));
        }
    }
}

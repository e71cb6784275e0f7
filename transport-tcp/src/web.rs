//! HTTP for a service of the user's on the same port.
//!
//! Owns [`serve`], one connection of HTTP/1, whose requests all go to one service, and how such a service is asked. Requests
//! over HTTP/2 that are not gRPC come to it from [`grpc::serve`](crate::grpc::serve). Never: knows gRPC.

use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::adapter::HttpService;
use byway_runtime::dispatch::Drain;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;

use crate::grpc::Served;
use crate::wire::Wire;

/// Serves a connection of HTTP/1 whose first bytes were read already. The head of each request must come within
/// `head_timeout`.
pub fn serve<S>(
    io: S,
    first: Bytes,
    service: Arc<HttpService>,
    head_timeout: Duration,
    drain: Drain,
) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(answer(&service, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let connection = builder.serve_connection(TokioIo::new(Wire::new(first, io, None)), service);
    Box::pin(async move {
        let mut connection = pin!(connection);
        let until = tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
            until = drain => until,
        };
        connection.as_mut().graceful_shutdown();
        match tokio::time::timeout_at(until, connection).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(_) => {
                Err("a request was still being answered when the server's time to stop was over".to_owned())
            }
        }
    })
}

/// What `service` says to a request. One that panics has failed.
pub(crate) async fn answer(service: &HttpService, request: Request<Incoming>) -> Response<Body> {
    let (mut request, mut answer) = (Some(request.map(Body::new)), None);
    let polled = poll_fn(|cx| {
        let poll = || {
            answer.get_or_insert_with(|| service.answer(request.take().unwrap_or_default())).as_mut().poll(cx)
        };
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(polled) => polled.map_err(|error| error.to_string()),
            Err(_) => Poll::Ready(Err("it panicked".to_owned())),
        }
    });
    polled.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the HTTP service failed");
        plain(StatusCode::INTERNAL_SERVER_ERROR, "the service failed")
    })
}

/// A response of one sentence.
pub(crate) fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(Sentence(Some(Bytes::from_static(text.as_bytes())))));
    *response.status_mut() = status;
    response
}

/// A body of one piece.
struct Sentence(Option<Bytes>);

impl http_body::Body for Sentence {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|text| Ok(Frame::data(text))))
    }
}

//! Calls any gRPC server: what begins calls over a connection of HTTP/2.
//!
//! Owns [`connect`] and [`Caller`]. Invariant: no more calls are handed to hyper than the server allows at once, so that
//! hyper queues none. Never: redials; a channel does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::framing::Acceptance;
use byway_runtime::{Call, CallRef, ConnectionInfo, Invoke, NewCall, ReadyFuture, SendError, StartError};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;

use super::calling::ClientHalf;
use super::headers::{over, request_head};
use super::outgoing::{Outgoing, Sending, Stream, THIS, length};
use super::peer::{Heard, Peer};
use super::status::failure;
use super::tasks::Tasks;
use super::{MAX_FRAME, acceptance, call_window, connection_window};
use crate::wire::{FrameWatch, Wire};
use byway_runtime::Options;

/// What the four pseudo-headers of a request count without its path and host, in bytes.
const REQUEST_LINE: usize = 165;

/// Servers of gRPC close connections on which they are asked for a sign of life more often than this.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(300);

/// Why a stream did not become a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The stream failed.
    Http2(hyper::Error),
    /// The peer closed the stream before it said anything.
    Closed,
    /// The peer answered with something else; these are its first bytes.
    NotHttp2([u8; 9]),
    /// The name of the server cannot be one of HTTP.
    Authority(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http2(error) => write!(f, "the connection failed: {}", failure(error).status.message()),
            Self::Closed => f.write_str("the peer closed the connection instead of speaking HTTP/2"),
            Self::NotHttp2(first) => {
                write!(f, "the peer does not speak HTTP/2: it answered \"{}\"", first.escape_ascii())
            }
            Self::Authority(name) => write!(f, "\"{name}\" cannot be named in an HTTP request"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http2(error) => Some(error),
            Self::Closed | Self::NotHttp2(_) | Self::Authority(_) => None,
        }
    }
}

/// Connects over a stream, and waits until the peer has said that it speaks HTTP/2. `authority` is what requests name
/// their server by. The connection is driven by tasks until it is closed.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect<S>(
    io: S,
    authority: &str,
    info: Arc<ConnectionInfo>,
    options: Options,
) -> Result<Caller, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Options { limits, keepalive } = options;
    let authority: Authority =
        authority.parse().map_err(|_| ConnectError::Authority(authority.to_owned()))?;
    let peer = Peer::new();
    let watching = Arc::clone(&peer);
    let watch = FrameWatch::new(move |sign| watching.note(sign));
    let wire = Wire::new(Bytes::new(), io, Some(watch));
    let mut builder = http2::Builder::new(Tasks);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(call_window(&limits))
        .initial_connection_window_size(connection_window(&limits))
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(u32::from(limits.max_head))
        .keep_alive_interval(keepalive.interval.max(LEAST_KEEPALIVE))
        .keep_alive_timeout(keepalive.timeout);
    let (sender, connection) = builder.handshake(TokioIo::new(wire)).await.map_err(ConnectError::Http2)?;
    let ending = Ending(Arc::clone(&peer));
    tokio::spawn(async move {
        let status = match connection.await {
            Ok(()) => Status::unavailable("the connection was closed"),
            Err(error) => failure(&error).status,
        };
        ending.0.ended(status);
    });
    match peer.greeting().await {
        Heard::Http2 => {}
        Heard::Other(first) => return Err(ConnectError::NotHttp2(first)),
        Heard::Nothing => return Err(ConnectError::Closed),
    }
    let compressed = |_| Status::internal("the server sent a compressed message, which nobody asked for");
    let acceptance = acceptance(&limits, compressed);
    Ok(Caller { sender, peer, authority, acceptance, info })
}

/// Says that the connection has ended, also when the runtime that drives it has.
struct Ending(Arc<Peer>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended(Status::unavailable("the runtime that drove the connection has stopped"));
    }
}

/// A connection to a gRPC server, as what begins calls. When it is dropped, the calls that are open go on and the
/// connection closes after the last one.
pub struct Caller {
    sender: SendRequest<Sending<ClientHalf>>,
    peer: Arc<Peer>,
    authority: Authority,
    acceptance: Acceptance,
    info: Arc<ConnectionInfo>,
}

impl Caller {
    /// Where the connection leads and how.
    pub fn info(&self) -> &Arc<ConnectionInfo> {
        &self.info
    }

    /// Why the connection takes no new calls, if so.
    pub fn closed(&self) -> Option<Status> {
        let lost = || Status::unavailable("the connection was closed");
        // hyper may have given the connection up a moment before anybody was told why.
        self.peer.closed().cloned().or_else(|| self.sender.is_closed().then(lost))
    }

    fn uri(&self, path: &str) -> Result<Uri, StartError> {
        if !path.starts_with('/') {
            return Err(StartError::Failed(SendError::NoPath.status()));
        }
        let path = PathAndQuery::try_from(path).map_err(|error| {
            StartError::Failed(Status::invalid_argument(format!("{path} is not the path of a call: {error}")))
        })?;
        let parts =
            Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path);
        parts.build().map_err(|error| StartError::Failed(Status::internal(error.to_string())))
    }
}

impl Invoke for Caller {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        if let Some(status) = self.closed() {
            return Err(StartError::Closed(status));
        }
        let Some(place) = self.peer.place() else { return Err(StartError::Busy) };
        let uri = self.uri(call.head.path)?;
        let headers = request_head(call.head.metadata, call.head.timeout);
        let limit = self.peer.max_headers();
        let line = REQUEST_LINE + call.head.path.len() + self.authority.as_str().len();
        if let Some(len) = over(&headers, line, limit) {
            return Err(StartError::Failed(SendError::HeadTooLarge { len, limit }.status()));
        }
        let mut outgoing = Outgoing::of_client();
        if let Some(message) = call.message {
            let len = length(message).map_err(|error| StartError::Failed(error.status()))?;
            outgoing.push(message, len);
        }
        if call.end {
            outgoing.end(None);
        }
        let acceptance = Acceptance {
            max_message: self.acceptance.max_message.min(call.expected.max_message),
            ..self.acceptance.clone()
        };
        let stream = Stream::new(outgoing, ClientHalf::new(call, acceptance, place));
        let mut request = Request::new(Sending(Arc::clone(&stream)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        // hyper begins with it when its task is next polled, whether or not anybody waits for the response.
        let response = self.sender.clone().try_send_request(request);
        stream.rest().wait_for(Box::pin(response), Arc::downgrade(&stream));
        Ok(Call::new(CallRef::new(stream, THIS)))
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(self.peer.until_free())
    }
}

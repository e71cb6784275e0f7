//! A gRPC client that says what it likes.
//!
//! Owns [`Ask`], a request to the byte, and [`Wire`], an HTTP/2 connection that sends it and reads what comes back. Only
//! HTTP/2 itself is left to the `h2` crate. Never: judges an answer; the table does.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use byway::Code;
use byway::codegen::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::harness::soon;

/// A message behind its five bytes, whatever they say.
pub(crate) fn framed(flag: u8, len: u32, message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(flag);
    bytes.put_u32(len);
    bytes.put_slice(message);
    bytes.freeze()
}

/// A message as gRPC has it.
pub(crate) fn message(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    framed(0, message.len() as u32, &message)
}

/// A request with this text.
pub(crate) fn text(text: &str) -> EchoRequest {
    EchoRequest { text: text.to_owned(), ..EchoRequest::default() }
}

/// What a client says.
#[derive(Clone)]
pub(crate) struct Ask {
    method: Method,
    path: String,
    headers: HeaderMap,
    data: Vec<Bytes>,
    ends: bool,
}

/// A good call of a method of the echo service, with one message; each test changes what it is about.
pub(crate) fn ask(method: &str) -> Ask {
    let ask = Ask {
        method: Method::POST,
        path: format!("/test.v1.Echo/{method}"),
        headers: HeaderMap::new(),
        data: vec![message(&EchoRequest { count: 1, ..text("asked") })],
        ends: true,
    };
    ask.with("te", "trailers").with("content-type", "application/grpc")
}

impl Ask {
    pub(crate) fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    pub(crate) fn to(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// With this header and no other value of it.
    pub(crate) fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        self.headers.insert(HeaderName::from_static(name), value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// With this in its DATA frames, and END_STREAM on the last one; on the HEADERS when there are none.
    pub(crate) fn data(mut self, data: impl IntoIterator<Item = Bytes>) -> Self {
        self.data = data.into_iter().collect();
        self
    }

    /// With one message.
    pub(crate) fn message(self, request: &EchoRequest) -> Self {
        self.data([message(request)])
    }

    /// Without END_STREAM.
    pub(crate) fn open(mut self) -> Self {
        self.ends = false;
        self
    }

    fn head(&self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.parse().expect("a path");
        *request.headers_mut() = self.headers.clone();
        // So that h2 takes a path alone for a URI. On the wire the version is what the connection is.
        *request.version_mut() = Version::HTTP_11;
        request
    }
}

/// What a server answers.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) http: StatusCode,
    pub(crate) head: HeaderMap,
    /// Whether the first HEADERS frame was the only one.
    pub(crate) trailers_only: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
}

impl Answer {
    /// What the call ended with: in the trailers, which may be the head.
    pub(crate) fn end(&self) -> &HeaderMap {
        if self.trailers_only { &self.head } else { &self.trailers }
    }

    pub(crate) fn code(&self) -> Option<Code> {
        let number = self.end().get("grpc-status")?.to_str().ok()?.parse().ok()?;
        Some(Code::from_i32(number))
    }

    /// As a person reads it.
    pub(crate) fn status_message(&self) -> String {
        percent_decoded(self.end().get("grpc-message").map_or(&b""[..], |value| value.as_bytes()))
    }

    /// The messages, uncompressed and whole.
    pub(crate) fn messages(&self) -> Vec<EchoReply> {
        let (mut messages, mut rest) = (Vec::new(), &self.body[..]);
        while let Some((prefix, body)) = rest.split_first_chunk::<5>() {
            let [flag, len @ ..] = *prefix;
            assert_eq!(flag, 0, "nobody asked for compression");
            let (message, after) = body.split_at(u32::from_be_bytes(len) as usize);
            messages.push(EchoReply::decode(message).expect("a reply"));
            rest = after;
        }
        assert!(rest.is_empty(), "half a prefix: {rest:?}");
        messages
    }
}

/// Undoes gRPC's percent-encoding, and fails where a server broke its rules: all but space to `~`, and `%` itself, is
/// encoded, in upper case; more may be.
fn percent_decoded(mut encoded: &[u8]) -> String {
    let mut bytes = Vec::new();
    while let Some((&byte, rest)) = encoded.split_first() {
        encoded = rest;
        assert!((b' '..=b'~').contains(&byte), "{byte:#x} is not encoded");
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, rest) = encoded.split_at(2);
        let digits = std::str::from_utf8(digits).expect("two digits");
        assert!(!digits.contains(char::is_lowercase), "%{digits} is in lower case");
        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
        encoded = rest;
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// How an exchange ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Answered(Answer),
    Reset(Reason),
    /// The connection is no more, and why.
    Broken(String),
}

impl Ended {
    pub(crate) fn answer(self) -> Answer {
        match self {
            Self::Answered(answer) => answer,
            other => panic!("no answer but {other:?}"),
        }
    }
}

impl From<h2::Error> for Ended {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(reason),
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// One HTTP/2 connection.
pub(crate) struct Wire {
    pub(crate) send: SendRequest<Bytes>,
    pub(crate) connection: JoinHandle<Result<(), h2::Error>>,
}

/// An exchange that goes on.
pub(crate) struct Exchange {
    pub(crate) requests: SendStream<Bytes>,
    response: h2::client::ResponseFuture,
}

impl Wire {
    pub(crate) async fn connect(address: &str) -> Self {
        let stream = soon(TcpStream::connect(address)).await.expect("the server accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        Self::over(stream).await
    }

    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        // Room enough beside a stream that nobody reads.
        let mut settings = h2::client::Builder::new();
        settings.initial_connection_window_size(1 << 20);
        let (send, connection) = soon(settings.handshake(stream)).await.expect("a preface is sent");
        Self { send, connection: tokio::spawn(connection) }
    }

    /// Begins an exchange.
    pub(crate) async fn begin(&mut self, ask: &Ask) -> Result<Exchange, Ended> {
        poll_fn(|cx| self.send.poll_ready(cx)).await?;
        let ends_with_head = ask.ends && ask.data.is_empty();
        let (response, mut requests) = self.send.send_request(ask.head(), ends_with_head)?;
        for (index, data) in ask.data.iter().enumerate() {
            let last = index + 1 == ask.data.len();
            // Refused once the server has answered, which then is what counts.
            let _ = requests.send_data(data.clone(), ask.ends && last);
        }
        Ok(Exchange { requests, response })
    }

    /// A whole exchange.
    pub(crate) async fn call(&mut self, ask: &Ask) -> Ended {
        match self.begin(ask).await {
            Ok(exchange) => exchange.end().await.1,
            Err(ended) => ended,
        }
    }

    /// Why a good call fails, if it does.
    pub(crate) async fn serves(&mut self) -> Result<(), String> {
        match self.call(&ask("Unary")).await {
            Ended::Answered(answer) if answer.code() == Some(Code::Ok) => match &answer.messages()[..] {
                [reply] if reply.text == "asked" => Ok(()),
                replies => Err(format!("a good call got {replies:?}")),
            },
            other => Err(format!("a good call ended with {other:?}")),
        }
    }
}

impl Exchange {
    /// The response's head, and what follows it.
    pub(crate) async fn head(self) -> Result<(SendStream<Bytes>, Answer, RecvStream), Ended> {
        let (head, body) = self.response.await?.into_parts();
        let answer = Answer {
            http: head.status,
            head: head.headers,
            trailers_only: body.is_end_stream(),
            ..Answer::default()
        };
        Ok((self.requests, answer, body))
    }

    /// Everything up to the end. The requests' end comes back, since to drop it is to reset an open stream.
    pub(crate) async fn end(self) -> (Option<SendStream<Bytes>>, Ended) {
        match self.head().await {
            Ok((requests, answer, body)) => (Some(requests), rest(answer, body).await),
            Err(ended) => (None, ended),
        }
    }
}

/// Reads what follows a response's head.
pub(crate) async fn rest(mut answer: Answer, mut body: RecvStream) -> Ended {
    while !body.is_end_stream()
        && let Some(data) = body.data().await
    {
        match data {
            Ok(data) => {
                answer.body.extend_from_slice(&data);
                body.flow_control().release_capacity(data.len()).expect("it was received");
            }
            Err(error) => return error.into(),
        }
    }
    if !answer.trailers_only {
        match body.trailers().await {
            Ok(trailers) => answer.trailers = trailers.unwrap_or_default(),
            Err(error) => return error.into(),
        }
    }
    Ended::Answered(answer)
}

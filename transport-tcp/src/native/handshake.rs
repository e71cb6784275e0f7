//! From a stream of bytes to a connection.
//!
//! Owns the exchange of hellos. The client speaks first and waits; the server waits for enough bytes to know what
//! speaks. Never: sets a time limit; its callers do, over the whole of connecting or accepting.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use byway_runtime::connection::{Caller, Connection};
use byway_runtime::dispatch::{Drain, Router};
use byway_runtime::session::{Hello, HelloError, Role};
use byway_runtime::stream::{Inbox, Outbox};
use byway_runtime::{ConnectionInfo, Limits, Options};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::driver::Driver;

/// Why a stream did not become a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The stream failed.
    Io(io::Error),
    /// The peer closed the stream before its hello was complete.
    Closed,
    /// The peer's hello is none, or not one that this side can work with.
    Hello(HelloError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Closed => f.write_str(
                "the peer closed the connection before it said hello: it may not speak byway's protocol",
            ),
            Self::Hello(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Closed => None,
            Self::Hello(error) => Some(error),
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A stream on which both sides have said hello, or this side has heard the peer's.
#[derive(Debug)]
pub struct Greeted<S> {
    /// The stream.
    pub io: S,
    /// What was read behind the peer's hello.
    pub buffer: BytesMut,
    /// What the peer said.
    pub theirs: Hello,
}

/// As a client: says hello, with what it offers beside TCP, and waits for the server's.
///
/// # Errors
/// See [`ConnectError`].
pub async fn greet<S>(mut io: S, limits: &Limits, extension: Bytes) -> Result<Greeted<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let own = Hello { extension, ..Hello::new(limits) };
    // A server that refuses may have closed its end already. What it said comes first, then why nothing can be sent.
    let sent = io.write_all(&own.encode()).await;
    let mut buffer = BytesMut::with_capacity(1024);
    let theirs = read_hello(&mut io, &mut buffer).await?;
    sent?;
    Ok(Greeted { io, buffer, theirs })
}

/// As a client: what makes calls over a stream on which both have said hello, and the future that moves the connection
/// until it is over.
pub fn client<S>(
    greeted: Greeted<S>,
    info: Arc<ConnectionInfo>,
    options: Options,
) -> (Caller<Outbox>, Driver<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Greeted { io, buffer, theirs } = greeted;
    let connection = Connection::new(Role::Client, options.limits, theirs.limits, Outbox::default(), info);
    let inbox = Inbox::new(options.limits, buffer);
    let driver = Driver::client(io, Arc::clone(&connection), inbox, options.keepalive);
    (Caller(connection), driver)
}

/// As a client: says hello and returns what makes calls. The connection's driver runs as a task until it is over.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect<S>(
    io: S,
    info: Arc<ConnectionInfo>,
    options: Options,
) -> Result<Caller<Outbox>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let greeted = greet(io, &options.limits, Bytes::new()).await?;
    let (caller, driver) = client(greeted, info, options);
    tokio::spawn(driver);
    Ok(caller)
}

/// What a stream turned out to be.
#[derive(Debug)]
pub enum Heard<S> {
    /// A byway client, which waits for the server's hello.
    Native(Greeted<S>),
    /// Something else; these are the bytes that were read of it.
    Other(S, BytesMut),
}

/// As a server: waits for the client's hello.
///
/// # Errors
/// See [`ConnectError`]. A client whose version is not spoken here was told so.
pub async fn hear<S>(mut io: S, limits: &Limits) -> Result<Heard<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = BytesMut::with_capacity(1024);
    match read_hello(&mut io, &mut buffer).await {
        Ok(theirs) => Ok(Heard::Native(Greeted { io, buffer, theirs })),
        Err(ConnectError::Hello(HelloError::NotByway(_))) => Ok(Heard::Other(io, buffer)),
        Err(ConnectError::Hello(error)) => {
            refuse(&mut io, limits, &error.to_string()).await?;
            Err(ConnectError::Hello(error))
        }
        Err(error) => Err(error),
    }
}

/// As a server: answers a client's hello.
///
/// # Errors
/// The stream failed.
pub async fn answer<S: AsyncWrite + Unpin>(io: &mut S, limits: &Limits, extension: Bytes) -> io::Result<()> {
    io.write_all(&Hello { extension, ..Hello::new(limits) }.encode()).await
}

/// As a server: the future that serves a client, after both have said hello, until the connection is over. `drain` tells
/// it when to take no more calls.
pub fn server<S>(
    greeted: Greeted<S>,
    info: Arc<ConnectionInfo>,
    options: Options,
    router: Arc<Router>,
    drain: Drain,
) -> Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Greeted { io, buffer, theirs } = greeted;
    let connection = Connection::new(Role::Server, options.limits, theirs.limits, Outbox::default(), info);
    let inbox = Inbox::new(options.limits, buffer);
    Driver::server(io, connection, inbox, options.keepalive, router, drain)
}

/// Tells a client why it is not served.
///
/// # Errors
/// The stream failed.
pub async fn refuse<S: AsyncWrite + Unpin>(io: &mut S, limits: &Limits, reason: &str) -> io::Result<()> {
    io.write_all(&Hello::refusal(limits, reason).encode()).await?;
    io.shutdown().await
}

async fn read_hello<S: AsyncRead + Unpin>(io: &mut S, buffer: &mut BytesMut) -> Result<Hello, ConnectError> {
    loop {
        if let Some(hello) = Hello::take(buffer).map_err(ConnectError::Hello)? {
            return Ok(hello);
        }
        match io.read_buf(buffer).await {
            Ok(0) => return Err(ConnectError::Closed),
            // Closed as well, by a peer that did not read what we said first.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ConnectError::Closed),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
    }
}

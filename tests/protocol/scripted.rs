//! A gRPC server that answers what it is told to.
//!
//! Owns [`Scripted`], which has HTTP/2 from the `h2` crate and nothing else, and counts what reaches it; and the words in
//! which answers are written. Never: judges what the client makes of them.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use byway::codegen::http::request::Parts;
use byway::codegen::http::{HeaderMap, HeaderName, HeaderValue, Response};
use byway::{Channel, ChannelBuilder};
use byway_test_support::test::v1::EchoReply;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::wire::message;

/// A call, as a server has it.
pub(crate) struct Incoming {
    pub(crate) head: Parts,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse<Bytes>,
    pub(crate) peer: Peer,
    /// How many calls there were before.
    pub(crate) number: usize,
}

/// The connection that a call came by.
#[derive(Clone)]
pub(crate) struct Peer(UnboundedSender<Farewell>);

enum Farewell {
    InOrder,
    WithoutAWord,
}

impl Peer {
    /// Says GOAWAY, and closes when the open calls are over.
    pub(crate) fn goes_away(&self) {
        let _ = self.0.send(Farewell::InOrder);
    }

    /// Closes the connection at once, behind what was sent.
    pub(crate) fn dies(&self) {
        let _ = self.0.send(Farewell::WithoutAWord);
    }
}

impl Incoming {
    /// The requests' bytes, once the client has said that they are all.
    pub(crate) async fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(Ok(data)) = self.body.data().await {
            bytes.extend_from_slice(&data);
            self.body.flow_control().release_capacity(data.len()).expect("it was received");
        }
        bytes
    }

    /// Answers with one message.
    pub(crate) fn answer_well(&mut self) {
        let mut stream = begin(&mut self.respond);
        say(&mut stream, &message(&EchoReply { text: "well".to_owned(), ..EchoReply::default() }));
        end(stream, &[("grpc-status", "0")]);
    }
}

/// A listener that does `script` to every call.
pub(crate) struct Scripted {
    address: String,
    accepted: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    closed: UnboundedReceiver<()>,
    task: JoinHandle<()>,
}

impl Scripted {
    pub(crate) async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Incoming) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::greeting(|_| {}, script).await
    }

    /// Does `greet` to every connection, before its calls.
    pub(crate) async fn greeting<G, F, Fut>(greet: G, script: F) -> Self
    where
        G: Fn(&Peer) + Send + Sync + 'static,
        F: Fn(Incoming) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (accepted, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, counted) = (Arc::clone(&accepted), Arc::clone(&calls));
        let (gone, closed) = unbounded_channel();
        let (greet, script) = (Arc::new(greet), Arc::new(script));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                count.fetch_add(1, Ordering::SeqCst);
                let (greet, script) = (Arc::clone(&greet), Arc::clone(&script));
                let (calls, gone) = (Arc::clone(&counted), gone.clone());
                tokio::spawn(async move {
                    connection(stream, &*greet, &*script, &calls).await;
                    let _ = gone.send(());
                });
            }
        });
        Self { address, accepted, calls, closed, task }
    }

    /// A channel to it, over HTTP/2.
    pub(crate) fn channel(&self) -> ChannelBuilder {
        Channel::builder(format!("grpc://{}", self.address))
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Waits until one more connection is over.
    pub(crate) async fn closed(&mut self) {
        self.closed.recv().await.expect("the server is there");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection<Fut>(
    stream: TcpStream,
    greet: &impl Fn(&Peer),
    script: &impl Fn(Incoming) -> Fut,
    calls: &AtomicUsize,
) where
    Fut: Future<Output = ()> + Send + 'static,
{
    stream.set_nodelay(true).expect("a TCP socket");
    // A client that gives up during the preface is its own matter.
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let (control, mut farewells) = unbounded_channel();
    let peer = Peer(control);
    greet(&peer);
    loop {
        tokio::select! {
            // First what there is to be sent, then the farewell.
            biased;
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let (head, body) = request.into_parts();
                let number = calls.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(Incoming { head, body, respond, peer: peer.clone(), number }));
            }
            farewell = farewells.recv() => match farewell {
                Some(Farewell::InOrder) => connection.graceful_shutdown(),
                Some(Farewell::WithoutAWord) | None => return,
            },
        }
    }
}

// ---- What answers are made of ----

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
    pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

/// Sends a head; the only frame, if it ends.
pub(crate) fn head(
    respond: &mut SendResponse<Bytes>,
    status: u16,
    pairs: &[(&'static str, &str)],
    ends: bool,
) -> SendStream<Bytes> {
    let mut response = Response::new(());
    *response.status_mut() = status.try_into().expect("a status");
    *response.headers_mut() = headers(pairs);
    respond.send_response(response, ends).expect("the call is open")
}

/// Sends the head of a good answer.
pub(crate) fn begin(respond: &mut SendResponse<Bytes>) -> SendStream<Bytes> {
    head(respond, 200, &[("content-type", "application/grpc")], false)
}

/// Sends bytes.
pub(crate) fn say(stream: &mut SendStream<Bytes>, bytes: &[u8]) {
    stream.send_data(Bytes::copy_from_slice(bytes), false).expect("the call is open");
}

/// Sends trailers.
pub(crate) fn end(mut stream: SendStream<Bytes>, pairs: &[(&'static str, &str)]) {
    stream.send_trailers(headers(pairs)).expect("the call is open");
}

/// Waits for the client to reset a call.
pub(crate) async fn reset(stream: &mut SendStream<Bytes>) -> Reason {
    poll_fn(|cx| stream.poll_reset(cx)).await.expect("the connection is fine")
}

//! What stands between a channel and a server: it counts connections, and some of its manners are bad.
//!
//! Owns [`Front`] and [`Manner`]. A connection whose hello offers no RDMA is always carried to the server as it is, so that
//! whatever happens to the one with the offer, TCP works.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use byway::runtime::dispatch::Router;
use byway::runtime::session::Hello;
use byway::runtime::{ConnectionInfo, Endpoint, Limits};
use byway::testing::{Fabric, Fault};
use byway::{Channel, ChannelBuilder};
use byway_rdma::protocol::offer::{Capabilities, Extension, Offer, encode_verdict, take_verdict};
use byway_tcp::Options;
use byway_tcp::native::{self, Greeted};
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::{Probe, Probed, Running};
use crate::{stingy, warnings};

/// What happens to a connection whose hello offers RDMA.
#[derive(Clone)]
pub(crate) enum Manner {
    /// It is carried to the server.
    Carries,
    /// The same, after this has happened to the devices.
    Faults(Fabric, Vec<Fault>),
    /// A server without a word of RDMA in it answers.
    Native,
    /// No hello comes.
    Silent,
    /// It is closed before a hello.
    Closes,
    /// A hello with an offer comes, and no verdict.
    NoVerdict,
    /// A hello with an offer comes, and then the end.
    ClosesAfterHello,
    /// A hello with an offer comes, and then what is no verdict.
    Garbage,
    /// Both offer, and the peer's verdict is no.
    Declines(&'static str),
    /// Both say yes, and then the peer takes nothing, and sends these bytes over TCP.
    Stingy(Fabric, Bytes),
    /// The peer's offer is these bytes. It says no too, and goes on.
    Offers(Bytes),
}

/// Accepts connections for a server.
pub(crate) struct Front {
    address: String,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Front {
    pub(crate) async fn before(server: &Running, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        warnings::forget();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (count, server) = (Arc::clone(&accepted), server.text());
        let task = tokio::spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.expect("a connection");
                near.set_nodelay(true).expect("a TCP socket");
                count.fetch_add(1, Ordering::SeqCst);
                carried.spawn(serve(near, server.clone(), manner.clone()));
            }
        });
        Self { address, accepted, task }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Connections that were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn channel(&self) -> ChannelBuilder {
        Channel::builder(self.address())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut near: TcpStream, server: String, manner: Manner) {
    let mut read = BytesMut::new();
    let hello = loop {
        if let Some(hello) = Hello::take(&mut read.clone()).expect("a byway client") {
            break hello;
        }
        match near.read_buf(&mut read).await {
            Ok(1..) => {}
            _ => return,
        }
    };
    let Extension::Offer(offered) = Extension::decode(&hello.extension) else {
        return carry(near, &server, &read).await;
    };
    let answer = answer_to(&offered);
    match manner {
        Manner::Carries => carry(near, &server, &read).await,
        Manner::Faults(fabric, faults) => {
            faults.into_iter().for_each(|fault| fabric.inject(fault));
            carry(near, &server, &read).await;
        }
        Manner::Native => native_server(near, read).await,
        Manner::Silent => until_closed(near).await,
        Manner::Closes => {}
        Manner::NoVerdict => {
            say(&mut near, &hello_with(answer)).await;
            until_closed(near).await;
        }
        Manner::ClosesAfterHello => say(&mut near, &hello_with(answer)).await,
        Manner::Garbage => {
            say(&mut near, &hello_with(answer)).await;
            say(&mut near, b"BYWAYBYWAY").await;
            until_closed(near).await;
        }
        Manner::Stingy(fabric, bytes) => {
            stingy::serve(near, offered, &fabric, &bytes).await;
        }
        Manner::Declines(reason) => refuse(near, &server, answer, reason).await,
        Manner::Offers(extension) => refuse(near, &server, extension, "I cannot read it").await,
    }
}

/// Both offer, both say no, and the connection goes on to the server.
async fn refuse(mut near: TcpStream, server: &str, extension: Bytes, reason: &str) {
    say(&mut near, &hello_with(extension)).await;
    say(&mut near, &encode_verdict(&Err(reason.to_owned()))).await;
    let mut read = BytesMut::new();
    let theirs = loop {
        if let Some(verdict) = take_verdict(&mut read).expect("a verdict and nothing else") {
            break verdict;
        }
        assert!(near.read_buf(&mut read).await.is_ok_and(|len| len > 0), "a verdict comes");
    };
    theirs.expect_err("it has read my no, or cannot use my offer");
    let mut far = TcpStream::connect(server).await.expect("the server accepts");
    far.set_nodelay(true).expect("a TCP socket");
    // The server behind speaks plain TCP: it gets a hello, and its own is not passed on.
    say(&mut far, &Hello::new(&Limits { max_calls: 0, ..Limits::default() }).encode()).await;
    let mut answer = BytesMut::new();
    while Hello::take(&mut answer).expect("a byway server").is_none() {
        assert!(far.read_buf(&mut answer).await.is_ok_and(|len| len > 0), "a hello comes");
    }
    say(&mut near, &answer).await;
    say(&mut far, &read).await;
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

async fn carry(mut near: TcpStream, server: &str, read: &[u8]) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    far.set_nodelay(true).expect("a TCP socket");
    say(&mut far, read).await;
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

pub(crate) async fn say(stream: &mut TcpStream, bytes: &[u8]) {
    // The peer may have closed it: then there is nobody to hear.
    let _ = stream.write_all(bytes).await;
}

pub(crate) async fn until_closed(mut stream: TcpStream) {
    let mut ignored = [0; 64];
    while stream.read(&mut ignored).await.is_ok_and(|len| len > 0) {}
}

pub(crate) fn hello_with(extension: Bytes) -> Bytes {
    Hello { extension, ..Hello::new(&Limits::default()) }.encode()
}

/// An offer that can be used, but for the queue pair, which nobody has.
fn answer_to(offered: &Offer) -> Bytes {
    // There is a way to it.
    let endpoint = byway_rdma::nic::Endpoint { number: 0xff_fffe, ..offered.endpoint };
    let capabilities =
        Capabilities { receive_depth: 64, receive_size: 20 << 10, transfers: 4, offers: 0, windows: false };
    Extension::Offer(Offer { endpoint, capabilities, nonce: 5 }).encode()
}

/// An endpoint record as another version may write it.
pub(crate) fn endpoint_of_another_version() -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u16_le(1);
    bytes.put_u16_le(3);
    bytes.put_slice(b"new");
    bytes.freeze()
}

/// A server of the frames alone: it answers every hello with an empty extension.
async fn native_server(mut near: TcpStream, mut read: BytesMut) {
    let mut router = Router::default();
    router.add_direct(EchoServer::new(Probed(Arc::new(Probe::default())))).expect("a new path");
    let peer = Endpoint::Internet(near.peer_addr().expect("it is connected"));
    let theirs = Hello::take(&mut read).expect("a byway client").expect("whole");
    let options = Options::default();
    native::answer(&mut near, &options.limits, Bytes::new()).await.expect("the client waits");
    let greeted = Greeted { io: near, buffer: read, theirs };
    let info = Arc::new(ConnectionInfo { link: "tcp", peer });
    native::server(greeted, info, options, Arc::new(router), Box::pin(std::future::pending())).await;
}

use std::net::TcpListener;
use std::thread;

use bytes::Bytes;
use byway_rdma::nic::Endpoint;
use byway_rdma::protocol::offer::take_verdict;
use byway_rdma::verbs::Unavailable;

use super::*;

fn nothing() -> Verbs {
    let none = || Unavailable::NoDevice;
    Verbs { listing: Err(none()), trial: Err(none()) }
}

fn offer(mtu: Mtu) -> Extension {
    let endpoint = Endpoint { gid: [1; 16], lid: 0, number: 17, first_psn: 4, mtu };
    let capabilities =
        Capabilities { receive_depth: 64, receive_size: 32768, transfers: 4, offers: 0, windows: true };
    Extension::Offer(Offer { endpoint, capabilities, nonce: 9 })
}

/// A server that answers one client with these bytes, and returns what it read until the end.
fn server(answer: Bytes) -> (String, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = listener.local_addr().expect("bound").to_string();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut read = vec![0; 24];
        stream.read_exact(&mut read).expect("a hello");
        stream.write_all(&answer).expect("a client that listens");
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        stream.read_to_end(&mut read).expect("the end");
        read
    });
    (name, served)
}

fn ask(answer: Bytes, extension: &Extension) -> (Peer, Vec<u8>) {
    let (name, served) = server(answer);
    let dialled = dial(&name);
    assert!(dialled.local().is_some_and(|local| local.is_loopback()));
    let peer = dialled.ask(extension);
    (peer, served.join().expect("the server ends"))
}

fn hello(extension: &Extension) -> Bytes {
    Hello { extension: extension.encode(), ..Hello::new(&Limits::default()) }.encode()
}

fn verdicts(peer: &Peer) -> Vec<Verdict> {
    peer.findings(&nothing()).iter().map(|finding| finding.verdict).collect()
}

fn silence() -> Extension {
    Extension::Unavailable(String::new())
}

#[test]
fn an_offer_is_read_and_declined() {
    let (peer, read) = ask(hello(&offer(Mtu::B4096)), &offer(Mtu::B1024));
    assert!(peer.is_usable());
    assert_eq!(verdicts(&peer), [Verdict::Ok, Verdict::Ok, Verdict::Ok, Verdict::Skipped]);
    let rdma = &peer.findings(&nothing())[2];
    assert!(rdma.evidence.contains("packets of 4096 bytes, 64 receives of 32768 bytes"), "{}", rdma.evidence);
    // What it left with the server: a hello with the offer, and a clear no.
    let mut read = BytesMut::from(&read[..]);
    let sent = Hello::take(&mut read).expect("a hello").expect("whole");
    assert!(Extension::decode(&sent.extension).offers());
    let verdict = take_verdict(&mut read).expect("a verdict").expect("whole");
    assert_eq!(verdict, Err("byway doctor only asks".into()));
}

#[test]
fn what_a_peer_says_against_it_is_repeated() {
    let (peer, _) = ask(hello(&Extension::Unavailable("there is no RDMA device".into())), &offer(Mtu::B1024));
    assert_eq!(verdicts(&peer), [Verdict::Ok, Verdict::Ok, Verdict::Fail, Verdict::Skipped]);
    assert_eq!(peer.refusal(), "it says: there is no RDMA device");
    let (peer, _) = ask(hello(&silence()), &offer(Mtu::B1024));
    assert_eq!(peer.findings(&nothing())[2].verdict, Verdict::Fail);
    assert_eq!(peer.refusal(), "it offers none");
}

#[test]
fn silence_about_what_was_not_asked_means_nothing() {
    let (peer, read) = ask(hello(&silence()), &Extension::Unavailable("no device".into()));
    assert_eq!(peer.findings(&nothing())[2].verdict, Verdict::Unknown);
    let mut read = BytesMut::from(&read[..]);
    let sent = Hello::take(&mut read).expect("a hello").expect("whole");
    assert_eq!(Extension::decode(&sent.extension), Extension::Unavailable("no device".into()));
    assert!(read.is_empty(), "no verdict where there is no agreement");
}

#[test]
fn other_servers_and_none_are_told_apart() {
    let (peer, _) = ask(Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n"), &silence());
    assert_eq!(verdicts(&peer), [Verdict::Ok, Verdict::Fail, Verdict::Skipped, Verdict::Skipped]);
    assert!(peer.refusal().starts_with("the peer does not speak byway's protocol"), "{}", peer.refusal());
    let (peer, _) = ask(Bytes::new(), &silence());
    assert_eq!(peer.refusal(), "it closed the connection before it said hello");
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
    let peer = dial(&closed).ask(&silence());
    assert_eq!(verdicts(&peer)[..2], [Verdict::Fail, Verdict::Skipped]);
    assert!(peer.refusal().starts_with("it cannot be reached: Connection refused"), "{}", peer.refusal());
    assert!(dial("a name without a port").connection.is_err());
}

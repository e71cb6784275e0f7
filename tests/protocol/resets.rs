//! Calls that a server does not answer: it resets them, sends them away, or is gone.

use byway::{Channel, Code, Status};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use h2::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{soon, story};
use crate::replies::{check, row};
use crate::scripted::{Incoming, Scripted, begin, end, head, say};
use crate::wire::{message, text};

const GRPC: (&str, &str) = ("content-type", "application/grpc");

async fn client(server: &Scripted) -> EchoClient<Channel> {
    EchoClient::new(soon(server.channel().connect()).await.expect("a connection"))
}

/// PROTOCOL-HTTP2.md, "Errors": the mapping of RST_STREAM codes.
#[test]
fn resets() {
    let mapped: [(Reason, &'static [Code]); 11] = [
        (Reason::NO_ERROR, &[Code::Internal]),
        (Reason::PROTOCOL_ERROR, &[Code::Internal]),
        (Reason::INTERNAL_ERROR, &[Code::Internal]),
        (Reason::FLOW_CONTROL_ERROR, &[Code::Internal]),
        (Reason::SETTINGS_TIMEOUT, &[Code::Internal]),
        (Reason::FRAME_SIZE_ERROR, &[Code::Internal]),
        (Reason::CANCEL, &[Code::Cancelled]),
        (Reason::COMPRESSION_ERROR, &[Code::Internal]),
        (Reason::CONNECT_ERROR, &[Code::Internal]),
        (Reason::ENHANCE_YOUR_CALM, &[Code::ResourceExhausted]),
        (Reason::INADEQUATE_SECURITY, &[Code::PermissionDenied]),
    ];
    check(mapped.into_iter().flat_map(|(reason, codes)| {
        let at_once = move |call: &mut Incoming| {
            call.respond.send_reset(reason);
            None
        };
        let after_the_head = move |call: &mut Incoming| {
            begin(&mut call.respond).send_reset(reason);
            None
        };
        let in_a_message = move |call: &mut Incoming| {
            let mut stream = begin(&mut call.respond);
            say(&mut stream, &[0, 0, 0, 0, 9, 1]);
            stream.send_reset(reason);
            None
        };
        [
            row(format!("{reason:?} at once"), at_once, codes, ""),
            row(format!("{reason:?} after the head"), after_the_head, codes, ""),
            row(format!("{reason:?} in a message"), in_a_message, codes, ""),
        ]
    }));
}

/// PROTOCOL-HTTP2.md: REFUSED_STREAM "indicates that no processing occurred and the request can be retried".
#[test]
fn a_refused_call_is_sent_again() {
    story(async {
        let server = Scripted::start(|mut call| async move {
            match call.number {
                0 | 1 => call.respond.send_reset(Reason::REFUSED_STREAM),
                _ => {
                    call.read().await;
                    call.answer_well();
                }
            }
        })
        .await;
        let client = client(&server).await;
        let reply = soon(client.unary(text("again"))).await.expect("a reply");
        assert_eq!(reply.get_ref().text, "well");
        assert_eq!(server.calls(), 3);
    });
}

#[test]
fn a_call_that_is_always_refused_is_unavailable() {
    story(async {
        let server = Scripted::start(|mut call| async move {
            call.respond.send_reset(Reason::REFUSED_STREAM);
        })
        .await;
        let client = client(&server).await;
        let status = soon(client.unary(text("never"))).await.expect_err("it is never taken");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let calls = server.calls();
        assert!((2..=10).contains(&calls), "sent {calls} times");
    });
}

/// statuscodes.md: "Some data transmitted before connection breaks" is UNAVAILABLE. It may have been executed, so it is
/// not sent again; the next call finds a new connection.
#[test]
fn a_connection_that_dies_costs_its_calls() {
    story(async {
        for answered in [0, 1, 2] {
            let server = Scripted::start(move |mut call| async move {
                if call.number > 0 {
                    call.read().await;
                    return call.answer_well();
                }
                let mut stream = (answered > 0).then(|| begin(&mut call.respond));
                if let Some(stream) = &mut stream
                    && answered > 1
                {
                    say(stream, &message(&EchoReply::default()));
                }
                call.peer.dies();
                // Its handles stay, or they would reset the call first.
                std::future::pending::<()>().await;
            })
            .await;
            let client = client(&server).await;
            let request = EchoRequest { count: 9, ..text("lost") };
            let lost: Result<usize, Status> = soon(async {
                let mut replies = client.expand(request).await?.into_inner();
                let mut count = 0;
                while replies.message().await?.is_some() {
                    count += 1;
                }
                Ok(count)
            })
            .await;
            assert_eq!(lost.expect_err("it is lost").code(), Code::Unavailable, "{answered}");
            assert_eq!(server.calls(), 1, "it was sent once");
            soon(client.unary(text("next"))).await.expect("a new connection");
            assert_eq!(server.accepted(), 2);
        }
    });
}

/// PROTOCOL-HTTP2.md, "GOAWAY Frame": later calls go elsewhere, accepted ones to their end.
#[test]
fn calls_after_goaway_go_by_a_new_connection() {
    story(async {
        let mut server = Scripted::start(|mut call| async move {
            call.read().await;
            if call.number == 0 {
                call.peer.goes_away();
            }
            call.answer_well();
        })
        .await;
        let client = client(&server).await;
        soon(client.unary(text("the last one here"))).await.expect("it was accepted");
        soon(server.closed()).await;
        for _ in 0..3 {
            soon(client.unary(text("moved"))).await.expect("a reply");
        }
        assert_eq!((server.accepted(), server.calls()), (2, 4));
    });
}

#[test]
fn a_connection_that_is_sent_away_before_any_call_costs_none() {
    story(async {
        let greeted = std::sync::atomic::AtomicBool::new(false);
        let greet = move |peer: &crate::scripted::Peer| {
            if !greeted.swap(true, std::sync::atomic::Ordering::SeqCst) {
                peer.goes_away();
            }
        };
        let mut server = Scripted::greeting(greet, |mut call| async move {
            call.read().await;
            call.answer_well();
        })
        .await;
        let client = client(&server).await;
        soon(server.closed()).await;
        soon(client.unary(text("moved"))).await.expect("a reply");
        assert_eq!((server.accepted(), server.calls()), (2, 1));
    });
}

/// Cardinality, by statuscodes.md: a unary call has one reply, or a status.
#[test]
fn a_unary_call_has_one_reply() {
    story(async {
        let none_at_once = |call: &mut Incoming| {
            head(&mut call.respond, 200, &[GRPC, ("grpc-status", "0")], true);
        };
        let none = |call: &mut Incoming| end(begin(&mut call.respond), &[("grpc-status", "0")]);
        let two = |call: &mut Incoming| {
            let mut stream = begin(&mut call.respond);
            say(&mut stream, &[message(&EchoReply::default()), message(&EchoReply::default())].concat());
            end(stream, &[("grpc-status", "0")]);
        };
        let failed_after_one = |call: &mut Incoming| {
            let mut stream = begin(&mut call.respond);
            say(&mut stream, &message(&EchoReply::default()));
            end(stream, &[("grpc-status", "10")]);
        };
        type Reply = fn(&mut Incoming);
        let rows: [(&str, Reply, Code); 4] = [
            ("none at once", none_at_once, Code::Unimplemented),
            ("none", none, Code::Unimplemented),
            ("two", two, Code::Unimplemented),
            ("one, and then a failure", failed_after_one, Code::Aborted),
        ];
        for (name, reply, code) in rows {
            let server = Scripted::start(move |mut call| async move {
                call.read().await;
                reply(&mut call);
            })
            .await;
            let client = client(&server).await;
            let status = soon(client.unary(text("one"))).await.expect_err(name);
            assert_eq!(status.code(), code, "{name}: {status}");
            let requests = tokio_stream::once(text("one"));
            let status = soon(client.collect(requests)).await.expect_err(name);
            assert_eq!(status.code(), code, "{name}, with many requests: {status}");
        }
    });
}

/// Whoever was asked for gRPC and speaks something else is named.
#[test]
fn a_server_that_speaks_no_http_2_is_unavailable() {
    story(async {
        for first in
            [&b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.9\r\n"]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let task = tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(async move {
                        // The client may close as soon as it has seen enough.
                        let _ = stream.write_all(first).await;
                        let _ = stream.read_to_end(&mut Vec::new()).await;
                    });
                }
            });
            let channel = Channel::builder(format!("grpc://{address}")).connect_lazy().expect("an address");
            let status = soon(EchoClient::new(channel).unary(text("x"))).await.expect_err("no gRPC there");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            task.abort();
        }
    });
}

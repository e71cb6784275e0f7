//! Calls that end before they are answered: the client resets them or goes, time runs out, or the server drains.

use byway::{Code, Server};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use h2::Reason;

use crate::harness::{soon, story};
use crate::served::Served;
use crate::wire::{Ask, Ended, ask, text};

const METHODS: [(&str, &str); 4] =
    [("Unary", "unary"), ("Collect", "collect"), ("Expand", "expand"), ("Chat", "chat")];

fn began(name: &str) -> Event {
    Event::Began(name.to_owned())
}

fn dropped(name: &str) -> Event {
    Event::Dropped(name.to_owned())
}

/// A call whose handler waits.
fn held(method: &str) -> Ask {
    ask(method).with("hold-after", "0")
}

#[test]
fn a_reset_drops_the_handler() {
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        for (method, name) in METHODS {
            // Its end has been sent. A method that takes one request may wait for it before its handler begins.
            for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
                let mut exchange = soon(wire.begin(&held(method))).await.expect("it is sent");
                soon(server.journal.until(began(name))).await;
                exchange.requests.send_reset(reason);
                soon(server.journal.until(dropped(name))).await;
            }
        }
        for (method, name) in [METHODS[1], METHODS[3]] {
            let mut exchange = soon(wire.begin(&held(method).open())).await.expect("it is sent");
            soon(server.journal.until(began(name))).await;
            exchange.requests.send_reset(Reason::CANCEL);
            soon(server.journal.until(dropped(name))).await;
        }
        soon(wire.serves()).await.expect("the connection is fine");
        drop(wire);
        server.stop().await;
    });
}

#[test]
fn others_go_on_when_one_is_reset() {
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        let staying = soon(wire.begin(&held("Unary").with("call", "staying"))).await.expect("it is sent");
        let mut leaving = soon(wire.begin(&held("Unary").with("call", "leaving"))).await.expect("it is sent");
        for _ in 0..2 {
            soon(server.journal.next()).await;
        }
        leaving.requests.send_reset(Reason::CANCEL);
        soon(server.journal.until(dropped("leaving"))).await;
        server.journal.release(1);
        let answer = soon(staying.end()).await.1.answer();
        assert_eq!(answer.code(), Some(Code::Ok));
        drop(wire);
        server.stop().await;
    });
}

#[test]
fn a_lost_connection_drops_its_handlers() {
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        let mut open = Vec::new();
        for (method, name) in METHODS {
            open.push(soon(wire.begin(&held(method))).await.expect("it is sent"));
            soon(server.journal.until(began(name))).await;
        }
        wire.connection.abort();
        let mut ended = Vec::new();
        for _ in METHODS {
            ended.push(soon(server.journal.next()).await);
        }
        for (_, name) in METHODS {
            assert!(ended.contains(&dropped(name)), "{ended:?}");
        }
        soon(server.wire().await.serves()).await.expect("the server serves others");
        server.stop().await;
    });
}

/// PROTOCOL-HTTP2.md: "gRPC servers track the deadline of the RPC".
#[test]
fn time_that_runs_out_drops_the_handler() {
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        for (method, _) in METHODS {
            // A slow machine may need a later deadline for the handler to begin at all.
            for timeout in ["30m", "300m", "3S"] {
                let ended =
                    soon(wire.call(&held(method).with("grpc-timeout", timeout).with("call", "timed"))).await;
                assert_eq!(ended.answer().code(), Some(Code::DeadlineExceeded), "{method}");
                soon(wire.serves()).await.expect("the connection is fine");
                let seen = server.journal.unread();
                let began = seen.contains(&began("timed"));
                if began && !seen.contains(&dropped("timed")) {
                    soon(server.journal.until(dropped("timed"))).await;
                }
                if began {
                    break;
                }
                assert_ne!(
                    timeout, "3S",
                    "{method}: its handler did not begin, however late the deadline was"
                );
            }
        }
        drop(wire);
        server.stop().await;
    });
}

/// PROTOCOL-HTTP2.md, "GOAWAY Frame": accepted streams go on, new ones are for another connection.
#[test]
fn a_server_that_drains_finishes_what_it_accepted() {
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        let unary = soon(wire.begin(&held("Unary"))).await.expect("it is sent");
        soon(server.journal.until(began("unary"))).await;
        let stream = held("Expand").message(&EchoRequest { count: 3, ..text("three") });
        let expand = soon(wire.begin(&stream)).await.expect("it is sent");
        soon(server.journal.until(began("expand"))).await;
        server.drain();
        // Until it hears of the drain, a client may begin calls, which are served.
        let refused = loop {
            match soon(wire.call(&ask("Unary"))).await {
                Ended::Answered(answer) if answer.code() == Some(Code::Ok) => {
                    tokio::task::yield_now().await;
                }
                refused => break refused,
            }
        };
        assert!(
            matches!(&refused, Ended::Broken(_) | Ended::Reset(Reason::REFUSED_STREAM)),
            "not looked at: {refused:?}"
        );
        server.journal.release(4);
        let answer = soon(unary.end()).await.1.answer();
        assert_eq!((answer.code(), answer.messages().len()), (Some(Code::Ok), 1));
        let answer = soon(expand.end()).await.1.answer();
        assert_eq!((answer.code(), answer.messages().len()), (Some(Code::Ok), 3));
        // The server closes the connection by itself, in order.
        let closed = soon(&mut wire.connection).await.expect("no panic");
        if let Err(error) = closed {
            assert_eq!(error.reason(), Some(Reason::NO_ERROR), "{error}");
        }
        server.stop().await;
    });
}

#[test]
fn an_idle_connection_is_closed_when_the_server_drains() {
    story(async {
        let server = Served::start().await;
        let mut wire = server.wire().await;
        soon(wire.serves()).await.expect("a good connection");
        server.stop().await;
        let closed = soon(&mut wire.connection).await.expect("no panic");
        if let Err(error) = closed {
            assert_eq!(error.reason(), Some(Reason::NO_ERROR), "{error}");
        }
    });
}

/// statuscodes.md: "Server shutting down" is UNAVAILABLE.
#[test]
fn what_a_drain_cuts_off_is_unavailable() {
    story(async {
        let builder = Server::builder().drain_timeout(std::time::Duration::from_millis(20));
        let mut server = Served::with(builder).await;
        let mut wire = server.wire().await;
        let unary = soon(wire.begin(&held("Unary"))).await.expect("it is sent");
        soon(server.journal.until(began("unary"))).await;
        let expand = soon(wire.begin(&held("Expand"))).await.expect("it is sent");
        soon(server.journal.until(began("expand"))).await;
        server.drain();
        for exchange in [unary, expand] {
            let answer = soon(exchange.end()).await.1.answer();
            assert_eq!(answer.code(), Some(Code::Unavailable), "{answer:?}");
        }
        server.stop().await;
    });
}

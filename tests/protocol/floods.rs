//! Clients that ask for much and take little: what they cost is bounded, and others notice nothing.

use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use h2::Reason;

use crate::harness::{soon, story};
use crate::served::Served;
use crate::wire::{ask, text};

/// Each call is reset as soon as it was made, which a server may at some point answer with the end of the connection.
#[test]
fn calls_that_are_reset_at_once_pile_up_nowhere() {
    story(async {
        let (began, dropped) = (Event::Began("reset".to_owned()), Event::Dropped("reset".to_owned()));
        let mut server = Served::start().await;
        let (mut good, mut bad) = (server.wire().await, server.wire().await);
        let mut events = Vec::new();
        for round in 0..5000 {
            match bad.begin(&ask("Unary").with("hold-after", "0").with("call", "reset")).await {
                Ok(mut exchange) => {
                    // The first one for certain, and others as it happens, reach their handlers.
                    while round == 0 && !events.contains(&began) {
                        events.push(soon(server.journal.next()).await);
                    }
                    exchange.requests.send_reset(Reason::CANCEL);
                }
                Err(_) => bad = server.wire().await,
            }
            if round % 500 == 0 {
                soon(good.serves()).await.expect("others are served");
            }
        }
        soon(good.serves()).await.expect("others are served");
        drop((good, bad));
        events.extend(server.stop().await.unread());
        let count = |event| events.iter().filter(|seen| *seen == event).count();
        assert_eq!(count(&began), count(&dropped));
    });
}

/// A handler makes replies only as they find room: in the window of a client that reads nothing, 64 KiB, and what the
/// server holds ready beside it.
#[test]
fn a_client_that_reads_nothing_is_sent_its_window() {
    const SIZE: usize = 4000;
    const FIT: usize = 65_535 / SIZE;
    story(async {
        let mut server = Served::start().await;
        let mut wire = server.wire().await;
        let endless = EchoRequest { count: u32::MAX, payload: vec![7; SIZE].into(), ..text("endless") };
        let mut exchange = soon(wire.begin(&ask("Expand").message(&endless))).await.expect("it is sent");
        let mut replies = server.journal.replies();
        soon(replies.wait_for(|replies| *replies >= FIT)).await.expect("the service is there");
        for _ in 0..20 {
            soon(wire.serves()).await.expect("others are served");
        }
        let made = *replies.borrow();
        assert!(made <= 8 * FIT, "{made} replies were made, {FIT} fit the window");
        exchange.requests.send_reset(Reason::CANCEL);
        soon(server.journal.until(Event::Dropped("expand".to_owned()))).await;
        drop((wire, exchange));
        server.stop().await;
    });
}

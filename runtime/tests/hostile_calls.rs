//! What a hostile or overloaded peer can do to one call, and what it cannot do to the others.
//!
//! Owns the sequences that do not break the protocol but cost something: budgets, floods, resets, and frames that
//! cross with the end of their call. Each says exactly what the call ends with and what was sent.

mod support;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use byway_runtime::connection::{Caller, Connection};
use byway_runtime::link::Body;
use byway_runtime::session::{CallId, Event, Kind, RequestHead, Role};
use byway_runtime::{
    Call, CallRef, Carrier, ConnectionInfo, Endpoint, Invoke, Limits, NewCall, Part, SendError,
};
use support::{END, HEAD, MESSAGE, NONE, Task, Victim, Wire, call, control, data, open};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

const LIMITS: Limits =
    Limits { max_message: 1000, max_head: 500, max_calls: 4, window: 1000, receive_budget: 600 };

const BUDGET: &str = "the connection holds 600 bytes of messages that nobody has read yet, its limit";

/// The status in the last frame that was pushed: its code and text.
fn last_status(link: &Wire) -> (u8, String) {
    let sent = link.frames.back().expect("something was said");
    assert!(sent.header.flags.contains(END), "{:?}", sent.header);
    let len = usize::from(sent.head[1]);
    (sent.head[0], String::from_utf8_lossy(&sent.head[2..2 + len]).into_owned())
}

#[test]
fn an_empty_message_is_a_message_wherever_it_comes() {
    let mut server = Victim::new(Role::Server, LIMITS);
    let unary = server.dispatches(&open(call(0, 1), MESSAGE.with(END), 0));
    assert_eq!(unary.message.as_deref(), Some(&[][..]));
    assert!(unary.ended);
    let streamed = server.dispatches(&open(call(1, 1), NONE, 0));
    assert_eq!(streamed.message, None);
    server.takes(&data(streamed.id, MESSAGE, &[], 0));
    assert_eq!(server.reads(streamed.id).message.as_deref(), Some(&[][..]));
}

#[test]
fn a_message_that_came_with_its_call_gives_its_window_back_when_more_is_asked_for() {
    let mut server = Victim::new(Role::Server, LIMITS);
    let incoming = server.dispatches(&open(call(0, 1), MESSAGE, 500));
    assert_eq!(server.session.held(), 564);
    assert!(server.poll(incoming.id).is_pending());
    assert_eq!(server.session.held(), 0, "who asks for more has taken it");
    assert_eq!(server.said(), [(Kind::Window, incoming.id)]);
    server.takes(&data(incoming.id, MESSAGE, &[], 400));
    server.takes(&data(incoming.id, MESSAGE, &[], 0));
    assert_eq!(server.reads_message(incoming.id), 400);
}

#[test]
fn a_call_beyond_the_receive_budget_ends_and_the_others_go_on() {
    let mut server = Victim::new(Role::Server, LIMITS);
    let witness = server.dispatches(&open(call(0, 1), MESSAGE, 400)).id;
    let late = server.dispatches(&open(call(1, 1), NONE, 0)).id;
    server.said();
    // A message for an open call, and then one that opens a call.
    server.takes(&data(late, MESSAGE, &[], 100));
    assert_eq!(last_status(&server.link), (Code::ResourceExhausted as u8, BUDGET.into()));
    assert!(server.is_over(late));
    server.takes(&open(call(2, 1), MESSAGE, 100));
    assert_eq!(last_status(&server.link), (Code::ResourceExhausted as u8, BUDGET.into()));
    assert_eq!(server.said(), [(Kind::Data, late), (Kind::Data, call(2, 1))]);
    // What was under way for them is ignored, their slots are free, and the first call is as before.
    server.takes(&data(late, MESSAGE, &[], 100));
    server.takes(&data(call(2, 1), END, &[], 0));
    server.takes(&control(Kind::Window, late, &[1, 0, 0, 0]));
    server.dispatches(&open(call(2, 2), NONE, 0));
    assert_eq!(server.session.held(), 464);
    server.takes(&data(witness, MESSAGE.with(END), &[], 50));
    assert_eq!(server.reads_message(witness), 50);
}

#[test]
fn a_reply_beyond_the_receive_budget_ends_its_call_whether_or_not_it_was_the_last() {
    for end in [NONE, END] {
        let mut client = Victim::new(Role::Client, LIMITS);
        let (witness, id) = (client.opens(), client.opens());
        client.takes(&data(witness, HEAD.with(MESSAGE), &[], 400));
        client.said();
        client.takes(&data(id, HEAD.with(MESSAGE).with(end), &[], 200));
        let expected = ("status", Code::ResourceExhausted, BUDGET.into());
        assert_eq!(client.ends(id), expected);
        let told = if end == END { vec![] } else { vec![(Kind::Reset, id)] };
        assert_eq!(client.said(), told, "a server that has ended the call needs no word");
        assert_eq!(client.reads_message(witness), 400);
    }
}

#[test]
fn what_crosses_with_a_clients_own_end_of_a_call_is_ignored() {
    let mut client = Victim::new(Role::Client, LIMITS);
    let (witness, id) = (client.opens(), client.opens());
    client.session.finish(&mut client.link, id, &Status::aborted("enough"));
    for late in [
        data(id, HEAD.with(MESSAGE), &[], 100),
        control(Kind::Window, id, &[1, 0, 0, 0]),
        data(id, MESSAGE, &[], 800),
        data(id, MESSAGE.with(END), &[], 5),
        control(Kind::Reset, id, &[0]),
    ] {
        client.takes(&late);
    }
    assert_eq!(client.session.held(), 0);
    assert_eq!(client.ends(id), ("status", Code::Aborted, "enough".into()));
    assert!(client.is_over(id));
    client.takes(&data(witness, HEAD.with(MESSAGE), &[], 5));
    assert_eq!(client.reads_message(witness), 5);
}

#[test]
fn resets_end_a_call_with_what_they_mean() {
    for (code, kind, text) in [
        (0, "status", "the server reset the call (Cancelled)"),
        (1, "not sent", "the server takes no new calls"),
        (9, "status", "the server reset the call (Unknown(9))"),
    ] {
        let mut client = Victim::new(Role::Client, LIMITS);
        let (witness, id) = (client.opens(), client.opens());
        client.takes(&control(Kind::Reset, id, &[code]));
        client.takes(&control(Kind::Reset, id, &[code]));
        let over = Part { end: Some(Ok(None)), ..Part::default() };
        assert_eq!(client.sends(id, over), Poll::Ready(Err(SendError::Over)));
        assert_eq!(client.ends(id), (kind, Code::Unavailable, text.into()));
        assert!(client.is_over(id) && !client.is_over(witness));
        let next = client.opens();
        assert_eq!(next, call(1, 2), "the slot is used again");
        client.takes(&control(Kind::Reset, id, &[code]));
        assert!(!client.is_over(next), "a late reset is not for the next call");
    }
}

#[test]
fn opening_and_resetting_in_a_loop_stops_the_reading_until_handlers_end() {
    let mut server = Victim::new(Role::Server, LIMITS);
    let mut handlers = Vec::new();
    for generation in 1.. {
        if !server.session.accepts() {
            break;
        }
        handlers.push(server.dispatches(&open(call(0, generation), END, 0)).id);
        server.takes(&control(Kind::Reset, call(0, generation), &[0]));
    }
    assert_eq!(handlers.len(), 2 * usize::from(LIMITS.max_calls));
    assert_eq!((server.session.open_calls(), server.session.handlers()), (0, 8));
    let leaver = handlers.pop().expect("there are some");
    server.session.abandon(&mut server.link, leaver, &Status::internal("gone"));
    assert!(server.session.accepts());
    handlers.push(server.dispatches(&open(call(3, 1), END, 0)).id);
    assert!(!server.session.accepts());
    for id in handlers {
        server.session.abandon(&mut server.link, id, &Status::internal("gone"));
    }
    assert_eq!(server.session.handlers(), 0);
    assert_eq!(server.said(), [(Kind::Data, call(3, 1))], "only the one that was still open has an answer");
}

#[test]
fn a_server_whose_link_is_full_of_pongs_does_not_read_on() {
    let info = Arc::new(ConnectionInfo { link: "test", peer: Endpoint::Local });
    let link = Wire { room: 3, ..Wire::default() };
    let connection = Connection::new(Role::Server, LIMITS, LIMITS, link, info);
    let ping = control(Kind::Ping, CallId::CONNECTION, &[5; 8]);
    let mut answered = 0;
    connection.turn(&mut Vec::new(), |turn| {
        while turn.accepts() {
            turn.frame(&ping.header, ping.head(), ping.body()).expect("a valid ping");
            answered += 1;
        }
        assert_eq!(answered, 3, "one for each place in the link");
        assert!(
            turn.link().frames.iter().all(|sent| sent.header.kind == Kind::Pong && sent.head[..] == [5; 8])
        );
        turn.link().frames.clear();
        assert!(turn.accepts());
    });
}

#[test]
fn pings_that_find_no_room_are_answered_by_one_pong() {
    for role in [Role::Client, Role::Server] {
        let mut victim = Victim::new(role, LIMITS);
        victim.link.room = 2;
        for number in 0..100 {
            victim.takes(&control(Kind::Ping, CallId::CONNECTION, &[number; 8]));
        }
        assert_eq!(victim.said(), [(Kind::Pong, CallId::CONNECTION); 2]);
        victim.session.handle_room(&mut victim.link);
        assert_eq!(victim.link.frames[0].head[..], [99; 8], "the latest");
        assert_eq!(victim.said().len(), 1);
    }
}

#[test]
fn a_handler_that_outlives_its_call_never_answers_another_one_of_the_same_id() {
    let mut server = Victim::new(Role::Server, LIMITS);
    let late = server.dispatches(&open(call(0, 1), END, 0)).id;
    server.takes(&control(Kind::Reset, late, &[0]));
    for generation in 2..=u16::MAX {
        let id = server.dispatches(&open(call(0, generation), END, 0)).id;
        server.takes(&control(Kind::Reset, id, &[0]));
        server.session.abandon(&mut server.link, id, &Status::internal("gone"));
    }
    server.said();
    server.takes(&open(late, END, 0));
    assert_eq!(server.said(), [(Kind::Reset, late)], "refused: it is sent again elsewhere");
    server.session.finish(&mut server.link, late, &Status::internal("late"));
    server.session.abandon(&mut server.link, late, &Status::internal("late"));
    assert_eq!(server.said(), []);
    let next = server.dispatches(&open(call(0, 2), END, 0)).id;
    assert!(!server.is_over(next));
    assert_eq!(server.session.handlers(), 1);
}

#[test]
fn metadata_that_the_peer_would_refuse_is_refused_before_it_is_sent() {
    let mut metadata = MetadataMap::new();
    for _ in 0..=256 {
        metadata.append("k", "".parse().expect("ascii"));
    }
    let limits = Limits { max_head: 16 << 10, ..LIMITS };
    let mut client = Victim::new(Role::Client, limits);
    let head = RequestHead { path: "/a", timeout: None, metadata: &metadata };
    assert!(client.session.open(&mut client.link, &NewCall::new(head)).is_err());
    let head = RequestHead { path: "no slash", timeout: None, metadata: &MetadataMap::new() };
    assert!(client.session.open(&mut client.link, &NewCall::new(head)).is_err());
    let mut server = Victim::new(Role::Server, limits);
    let id = server.dispatches(&open(call(0, 1), END, 0)).id;
    let part = Part { head: Some(&metadata), ..Part::default() };
    assert!(matches!(server.sends(id, part), Poll::Ready(Err(_))));
    let status = Status::with_metadata(Code::Aborted, "why", metadata);
    server.session.finish(&mut server.link, id, &status);
    assert_eq!(last_status(&server.link).0, Code::ResourceExhausted as u8);
    assert_eq!(server.said(), [(Kind::Data, id)]);
}

#[test]
fn small_messages_that_wait_do_not_hold_the_buffer_they_were_read_into() {
    let mut server = Victim::new(Role::Server, Limits::default());
    let id = server.dispatches(&open(call(0, 1), NONE, 0)).id;
    let frame = data(id, MESSAGE, &[], 1);
    let buffer = Bytes::from(vec![7; 64 << 10]);
    for at in 0..2000 {
        let body = Body::Here(buffer.slice(at..=at));
        server.session.handle_frame(&mut server.link, &frame.header, Bytes::new(), body).expect("valid");
    }
    let within = buffer.as_ptr_range();
    let held = (0..2000).filter(|_| {
        let message = server.reads(id).message.expect("it was sent");
        assert_eq!(message[..], [7]);
        within.contains(&message.as_ptr())
    });
    assert_eq!(held.count(), 1024, "readers that keep up are spared the copy, slow ones are not");
}

#[test]
fn every_caller_that_waits_for_a_free_call_learns_that_there_will_be_none() {
    let info = Arc::new(ConnectionInfo { link: "test", peer: Endpoint::Local });
    let remote = Limits { max_calls: 0, ..LIMITS };
    let caller = Caller(Connection::new(Role::Client, LIMITS, remote, Wire::default(), info));
    let tasks: Vec<Arc<Task>> = (0..5).map(|_| Arc::default()).collect();
    let mut waiting: Vec<_> = (0..5).map(|_| caller.ready()).collect();
    for (ready, task) in waiting.iter_mut().zip(&tasks) {
        assert!(ready.as_mut().poll(&mut Context::from_waker(&task.waker())).is_pending());
    }
    let drain = control(Kind::Drain, CallId::CONNECTION, &[]);
    caller.0.turn(&mut Vec::new(), |turn| {
        turn.frame(&drain.header, drain.head(), drain.body()).expect("a valid drain");
    });
    // Whoever is woken looks again, as a task would; in the end nobody is left.
    let mut left: Vec<_> = waiting.into_iter().zip(&tasks).collect();
    for _ in 0..5 {
        left.retain_mut(|(ready, task)| {
            let mut cx = Context::from_waker(Waker::noop());
            !(task.take_woken() && ready.as_mut().poll(&mut cx).is_ready())
        });
    }
    assert!(left.is_empty(), "{} callers wait for ever", left.len());
}

#[test]
fn an_end_after_the_end_does_not_end_a_handler_twice() {
    let info = Arc::new(ConnectionInfo { link: "test", peer: Endpoint::Local });
    let connection = Connection::new(Role::Server, LIMITS, LIMITS, Wire::default(), info);
    let frame = open(call(0, 1), END, 0);
    let opened =
        connection.turn(&mut Vec::new(), |turn| turn.frame(&frame.header, frame.head(), frame.body()));
    let Ok(Event::Call(incoming)) = opened else { panic!("a valid call") };
    let mut answer = Call::new(CallRef::new(Arc::clone(&connection) as Arc<dyn Carrier>, incoming.id));
    let part = Part { end: Some(Ok(None)), ..Part::default() };
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(answer.poll_answer(&mut cx, part), Poll::Ready(Ok(())));
    assert_eq!(answer.poll_answer(&mut cx, part), Poll::Ready(Err(SendError::Over)));
    drop(answer);
    assert!(connection.turn(&mut Vec::new(), |turn| turn.is_idle()));
}

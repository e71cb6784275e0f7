//! Deadlines of a client's session, which is told the time.

mod support;

use std::time::Duration;

use bytes::Bytes;
use byway_runtime::link::Body;
use byway_runtime::session::{CallId, Event, Flags, Kind, RequestHead, Role};
use byway_runtime::{Deadline, End, Limits, NewCall};
use support::{HEAD, Victim, control, data};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

fn opens(client: &mut Victim, deadline: Instant) -> CallId {
    let metadata = MetadataMap::new();
    let head = RequestHead { path: "/a", timeout: None, metadata: &metadata };
    let call = NewCall { deadline: Some(Deadline::from(deadline)), ..NewCall::new(head) };
    client.session.open(&mut client.link, &call).expect("a call is free")
}

fn code(client: &mut Victim, id: CallId) -> Option<Code> {
    match client.poll(id) {
        std::task::Poll::Pending => None,
        std::task::Poll::Ready(part) => match part.end {
            Some(End::Outcome(Err(status))) => Some(status.code()),
            other => panic!("an outcome that is not expected: {other:?}"),
        },
    }
}

#[tokio::test]
async fn calls_end_at_their_deadlines_and_not_before() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut client = Victim::new(Role::Client, Limits::default());
    assert_eq!(client.session.next_deadline(), None);
    let late = opens(&mut client, at(30));
    let early = opens(&mut client, at(10));
    assert_eq!(client.session.next_deadline().map(|deadline| deadline.at()), Some(at(10)));

    client.session.handle_deadlines(&mut client.link, at(9));
    assert_eq!((code(&mut client, early), code(&mut client, late)), (None, None));

    client.session.handle_deadlines(&mut client.link, at(10));
    assert_eq!((code(&mut client, early), code(&mut client, late)), (Some(Code::DeadlineExceeded), None));
    assert_eq!(client.session.next_deadline().map(|deadline| deadline.at()), Some(at(30)));
    let last = client.link.frames.back().expect("the server is told");
    assert_eq!((last.header.kind, last.header.call), (Kind::Reset, early));

    client.session.handle_deadlines(&mut client.link, at(31));
    assert_eq!(code(&mut client, late), Some(Code::DeadlineExceeded));
    assert_eq!(client.session.next_deadline(), None);
}

#[tokio::test]
async fn a_call_that_ended_is_not_ended_again() {
    let at = Instant::now() + Duration::from_millis(10);
    let mut client = Victim::new(Role::Client, Limits::default());
    let id = opens(&mut client, at);
    client.session.abandon(&mut client.link, id, &tonic::Status::ok(""));
    let frames = client.link.frames.len();
    client.session.handle_deadlines(&mut client.link, at);
    assert_eq!(client.link.frames.len(), frames, "nothing is said of it");
    assert_eq!(client.session.next_deadline(), None);
}

/// The client hears of a message whose body lands later, if it does.
fn is_owed_a_body(client: &mut Victim, id: CallId, flags: Flags) {
    let frame = data(id, HEAD.with(flags).with(Flags::MESSAGE), &[], 5);
    let heard = client.session.handle_frame(&mut client.link, &frame.header, frame.head(), Body::Later(7));
    assert!(matches!(heard, Ok(Event::Handled)), "{heard:?}");
    assert!(client.poll(id).is_pending(), "not before it has landed");
    client.said();
}

#[tokio::test]
async fn a_call_whose_last_message_never_lands_ends_all_the_same() {
    type Ending = fn(&mut Victim, CallId, Instant);
    let endings: [(&str, Ending, Flags, Code, &[Kind]); 4] = [
        (
            "deadline",
            |client, _, at| client.session.handle_deadlines(&mut client.link, at),
            Flags::END,
            Code::DeadlineExceeded,
            &[Kind::Reset],
        ),
        (
            "no memory",
            |client, id, _| client.session.finish(&mut client.link, id, &Status::resource_exhausted("")),
            Flags::END,
            Code::ResourceExhausted,
            &[Kind::Reset],
        ),
        (
            "deadline before the end",
            |client, _, at| client.session.handle_deadlines(&mut client.link, at),
            Flags::NONE,
            Code::DeadlineExceeded,
            &[Kind::Reset],
        ),
        (
            "reset",
            |client, id, _| client.takes(&control(Kind::Reset, id, &[0])),
            Flags::NONE,
            Code::Unavailable,
            &[],
        ),
    ];
    for (name, end, flags, expected, said) in endings {
        let at = Instant::now() + Duration::from_millis(10);
        let mut client = Victim::new(Role::Client, Limits::default());
        let id = opens(&mut client, at);
        is_owed_a_body(&mut client, id, flags);
        end(&mut client, id, at);
        assert!(!client.session.awaits(id, 7), "{name}: a landing is still wanted");
        let kinds: Vec<Kind> = client.said().into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, said, "{name}");
        client.session.handle_landed(id, 7, Bytes::from_static(b"later"));
        assert_eq!(code(&mut client, id), Some(expected), "{name}");
    }
}

#[tokio::test]
async fn a_call_whose_reply_is_there_keeps_it_beyond_its_deadline() {
    let at = Instant::now() + Duration::from_millis(10);
    let mut client = Victim::new(Role::Client, Limits::default());
    let id = opens(&mut client, at);
    is_owed_a_body(&mut client, id, Flags::END);
    client.session.handle_landed(id, 7, Bytes::from_static(b"here!"));
    client.session.handle_deadlines(&mut client.link, at);
    let part = client.reads(id);
    assert_eq!(part.message.as_deref(), Some(&b"here!"[..]));
    assert!(matches!(part.end, Some(End::Outcome(Ok(_)))), "{part:?}");
    assert_eq!(client.said(), [], "nothing is left to cancel");
}

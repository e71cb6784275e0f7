//! Deadlines of a client's session, which is told the time.

mod support;

use std::time::Duration;

use byway_runtime::session::{CallId, Kind, RequestHead, Role};
use byway_runtime::{Deadline, End, Limits, NewCall};
use support::Victim;
use tokio::time::Instant;
use tonic::Code;
use tonic::metadata::MetadataMap;

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

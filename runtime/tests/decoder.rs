//! What arrives may be anything.
//!
//! Owns the properties of everything that reads a peer's bytes, over arbitrary bytes and over valid streams that were
//! damaged, in arbitrary pieces: [`Inbox`], [`Hello::take`] and [`Session::handle_frame`] in both roles. No panic, memory
//! within the limits, an error is final, and what is valid comes out as it went in. The seed is fixed; a failure
//! prints the smallest input that shows it.

mod support;

use std::task::{Poll, Waker};

use bytes::{BufMut, BytesMut};
use byway_runtime::Limits;
use byway_runtime::session::{
    CallId, ConnectionError, Event, Flags, HELLO_LEN, Hello, HelloError, Kind, MAGIC, Role, Session,
};
use byway_runtime::stream::{Inbox, ReceivedFrame};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::{REQUEST, Raw, Wire, call, raw};
use tonic::Status;

const LIMITS: Limits =
    Limits { max_message: 40_000, max_head: 300, max_calls: 3, window: 500, receive_budget: 2_000 };

/// What an inbox may keep for frames that are not whole: its buffer and, once, its replacement.
const MEMORY: usize = 2 * (72 << 10);

/// `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more cases and for others.
fn config(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { cases };
    let rng_seed = if asked.rng_seed == RngSeed::Random { RngSeed::Fixed(19) } else { asked.rng_seed };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..asked }
}

/// Puts `bytes` in, in pieces of these sizes, and takes out what comes, as a driver would.
fn feed(
    inbox: &mut Inbox,
    mut bytes: &[u8],
    pieces: &[usize],
) -> Result<Vec<ReceivedFrame>, ConnectionError> {
    let mut frames = Vec::new();
    let mut sizes = pieces.iter().copied().cycle();
    loop {
        while let Some(frame) = inbox.next_frame()? {
            frames.push(frame);
        }
        if bytes.is_empty() {
            return Ok(frames);
        }
        let (space, room) = inbox.space();
        assert!(room > 0, "there is always room");
        assert!(space.capacity() <= MEMORY.max(LIMITS.max_message as usize), "{} bytes", space.capacity());
        let count = room.min(bytes.len()).min(sizes.next().unwrap_or(usize::MAX));
        space.put_slice(&bytes[..count]);
        bytes = &bytes[count..];
    }
}

/// Pieces as a socket would return them, now and then a byte at a time.
fn pieces() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1..20usize, 20..5000usize, 5000..100_000usize], 1..8)
}

fn kind() -> impl Strategy<Value = Kind> {
    use Kind::{Close, Data, Drain, Open, Ping, Pong, Reset, Window};
    prop_oneof![
        5 => Just(Open), 8 => Just(Data), 2 => Just(Reset), 2 => Just(Window),
        1 => Just(Ping), 1 => Just(Pong), 1 => Just(Drain), 1 => Just(Close)
    ]
}

fn flags(bits: u8) -> Flags {
    let flags = Flags::NONE.with_if(Flags::HEAD, bits & 1 != 0).with_if(Flags::MESSAGE, bits & 2 != 0);
    flags.with_if(Flags::END, bits & 4 != 0)
}

/// A frame that decodes, whatever it means.
fn well_formed() -> impl Strategy<Value = Raw> {
    let body = prop_oneof![3 => 0..100usize, 2 => 100..16_000usize, 1 => 16_000..40_000usize];
    (kind(), 0..8u8, any::<u32>(), vec(any::<u8>(), 0..300), body).prop_map(|(kind, bits, id, head, body)| {
        let carries = matches!(kind, Kind::Open | Kind::Data);
        let flags = if carries { flags(bits) } else { Flags::NONE };
        let body = if flags.contains(Flags::MESSAGE) { body } else { 0 };
        raw(kind, flags, CallId(id), &head, body)
    })
}

/// A frame that might make sense in a conversation with few calls.
fn plausible() -> impl Strategy<Value = Raw> {
    let head = prop_oneof![
        4 => Just(vec![]),
        4 => Just(REQUEST.to_vec()),
        1 => Just(vec![0]),
        1 => Just(vec![1]),
        1 => Just(vec![100, 0, 0, 0]),
        1 => Just(vec![5; 8]),
        1 => Just(vec![0, 5, 2, b'n', b'o', 0, 0]),
        1 => vec(any::<u8>(), 0..20),
    ];
    let body = prop_oneof![0..3usize, 0..300usize, 300..3000usize];
    (kind(), 0..8u8, 0..4u16, 0..4u16, head, body).prop_map(|(kind, bits, slot, generation, head, body)| {
        let head = match kind {
            Kind::Reset if head.len() > 4 => vec![0],
            Kind::Window if head.len() != 4 => vec![200, 0, 0, 0],
            Kind::Open => REQUEST.to_vec(),
            Kind::Data if bits & 5 == 0 => vec![],
            _ => head,
        };
        let bits = if kind == Kind::Open { bits | 1 } else { bits };
        let body = if bits & 2 == 0 { 0 } else { body };
        raw(kind, flags(bits), call(slot, generation), &head, body)
    })
}

fn stream(frames: &[Raw]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect()
}

/// A byte changed, some lost, some repeated, or some put in.
#[derive(Debug, Clone)]
enum Damage {
    Change(u8),
    Lose(usize),
    Repeat(usize),
    Insert(Vec<u8>),
}

fn damage() -> impl Strategy<Value = (prop::sample::Index, Damage)> {
    let damage = prop_oneof![
        (1..=255u8).prop_map(Damage::Change),
        (1..40usize).prop_map(Damage::Lose),
        (1..40usize).prop_map(Damage::Repeat),
        vec(any::<u8>(), 1..40).prop_map(Damage::Insert),
    ];
    (any::<prop::sample::Index>(), damage)
}

/// The damaged bytes, and how many at their beginning are as they were.
fn damaged(mut bytes: Vec<u8>, at: prop::sample::Index, damage: Damage) -> (Vec<u8>, usize) {
    if bytes.is_empty() {
        return (bytes, 0);
    }
    let at = at.index(bytes.len());
    let upto = |count: usize| bytes.len().min(at + count);
    match damage {
        Damage::Change(with) => bytes[at] ^= with,
        Damage::Lose(count) => drop(bytes.drain(at..upto(count))),
        Damage::Repeat(count) => {
            let again = bytes[at..upto(count)].to_vec();
            drop(bytes.splice(at..at, again));
        }
        Damage::Insert(more) => drop(bytes.splice(at..at, more)),
    }
    (bytes, at)
}

/// A session that reads what it is told and now and then lets its calls go.
struct Listener {
    role: Role,
    session: Session,
    link: Wire,
    calls: Vec<CallId>,
}

impl Listener {
    fn new(role: Role) -> Self {
        let mut listener = Self {
            role,
            session: Session::new(role, LIMITS, LIMITS),
            link: Wire::default(),
            calls: Vec::new(),
        };
        if role == Role::Client {
            listener.calls = (0..3).map(|_| listener.opens()).collect();
            listener.link.frames.clear();
        }
        listener
    }

    fn opens(&mut self) -> CallId {
        let metadata = tonic::metadata::MetadataMap::new();
        let head = byway_runtime::session::RequestHead { path: "/a", timeout: None, metadata: &metadata };
        self.session.open(&mut self.link, &byway_runtime::NewCall::new(head)).expect("three calls are free")
    }

    /// Hears a frame, then does what `choice` says; an error of the peer is returned.
    fn hears(&mut self, frame: &Raw, choice: u8) -> Result<(), ConnectionError> {
        let before = self.link.frames.len();
        let event = self.session.handle_frame(&mut self.link, &frame.header, frame.head(), frame.body())?;
        assert!(self.link.frames.len() <= before + 1, "a frame is answered with at most one");
        if let Event::Call(incoming) = event {
            assert_eq!(self.role, Role::Server);
            self.calls.push(incoming.id);
        }
        let at = usize::from(choice >> 2);
        match choice & 3 {
            _ if self.calls.is_empty() => {}
            0 => {
                let id = self.calls.swap_remove(at % self.calls.len());
                self.session.abandon(&mut self.link, id, &Status::internal("gone"));
            }
            1 => {
                let id = self.calls[at % self.calls.len()];
                let read = self.session.poll_receive(&mut self.link, id, Waker::noop());
                let is_over = matches!(&read, Poll::Ready(part) if part.end.is_some());
                if is_over && self.role == Role::Client {
                    self.calls.retain(|call| *call != id);
                }
            }
            _ => {}
        }
        self.check();
        Ok(())
    }

    fn check(&self) {
        assert!(self.session.held() <= LIMITS.receive_budget);
        assert!(self.session.open_calls() <= usize::from(LIMITS.max_calls));
        let handlers = if self.role == Role::Server { self.calls.len() } else { 0 };
        assert_eq!(self.session.handlers(), handlers);
    }

    /// The connection is over: whatever was said before, everything ends.
    fn ends(mut self) {
        self.session.handle_failure(&byway_runtime::session::Failure::new("over"), 0);
        for id in std::mem::take(&mut self.calls) {
            self.session.abandon(&mut self.link, id, &Status::internal("gone"));
        }
        self.check();
        assert!(self.session.is_done() && self.session.held() == 0);
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn frames_come_out_as_they_went_in(frames in vec(well_formed(), 0..12), pieces in pieces()) {
        let mut inbox = Inbox::new(LIMITS, BytesMut::new());
        let received = feed(&mut inbox, &stream(&frames), &pieces).expect("every frame is valid");
        prop_assert_eq!(received.len(), frames.len());
        for (received, sent) in received.iter().zip(&frames) {
            prop_assert_eq!(received.header, sent.header);
            prop_assert!(received.head[..] == sent.head[..] && received.body[..] == sent.body[..]);
        }
        prop_assert!(inbox.is_empty());
    }

    #[test]
    fn damage_is_harmless_and_what_came_before_it_is_whole(
        frames in vec(well_formed(), 1..10), (at, damage) in damage(), pieces in pieces(),
    ) {
        let (bytes, intact) = damaged(stream(&frames), at, damage);
        let mut inbox = Inbox::new(LIMITS, BytesMut::new());
        let whole = frames.iter().scan(0, |end, frame| { *end += frame.header.frame_len(); Some(*end) });
        let whole = whole.take_while(|end| *end <= intact).count();
        // The intact part alone, then everything.
        let first = feed(&mut Inbox::new(LIMITS, BytesMut::new()), &bytes[..intact], &pieces);
        prop_assert_eq!(first.expect("nothing is wrong yet").len(), whole);
        let _ = feed(&mut inbox, &bytes, &pieces);
    }

    #[test]
    fn an_inbox_survives_anything_and_its_errors_are_final(
        bytes in vec(any::<u8>(), 0..3000), pieces in pieces(),
    ) {
        let mut inbox = Inbox::new(LIMITS, BytesMut::new());
        if let Err(error) = feed(&mut inbox, &bytes, &pieces) {
            for _ in 0..3 {
                prop_assert_eq!(inbox.next_frame().expect_err("an error is final"), error.clone());
                let (space, room) = inbox.space();
                space.put_slice(&bytes[..room.min(bytes.len())]);
            }
        }
    }

    #[test]
    fn a_hello_is_taken_whole_or_refused_for_good(
        extension in vec(any::<u8>(), 0..100), rest in vec(any::<u8>(), 0..40), hurt in proptest::option::of(damage()),
        cut in any::<prop::sample::Index>(),
    ) {
        let hello = Hello { extension: extension.into(), ..Hello::new(&LIMITS) };
        let sent = hello.encode();
        let (bytes, is_intact) = match hurt {
            None => (sent.to_vec(), true),
            Some((at, damage)) => (damaged(sent.to_vec(), at, damage).0, false),
        };
        let bytes = [bytes, rest.clone()].concat();
        let cut = cut.index(bytes.len() + 1);
        let mut buffer = BytesMut::from(&bytes[..cut]);
        let early = Hello::take(&mut buffer);
        let late = Hello::take(&mut BytesMut::from(&bytes[..]));
        match early {
            Ok(None) => prop_assert_eq!(&buffer[..], &bytes[..cut], "nothing is taken of half a hello"),
            Ok(Some(taken)) => prop_assert_eq!(Ok(Some(taken)), late.clone()),
            Err(HelloError::NotByway(_)) => prop_assert!(matches!(late, Err(HelloError::NotByway(_)))),
            Err(ref error) => prop_assert_eq!(&late, &Err(error.clone()), "more bytes do not heal it"),
        }
        if is_intact {
            prop_assert_eq!(late.expect("valid").expect("whole").extension, hello.extension);
            let mut all = BytesMut::from(&bytes[..]);
            prop_assert!(Hello::take(&mut all).is_ok());
            prop_assert_eq!(&all[..], &rest[..], "what follows is left");
        }
    }

    #[test]
    fn what_is_not_byway_is_known_by_its_first_wrong_byte(bytes in vec(any::<u8>(), 0..100)) {
        let taken = Hello::take(&mut BytesMut::from(&bytes[..]));
        let seen = bytes.len().min(MAGIC.len());
        prop_assert_eq!(matches!(taken, Err(HelloError::NotByway(_))), bytes[..seen] != MAGIC[..seen]);
        prop_assert!(bytes.len() >= HELLO_LEN || !matches!(taken, Ok(Some(_))));
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn a_session_survives_whatever_it_is_told(
        frames in vec((prop_oneof![9 => plausible(), 1 => well_formed()], any::<u8>()), 0..60), is_server in any::<bool>(),
    ) {
        let mut listener = Listener::new(if is_server { Role::Server } else { Role::Client });
        // What the listener refuses, its driver would hear no more of; what else it hears it must stand.
        for (frame, choice) in &frames {
            let _ = listener.hears(frame, *choice);
            listener.check();
        }
        listener.ends();
    }

    #[test]
    fn a_damaged_conversation_ends_in_order(
        frames in vec(plausible(), 1..20), (at, damage) in damage(), pieces in pieces(), is_server in any::<bool>(),
    ) {
        let (bytes, _) = damaged(stream(&frames), at, damage);
        let mut inbox = Inbox::new(LIMITS, BytesMut::new());
        let mut listener = Listener::new(if is_server { Role::Server } else { Role::Client });
        for frame in feed(&mut inbox, &bytes, &pieces).unwrap_or_default() {
            let frame = Raw { header: frame.header, head: frame.head.to_vec(), body: frame.body.to_vec() };
            if listener.hears(&frame, 0x41).is_err() {
                break;
            }
        }
        listener.ends();
    }
}

//! Random calls: what both sides of each do, and what each must see.
//!
//! Owns [`Script`], which both sides of a call know, and the two actors that play it through the public operations of a
//! connection. An actor goes on only when it was woken or its own time has come. Every byte of every message is known
//! from the call, the direction and the message's place, so a part that is lost, doubled, out of order or damaged is
//! found where it is read.

use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake as _, Waker};
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::connection::Caller;
use byway_runtime::session::{Incoming, Metadata, RequestHead};
use byway_runtime::{
    Call, CallRef, Carrier, Encoded, End, Inbound, Invoke, NewCall, Part, ReadyFuture, SendError, StartError,
    Status,
};
use fastrand::Rng;
use tonic::Code;

use super::world::Flag;
use crate::link::RdmaLink;
use crate::pool::Pool;

/// The path of the method that has this number.
const METHODS: [&str; 4] = ["/t.S/A", "/t.S/B", "/t.S/C", "/t.S/D"];

/// What bytes are cut from.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Rng::with_seed(7);
    let mut bytes = vec![0; 1 << 20];
    random.fill(&mut bytes);
    bytes.into()
});

/// A message of a call: `way` is 0 for requests and 1 for replies.
fn message(call: usize, way: usize, index: usize, len: u32) -> Bytes {
    let start = (call * 7919 + way * 104_729 + index * 1301) % 4096;
    PATTERN.slice(start..start + len as usize)
}

/// What a side does with its call, beside what the script says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Everything.
    Whole,
    /// The same, but reads the first part only after this time, and each other part as long after the one before.
    Slow(Duration),
    /// Gives up at this time after the beginning, politely or by dropping the call.
    GivesUp { after: Duration, drops: bool },
    /// A handler that answers without having read anything, with a status.
    Status,
    /// A handler that sends its replies without having read everything, and reads nothing.
    Deaf,
}

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) link: usize,
    pub(super) at: Duration,
    pub(super) method: usize,
    pub(super) requests: Vec<u32>,
    pub(super) replies: Vec<u32>,
    /// Whether the last message carries the end.
    pub(super) joined_end: bool,
    /// Whether the handler answers while it reads.
    pub(super) both_at_once: bool,
    /// Whether messages are kept until the call is over.
    pub(super) keeps: bool,
    /// Whether what is sent lies in registered memory, where there is some.
    pub(super) leases: bool,
    pub(super) deadline: Option<Duration>,
    /// Whether one side is not the one that the script is for, so that its messages may hold anything.
    pub(super) garbled: bool,
    pub(super) client: Way,
    pub(super) server: Way,
}

/// How a call ended for its caller.
#[derive(Debug, Clone)]
pub(super) enum Ended {
    /// With this, after so many replies.
    With(Result<(), Code>, usize),
    /// It was never sent.
    NotSent,
    /// Its owner dropped it.
    Dropped,
}

/// The caller of a call.
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) flag: Arc<Flag>,
    pub(super) at: Option<Duration>,
    call: Option<Call>,
    /// Set while there is no room for the call.
    ready: Option<ReadyFuture<'static>>,
    began: Duration,
    sent: usize,
    done_sending: bool,
    read: Vec<Bytes>,
    count: usize,
    has_head: bool,
    read_from: Duration,
    pub(super) ended: Option<Ended>,
}

/// Its handler.
pub(super) struct Server {
    pub(super) number: usize,
    pub(super) flag: Arc<Flag>,
    pub(super) at: Option<Duration>,
    call: Option<Call>,
    began: Duration,
    sent: usize,
    has_head: bool,
    read: Vec<Bytes>,
    count: usize,
    all_read: bool,
    read_from: Duration,
    over: bool,
    /// Whether everything was answered, as the script says.
    pub(super) answered: bool,
}

/// What an actor may use.
pub(super) struct Scene<'a> {
    pub(super) script: &'a Script,
    pub(super) now: Duration,
    pub(super) base: tokio::time::Instant,
    pub(super) pool: &'a Arc<Pool>,
}

impl Scene<'_> {
    /// The message to send: as it is, or in a lease.
    fn outgoing(&self, number: usize, way: usize, index: usize, len: u32) -> Encoded {
        let message = message(number, way, index, len);
        if self.script.leases
            && let Ok(mut lease) = self.pool.lease(message.len())
        {
            lease.bytes_mut().copy_from_slice(&message);
            return Encoded(lease.freeze());
        }
        Encoded(message)
    }
}

fn earlier(at: &mut Option<Duration>, other: Duration) {
    *at = Some(at.map_or(other, |at| at.min(other)));
}

impl Client {
    pub(super) fn new(number: usize, at: Duration) -> Self {
        let flag = Arc::new(Flag::default());
        Self {
            number,
            flag,
            at: Some(at),
            call: None,
            ready: None,
            began: Duration::ZERO,
            sent: 0,
            done_sending: false,
            read: Vec::new(),
            count: 0,
            has_head: false,
            read_from: Duration::ZERO,
            ended: None,
        }
    }

    /// Goes on; whether the call is over for its caller.
    pub(super) fn poll(&mut self, caller: &Arc<Caller<RdmaLink>>, scene: &mut Scene<'_>) -> bool {
        self.flag.lower();
        self.at = None;
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut cx = Context::from_waker(&waker);
        if self.call.is_none() && !self.start(caller, scene, &mut cx) {
            return self.ended.is_some();
        }
        if let Way::GivesUp { after, drops } = scene.script.client {
            let at = self.began + after;
            if scene.now < at {
                earlier(&mut self.at, at);
            } else if drops {
                self.call = None;
                self.ended = Some(Ended::Dropped);
                return true;
            } else if let Some(call) = &self.call {
                call.finish(&Status::cancelled("given up"));
            }
        }
        self.send(scene, &mut cx);
        self.receive(scene, &mut cx);
        if self.ended.is_some() {
            self.call = None;
            self.read.clear();
        }
        self.ended.is_some()
    }

    fn start(&mut self, caller: &Arc<Caller<RdmaLink>>, scene: &mut Scene<'_>, cx: &mut Context<'_>) -> bool {
        let script = scene.script;
        if let Some(ready) = &mut self.ready {
            // What it says the next attempt says too.
            let Poll::Ready(_) = ready.as_mut().poll(cx) else { return false };
            self.ready = None;
        }
        let mut metadata = Metadata::default().into_map();
        metadata.insert("n", self.number.to_string().parse().expect("a number is text"));
        let path = METHODS[script.method % METHODS.len()];
        let first = script.requests.first().map(|len| scene.outgoing(self.number, 0, 0, *len));
        let single = script.requests.len() <= 1 && script.joined_end;
        let deadline = script.deadline.map(|deadline| (scene.base + scene.now + deadline).into());
        let call = NewCall {
            deadline,
            message: first.as_ref().map(|first| first as &dyn byway_runtime::Encode),
            end: single,
            ..NewCall::new(RequestHead { path, timeout: script.deadline, metadata: &metadata })
        };
        match caller.start(&call) {
            Ok(call) => {
                (self.call, self.began) = (Some(call), scene.now);
                (self.sent, self.done_sending) = (script.requests.len().min(1), single);
                if let Way::Slow(by) = script.client {
                    self.read_from = scene.now + by;
                }
                true
            }
            Err(StartError::Busy) => {
                let caller = Arc::clone(caller);
                self.ready = Some(Box::pin(async move { caller.ready().await }));
                self.flag.wake_by_ref();
                false
            }
            Err(StartError::Closed(_)) => {
                self.ended = Some(Ended::NotSent);
                false
            }
            Err(StartError::Failed(status)) => panic!("call {}: it cannot begin: {status}", self.number),
        }
    }

    fn send(&mut self, scene: &mut Scene<'_>, cx: &mut Context<'_>) {
        let Some(call) = self.call.as_ref().map(Call::by_ref) else { return };
        let script = scene.script;
        while !self.done_sending {
            let next = script.requests.get(self.sent);
            let encoded = next.map(|len| scene.outgoing(self.number, 0, self.sent, *len));
            let ends = self.sent + 1 > script.requests.len()
                || (script.joined_end && self.sent + 1 == script.requests.len());
            let part = Part {
                message: encoded.as_ref().map(|encoded| encoded as &dyn byway_runtime::Encode),
                end: ends.then_some(Ok(None)),
                ..Part::default()
            };
            match call.poll_send(cx, part) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    self.sent += 1;
                    self.done_sending = ends;
                }
                Poll::Ready(Err(SendError::Over)) => self.done_sending = true,
                Poll::Ready(Err(error)) => panic!("call {}: {error:?}", self.number),
            }
        }
    }

    fn receive(&mut self, scene: &mut Scene<'_>, cx: &mut Context<'_>) {
        while let Some(call) = &mut self.call {
            if scene.now < self.read_from {
                return earlier(&mut self.at, self.read_from);
            }
            let Poll::Ready(Inbound { head, message, end }) = call.poll_reply(cx) else { return };
            if head.is_some() {
                assert!(!self.has_head, "call {}: a second head", self.number);
                self.has_head = true;
            }
            if let Some(message) = message {
                assert!(self.has_head, "call {}: a message before the head", self.number);
                check(self.number, 1, self.count, scene.script, &message);
                self.count += 1;
                if scene.script.keeps {
                    self.read.push(message);
                }
            }
            if let Way::Slow(by) = scene.script.client {
                self.read_from = scene.now + by;
            }
            self.ended = match end {
                None => continue,
                Some(End::NotSent(_)) => Some(Ended::NotSent),
                Some(End::Outcome(outcome)) => {
                    Some(Ended::With(outcome.map(drop).map_err(|status| status.code()), self.count))
                }
            };
            return;
        }
    }
}

impl Server {
    pub(super) fn new(incoming: Incoming, carrier: Arc<dyn Carrier>, now: Duration) -> Self {
        let metadata = incoming.head.metadata.into_map();
        let number = metadata.get("n").expect("every call has a number");
        let number = number.to_str().ok().and_then(|text| text.parse().ok()).expect("a number");
        let mut this = Self {
            number,
            flag: Flag::raised(),
            at: None,
            call: Some(Call::new(CallRef::new(carrier, incoming.id))),
            began: now,
            sent: 0,
            has_head: false,
            read: Vec::new(),
            count: 0,
            all_read: incoming.ended,
            read_from: Duration::ZERO,
            over: false,
            answered: false,
        };
        this.read.extend(incoming.message);
        this
    }

    /// Goes on; whether the handler has left.
    pub(super) fn poll(&mut self, scene: &mut Scene<'_>) -> bool {
        self.flag.lower();
        self.at = None;
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut cx = Context::from_waker(&waker);
        let script = scene.script;
        if self.count == 0 && !self.read.is_empty() {
            // What came with the call.
            check(self.number, 0, 0, script, &self.read[0]);
            self.count = 1;
            if let Way::Slow(by) = script.server {
                self.read_from = scene.now + by;
            }
        }
        match script.server {
            Way::GivesUp { after, drops } if scene.now >= self.began + after => {
                if drops {
                    self.over = true;
                } else if let Some(call) = &self.call {
                    call.finish(&Status::aborted("the handler gave up"));
                }
            }
            Way::GivesUp { after, .. } => earlier(&mut self.at, self.began + after),
            Way::Status => {
                let status = Status::aborted("not this one");
                self.answer(Part { end: Some(Err(&status)), ..Part::default() }, &mut cx);
            }
            _ => {}
        }
        if script.server != Way::Deaf {
            self.receive(scene, &mut cx);
        }
        if self.all_read || script.both_at_once || script.server == Way::Deaf {
            self.send(scene, &mut cx);
        }
        if let Some(call) = &self.call
            && call.by_ref().poll_over(&mut cx).is_ready()
        {
            self.over = true;
        }
        if self.over {
            self.call = None;
            self.read.clear();
        }
        self.over
    }

    fn answer(&mut self, part: Part<'_>, cx: &mut Context<'_>) -> bool {
        let Some(call) = &mut self.call else { return false };
        match call.poll_answer(cx, part) {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => {
                self.over |= part.end.is_some();
                self.answered |= part.end.is_some();
                true
            }
            Poll::Ready(Err(SendError::Over)) => {
                self.over = true;
                false
            }
            Poll::Ready(Err(error)) => panic!("call {}: {error:?}", self.number),
        }
    }

    fn send(&mut self, scene: &mut Scene<'_>, cx: &mut Context<'_>) {
        let script = scene.script;
        while !self.over {
            let next = script.replies.get(self.sent);
            let encoded = next.map(|len| scene.outgoing(self.number, 1, self.sent, *len));
            let ends = self.sent >= script.replies.len()
                || (script.joined_end && self.sent + 1 == script.replies.len());
            if ends && !self.all_read && script.server != Way::Deaf {
                return;
            }
            let empty = Metadata::default().into_map();
            let part = Part {
                head: (!self.has_head).then_some(&empty),
                message: encoded.as_ref().map(|encoded| encoded as &dyn byway_runtime::Encode),
                end: ends.then_some(Ok(None)),
            };
            if !self.answer(part, cx) {
                return;
            }
            self.has_head = true;
            self.sent += 1;
        }
    }

    fn receive(&mut self, scene: &mut Scene<'_>, cx: &mut Context<'_>) {
        while !self.all_read && !self.over {
            if scene.now < self.read_from {
                return earlier(&mut self.at, self.read_from);
            }
            let Some(call) = &mut self.call else { return };
            let Poll::Ready(Inbound { message, end, .. }) = call.poll_request(cx) else { return };
            if let Some(message) = message {
                check(self.number, 0, self.count, scene.script, &message);
                self.count += 1;
                if scene.script.keeps {
                    self.read.push(message);
                }
            }
            match end {
                Some(End::Outcome(Ok(_))) => {
                    assert_eq!(self.count, scene.script.requests.len(), "call {}: requests", self.number);
                    self.all_read = true;
                }
                Some(_) => self.over = true,
                None => {}
            }
            if let Way::Slow(by) = scene.script.server {
                self.read_from = scene.now + by;
            }
        }
    }
}

fn check(number: usize, way: usize, index: usize, script: &Script, arrived: &[u8]) {
    if script.garbled {
        return;
    }
    let (what, lens) = if way == 0 { ("request", &script.requests) } else { ("reply", &script.replies) };
    let Some(len) = lens.get(index) else { panic!("call {number}: more than the last {what}") };
    assert_eq!(arrived.len(), *len as usize, "call {number}: {what} {index}");
    assert!(arrived == message(number, way, index, *len), "call {number}: {what} {index} is damaged");
}

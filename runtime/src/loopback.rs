//! The reference link: two sides in one process.
//!
//! Owns [`connect`], which joins a server's [`Router`] and a caller by memory. It goes through the same encoding,
//! session and dispatch as every other link, so what differs over another one is that one's fault. On request large
//! bodies arrive later than their frames, as they do by RDMA Write, to show that the order within a call holds.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, Sleep};
use tonic::Status;

use crate::alarm::Alarm;
use crate::connection::{Caller, Connection};
use crate::context::{ConnectionInfo, Endpoint};
pub use crate::dispatch::Drain;
use crate::dispatch::{Inline, Router};
use crate::invoke::Carrier;
use crate::limits::Limits;
use crate::link::Body;
use crate::output::Segments;
use crate::session::{CallId, Event, Failure, Incoming, Role};
use crate::stream::{Inbox, Outbox};

/// How a loopback link behaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What the client accepts.
    pub client: Limits,
    /// What the server accepts.
    pub server: Limits,
    /// Messages of at least this many bytes arrive after the frames that were pushed behind them.
    pub later_from: Option<usize>,
}

/// Joins a new caller to `router`. The link's task runs on the current runtime until the caller is dropped.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(router: Arc<Router>, options: Options) -> Caller<Outbox> {
    connect_until(router, options, Box::pin(std::future::pending()))
}

/// Like [`connect`], to a server that drains when `drain` resolves.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect_until(router: Arc<Router>, options: Options, drain: Drain) -> Caller<Outbox> {
    let info = Arc::new(ConnectionInfo { link: "loopback", peer: Endpoint::Local });
    let new =
        |role, local, remote| Connection::new(role, local, remote, Outbox::default(), Arc::clone(&info));
    let client = new(Role::Client, options.client, options.server);
    let server = new(Role::Server, options.server, options.client);
    let driver = Driver {
        to_server: Pipe::new(&client, &server, options.server, options.later_from),
        to_client: Pipe {
            to_client: true,
            ..Pipe::new(&server, &client, options.client, options.later_from)
        },
        client: Arc::clone(&client),
        server,
        router,
        phase: Phase::Serving(drain),
        deadlines: Alarm::new(),
        woken: Vec::new(),
    };
    tokio::spawn(driver);
    Caller(client)
}

struct Driver {
    client: Arc<Connection<Outbox>>,
    server: Arc<Connection<Outbox>>,
    to_server: Pipe,
    to_client: Pipe,
    router: Arc<Router>,
    phase: Phase,
    deadlines: Alarm,
    woken: Vec<Waker>,
}

/// How far the server is on its way to its end.
enum Phase {
    Serving(Drain),
    Draining(Pin<Box<Sleep>>),
    Ended,
}

/// One direction.
struct Pipe {
    from: Arc<Connection<Outbox>>,
    to: Arc<Connection<Outbox>>,
    to_client: bool,
    inbox: Inbox,
    later_from: Option<usize>,
    on_their_way: VecDeque<(CallId, u64, Bytes)>,
    bodies: u64,
}

impl Pipe {
    fn new(
        from: &Arc<Connection<Outbox>>,
        to: &Arc<Connection<Outbox>>,
        limits: Limits,
        later_from: Option<usize>,
    ) -> Self {
        Self {
            from: Arc::clone(from),
            to: Arc::clone(to),
            to_client: false,
            inbox: Inbox::new(limits, BytesMut::new()),
            later_from,
            on_their_way: VecDeque::new(),
            bodies: 0,
        }
    }

    /// Moves what waits; `None` when nothing did.
    fn run(&mut self, woken: &mut Vec<Waker>) -> Option<Result<Vec<Incoming>, Failure>> {
        let mut segments = Segments::default();
        // A client always reads, so that two sides that both want to write cannot wait for each other.
        let accepts = self.to_client || self.to.turn(woken, |turn| turn.accepts());
        if accepts {
            self.from.turn(woken, |turn| {
                turn.link().take(&mut segments);
                if turn.link().note_unwritten(0) {
                    turn.made_room();
                }
            });
        }
        if segments.is_empty() && self.on_their_way.is_empty() {
            return None;
        }
        Some(self.deliver(&segments, woken))
    }

    fn deliver(&mut self, segments: &Segments, woken: &mut Vec<Waker>) -> Result<Vec<Incoming>, Failure> {
        let mut frames = Vec::new();
        for mut piece in segments.pieces() {
            while !piece.is_empty() {
                let (space, room) = self.inbox.space();
                let (part, rest) = piece.split_at(piece.len().min(room));
                space.extend_from_slice(part);
                piece = rest;
                while let Some(frame) = self.inbox.next_frame()? {
                    frames.push(frame);
                }
            }
        }
        let later_from = self.later_from;
        let (on_their_way, bodies) = (&mut self.on_their_way, &mut self.bodies);
        self.to.turn(woken, |turn| {
            let late = std::mem::take(on_their_way);
            let mut calls = Vec::new();
            for frame in frames {
                let body = if frame.body.is_empty() {
                    Body::None
                } else if later_from.is_some_and(|from| frame.body.len() >= from) {
                    *bodies += 1;
                    on_their_way.push_back((frame.header.call, *bodies, frame.body));
                    Body::Later(*bodies)
                } else {
                    Body::Here(frame.body)
                };
                match turn.frame(&frame.header, frame.head, body)? {
                    Event::Handled => {}
                    Event::Call(incoming) => calls.push(incoming),
                    Event::Closed(failure) => return Err(failure),
                }
            }
            for (id, number, body) in late {
                turn.landed(id, number, body);
            }
            Ok(calls)
        })
    }
}

impl Driver {
    fn fail(&mut self, failure: &Failure) {
        for side in [&self.client, &self.server] {
            side.turn(&mut self.woken, |turn| {
                let delivered = turn.link().delivered();
                turn.fail(failure, delivered);
            });
        }
    }

    /// Moves a server that was told to drain towards its end.
    fn drain(&mut self, cx: &mut Context<'_>) {
        if let Phase::Serving(drain) = &mut self.phase
            && let Poll::Ready(until) = drain.as_mut().poll(cx)
        {
            self.server.turn(&mut self.woken, |turn| turn.drain());
            self.phase = Phase::Draining(Box::pin(tokio::time::sleep_until(until)));
        }
        if let Phase::Draining(timer) = &mut self.phase
            && timer.as_mut().poll(cx).is_ready()
        {
            let status = Status::unavailable("the server shut down before the call was finished");
            self.server.turn(&mut self.woken, |turn| turn.end_calls(&status));
            self.phase = Phase::Ended;
        }
    }

    /// Ends the calls whose deadlines have passed; whether there were any. Otherwise is woken for the next.
    fn keep_deadlines(&mut self, cx: &mut Context<'_>) -> bool {
        let next = self.client.turn(&mut self.woken, |turn| turn.next_deadline());
        self.deadlines.set(next.map(|deadline| deadline.at()));
        let fired = self.deadlines.poll(cx);
        if fired {
            self.client.turn(&mut self.woken, |turn| turn.handle_deadlines(Instant::now()));
        }
        fired
    }

    fn dispatch(&self, calls: Vec<Incoming>) {
        let carrier: Arc<dyn Carrier> = Arc::clone(&self.server) as _;
        let mut inline = Inline::new();
        for incoming in calls {
            let left = self.router.dispatch(&carrier, self.server.info(), incoming, &mut inline);
            left.map(tokio::spawn);
        }
    }
}

impl Drop for Driver {
    /// A driver that is dropped before its end, with its runtime say, still ends its calls.
    fn drop(&mut self) {
        self.fail(&Failure::new("its task was dropped"));
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.drain(cx);
        loop {
            let outcomes = [this.to_server.run(&mut this.woken), this.to_client.run(&mut this.woken)];
            if outcomes.iter().all(Option::is_none) {
                break;
            }
            for outcome in outcomes.into_iter().flatten() {
                match outcome {
                    Ok(calls) => this.dispatch(calls),
                    Err(failure) => {
                        this.fail(&failure);
                        return Poll::Ready(());
                    }
                }
            }
        }
        let (client, server) = (&this.client, &this.server);
        let idle = [client, server].map(|side| {
            side.turn(&mut this.woken, |turn| {
                turn.wait(cx.waker());
                turn.link().is_empty()
            })
        });
        // Asked only now that whoever drops the caller finds a task to wake.
        if this.client.turn(&mut this.woken, |turn| turn.is_done()) {
            this.fail(&Failure::new("the caller was dropped"));
            return Poll::Ready(());
        }
        if this.keep_deadlines(cx) || idle.contains(&false) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

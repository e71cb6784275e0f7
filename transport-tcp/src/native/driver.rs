//! The task of one connection.
//!
//! Owns the stream, reads it into frames, hands everything that arrived together to the connection under one lock,
//! polls the handlers of new calls holding none, and writes whatever was pushed meanwhile in vectored writes.
//! Work per poll is bounded, so that one busy connection does not starve the others of its thread. Invariant: when the
//! driver ends, for whatever reason, the connection's calls have ended.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BufMut;
use byway_runtime::connection::Connection;
use byway_runtime::dispatch::{Drain, Inline, Router};
use byway_runtime::farewell::{Farewell, LAST_WORDS};
use byway_runtime::keepalive::{Due, Keepalive, Watch};
use byway_runtime::link::{Body, Link};
use byway_runtime::output::Segments;
use byway_runtime::session::{Event, Failure, Incoming};
use byway_runtime::stream::{Inbox, Outbox, empty_slices};
use byway_runtime::{Alarm, Carrier};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

/// Reads of one poll, after which other tasks have their turn. Sixteen reads of a 64 KiB buffer are one large message.
const READS_PER_POLL: usize = 16;

/// Drives one connection to its end.
pub struct Driver<S> {
    io: S,
    connection: Arc<Connection<Outbox>>,
    inbox: Inbox,
    writing: Segments,
    server: Option<Server>,
    watch: Watch,
    keepalive: Alarm,
    /// When the next call of a client ends by itself.
    deadlines: Alarm,
    /// Whether to read on: a server does not while its peer reads nothing, nor while calls that were cancelled leave too
    /// many handlers behind.
    listens: bool,
    /// Whether a client has nothing left to do.
    done: bool,
    /// Whether calls were left to tasks that may compute for long; see [`Inline::has_handed_over`].
    handed_over: bool,
    phase: Phase,
    calls: Vec<Incoming>,
    woken: Vec<Waker>,
}

struct Server {
    router: Arc<Router>,
    farewell: Farewell,
}

enum Phase {
    Running,
    /// Everything is said: what waits is written, then the stream is closed.
    Closing {
        failure: Failure,
        until: Pin<Box<Sleep>>,
    },
}

/// How far one direction came.
enum Progress {
    Made,
    Blocked,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    pub(super) fn client(
        io: S,
        connection: Arc<Connection<Outbox>>,
        inbox: Inbox,
        keepalive: Keepalive,
    ) -> Self {
        Self::new(io, connection, inbox, keepalive, None)
    }

    pub(super) fn server(
        io: S,
        connection: Arc<Connection<Outbox>>,
        inbox: Inbox,
        keepalive: Keepalive,
        router: Arc<Router>,
        drain: Drain,
    ) -> Self {
        let server = Server { router, farewell: Farewell::new(drain) };
        Self::new(io, connection, inbox, keepalive, Some(server))
    }

    fn new(
        io: S,
        connection: Arc<Connection<Outbox>>,
        inbox: Inbox,
        keepalive: Keepalive,
        server: Option<Server>,
    ) -> Self {
        let mut alarm = Alarm::new();
        alarm.set(Some(Instant::now() + keepalive.interval));
        Self {
            io,
            connection,
            inbox,
            writing: Segments::default(),
            server,
            watch: Watch::new(keepalive),
            keepalive: alarm,
            deadlines: Alarm::new(),
            listens: true,
            done: false,
            handed_over: false,
            phase: Phase::Running,
            calls: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// Runs until nothing is left to do now. An error is why the connection is over.
    fn run(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        // Frames may have come together with the hello, or be left from the last poll.
        self.receive()?;
        for _ in 0..READS_PER_POLL {
            let written = self.write(cx)?;
            let read = if self.listens { self.read(cx)? } else { Progress::Blocked };
            if let (Progress::Blocked, Progress::Blocked) = (written, read) {
                if std::mem::take(&mut self.handed_over) {
                    cx.waker().wake_by_ref();
                }
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<Progress, Failure> {
        let (space, room) = self.inbox.space();
        match poll_read_buf(Pin::new(&mut self.io), cx, &mut space.limit(room)) {
            Poll::Pending => return Ok(Progress::Blocked),
            Poll::Ready(Err(error)) => return Err(Failure::new(format!("reading failed: {error}"))),
            Poll::Ready(Ok(0)) => return Err(Failure::new("the peer closed it")),
            Poll::Ready(Ok(_)) => self.watch.note_heard(),
        }
        self.receive()?;
        Ok(Progress::Made)
    }

    /// Hands over the frames that were read, and dispatches the calls among them.
    fn receive(&mut self) -> Result<(), Failure> {
        let Some(first) = self.inbox.next_frame()? else { return Ok(()) };
        let (inbox, calls) = (&mut self.inbox, &mut self.calls);
        let all_cut = self.connection.turn(&mut self.woken, |turn| {
            turn.work_on();
            let mut frame = first;
            loop {
                let body = if frame.body.is_empty() { Body::None } else { Body::Here(frame.body) };
                match turn.frame(&frame.header, frame.head, body)? {
                    Event::Handled => {}
                    Event::Call(incoming) => calls.push(incoming),
                    Event::Closed(failure) => return Err(failure),
                }
                match inbox.next_frame() {
                    Ok(Some(next)) => frame = next,
                    Ok(None) => return Ok(Ok(())),
                    // What came before it counts.
                    Err(error) => return Ok(Err(error)),
                }
            }
        })?;
        self.dispatch();
        Ok(all_cut?)
    }

    fn dispatch(&mut self) {
        let Some(server) = self.server.as_ref().filter(|_| !self.calls.is_empty()) else { return };
        let carrier: Arc<dyn Carrier> = Arc::clone(&self.connection) as _;
        let mut inline = Inline::new();
        for incoming in self.calls.drain(..) {
            let left = server.router.dispatch(&carrier, self.connection.info(), incoming, &mut inline);
            left.map(tokio::spawn);
        }
        self.handed_over |= inline.has_handed_over();
    }

    /// Writes what was pushed, and waits for more or for the stream to take more.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<Progress, Failure> {
        let (writing, is_server) = (&mut self.writing, self.server.is_some());
        let next_deadline = self.connection.turn(&mut self.woken, |turn| {
            if turn.link().note_unwritten(writing.len()) {
                turn.made_room();
            }
            if writing.is_empty() {
                turn.link().take(writing);
            }
            turn.wait(cx.waker());
            // A client always reads, so that two sides that both want to write cannot wait for each other.
            self.listens = !is_server || turn.accepts();
            self.done = !is_server && turn.is_done();
            turn.next_deadline()
        });
        self.deadlines.set(next_deadline.map(|deadline| deadline.at()));
        if self.deadlines.poll(cx) {
            self.connection.turn(&mut self.woken, |turn| turn.handle_deadlines(Instant::now()));
            return Ok(Progress::Made);
        }
        if self.writing.is_empty() {
            return Ok(Progress::Blocked);
        }
        match self.write_some(cx) {
            Poll::Pending => Ok(Progress::Blocked),
            Poll::Ready(Ok(())) => Ok(Progress::Made),
            Poll::Ready(Err(error)) => Err(Failure::new(format!("writing failed: {error}"))),
        }
    }

    fn write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.writing.is_empty() {
            let mut slices = empty_slices();
            let count = self.writing.slices(&mut slices);
            match Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => self.writing.advance(written),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Asks a silent peer, and gives up on one that does not answer.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.keepalive.poll(cx) {
            if self.connection.turn(&mut self.woken, |turn| turn.has_many_handlers()) {
                // This side is not listening because of its own handlers.
                self.watch.note_heard();
            }
            let delivered = self.delivered();
            let next = match self.watch.fired(delivered) {
                Due::Wait(next) => next,
                Due::Ping(next) => {
                    let question = self.connection.turn(&mut self.woken, |turn| {
                        turn.ping();
                        turn.link().position()
                    });
                    self.run(cx)?;
                    let delivered = self.delivered();
                    self.watch.note_asked(question, delivered);
                    next
                }
                Due::Dead => return Err(Failure::new("the peer is silent and does not answer a ping")),
            };
            self.keepalive.set(Some(Instant::now() + next));
        }
        Ok(())
    }

    /// The position up to which bytes were written.
    fn delivered(&mut self) -> u64 {
        let writing = self.writing.len();
        self.connection.turn(&mut self.woken, |turn| {
            if turn.link().note_unwritten(writing) {
                turn.made_room();
            }
            turn.link().delivered()
        })
    }

    /// Moves a server that was told to drain towards its end.
    fn drain(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while let Some(server) = &mut self.server
            && let Poll::Ready(step) = server.farewell.poll(cx)
        {
            self.connection.turn(&mut self.woken, |turn| step.take(turn))?;
            self.run(cx)?;
        }
        Ok(())
    }

    fn poll_running(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        self.run(cx)?;
        self.keep_alive(cx)?;
        self.drain(cx)?;
        if self.done { Err(Failure::new("this side closed it")) } else { Ok(()) }
    }

    /// Ends the connection's calls. What waits is still written when the peer is told why, which comes after it, and by
    /// a server, whose replies may be wanted. Otherwise a client drops it: its calls end as never sent and begin again
    /// elsewhere, so not one of them may arrive.
    fn begin_closing(&mut self, failure: Failure) {
        let (writing, drops) = (&mut self.writing, self.server.is_none() && !failure.is_told());
        self.connection.turn(&mut self.woken, |turn| {
            turn.link().note_unwritten(writing.len());
            let mut delivered = turn.link().delivered();
            if failure.is_told() {
                delivered = turn.link().position();
                turn.say_goodbye(&failure);
            }
            if drops {
                *writing = Segments::default();
                turn.link().take(writing);
                *writing = Segments::default();
            }
            turn.fail(&failure, delivered);
        });
        let until = Box::pin(tokio::time::sleep(LAST_WORDS));
        self.phase = Phase::Closing { failure, until };
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Writes what waits and closes the stream. When the peer was told something, also reads until it closes: closing a
    /// socket with unread data would take back what it has not read yet.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.write(cx) {
                Ok(Progress::Made) => {}
                Ok(Progress::Blocked) => break,
                Err(_) => return Poll::Ready(()),
            }
        }
        if !self.writing.is_empty() || Pin::new(&mut self.io).poll_shutdown(cx).is_pending() {
            return Poll::Pending;
        }
        let Phase::Closing { failure, .. } = &self.phase else { return Poll::Pending };
        if !failure.is_told() {
            return Poll::Ready(());
        }
        let mut discarded = [0; 4096];
        for _ in 0..READS_PER_POLL {
            let mut buffer = ReadBuf::new(&mut discarded);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    /// Why the connection is over.
    type Output = Failure;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Failure> {
        let this = &mut *self;
        if let Phase::Running = this.phase {
            match this.poll_running(cx) {
                Ok(()) => return Poll::Pending,
                Err(failure) => this.begin_closing(failure),
            }
        }
        let said = this.poll_last_words(cx);
        let Phase::Closing { failure, until } = &mut this.phase else { return Poll::Pending };
        if said.is_ready() || until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(failure.clone());
        }
        Poll::Pending
    }
}

impl<S> Drop for Driver<S> {
    /// A driver that is dropped before its end, with its runtime say, still ends its calls.
    fn drop(&mut self) {
        let failure = Failure::new("its task was dropped");
        self.connection.turn(&mut self.woken, |turn| {
            let delivered = turn.link().delivered();
            turn.fail(&failure, delivered);
        });
    }
}

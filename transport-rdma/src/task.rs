//! The task of one RDMA connection.
//!
//! Owns what a [`Driver`] must not: the bell, the timers, handlers, and the TCP connection beside the queue pair, whose
//! end is the end of both. Work of one poll is bounded. While the driver spins, the task yields between looks, so that
//! others of its thread run. Invariants: when the task ends, for whatever reason, the connection's calls have ended; when
//! it ends because RDMA failed, the peer is told why over TCP, which still works.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use byway_runtime::dispatch::{Drain, Inline, Router};
use byway_runtime::farewell::{Farewell, LAST_WORDS};
use byway_runtime::keepalive::{Due, Watch};
use byway_runtime::session::Failure;
use byway_runtime::{Alarm, Carrier, Keepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::bell::Rings;
use crate::driver::{Driver, Wake};
use crate::nic::Adapter;
use crate::protocol::offer::{encode_verdict, take_verdict};

/// Turns of one poll, after which other tasks have theirs.
const TURNS_PER_POLL: usize = 16;

/// Drives one connection to its end.
pub struct Task<A: Adapter, S>
where
    A::Nic: Rings,
{
    driver: Driver<A>,
    bell: <A::Nic as Rings>::Bell,
    /// The TCP connection: says when the peer is gone.
    stream: S,
    server: Option<Server>,
    watch: Watch,
    keepalive: Alarm,
    wake: Alarm,
    heard: u64,
    /// Whether calls were left to tasks that may compute for long; see [`Inline::has_handed_over`].
    handed_over: bool,
    /// What the peer said over TCP: why its queue pair failed.
    said: BytesMut,
    /// Whether the peer's queue pair failed, or is silent while TCP is open.
    lost: bool,
    /// Whether the peer has said so itself, and need not be told.
    told: bool,
    broken: Option<Broken>,
    /// What is left to say over TCP.
    last_word: Bytes,
    phase: Phase,
}

/// Who is told when RDMA failed, with the reason.
pub type Broken = Box<dyn FnOnce(&str) + Send>;

/// How a connection ended.
#[derive(Debug)]
pub struct Ended {
    /// Why.
    pub failure: Failure,
    /// Whether it was RDMA itself that failed, rather than either side that ended it.
    pub broken: bool,
}

struct Server {
    router: Arc<Router>,
    farewell: Farewell,
}

enum Phase {
    Running,
    /// Everything is said: what waits is sent, then the TCP connection is closed.
    Closing {
        failure: Failure,
        until: Pin<Box<Sleep>>,
    },
}

impl<A: Adapter, S: AsyncRead + AsyncWrite + Unpin> Task<A, S>
where
    A::Nic: Rings,
{
    /// As a client.
    ///
    /// # Errors
    /// The runtime cannot watch the NIC.
    pub fn client(driver: Driver<A>, stream: S, keepalive: Keepalive) -> std::io::Result<Self> {
        Self::new(driver, stream, keepalive, None)
    }

    /// As a server. `drain` tells the connection when to take no more calls.
    ///
    /// # Errors
    /// The runtime cannot watch the NIC.
    pub fn server(
        driver: Driver<A>,
        stream: S,
        keepalive: Keepalive,
        router: Arc<Router>,
        drain: Drain,
    ) -> std::io::Result<Self> {
        let server = Server { router, farewell: Farewell::new(drain) };
        Self::new(driver, stream, keepalive, Some(server))
    }

    fn new(
        driver: Driver<A>,
        stream: S,
        keepalive: Keepalive,
        server: Option<Server>,
    ) -> std::io::Result<Self> {
        let bell = driver.nic().bell()?;
        let mut alarm = Alarm::new();
        alarm.set(Some(Instant::now() + keepalive.interval));
        Ok(Self {
            driver,
            bell,
            stream,
            server,
            watch: Watch::new(keepalive),
            keepalive: alarm,
            wake: Alarm::new(),
            heard: 0,
            handed_over: false,
            said: BytesMut::new(),
            lost: false,
            told: false,
            broken: None,
            last_word: Bytes::new(),
            phase: Phase::Running,
        })
    }

    /// What was read of the TCP connection behind the peer's verdict.
    #[must_use]
    pub fn having_read(self, said: BytesMut) -> Self {
        Self { said, ..self }
    }

    /// Tells `broken` when RDMA has failed, before the calls are: who makes one again dials knowing it.
    #[must_use]
    pub fn when_broken(self, broken: Broken) -> Self {
        Self { broken: Some(broken), ..self }
    }

    /// Turns until nothing is left to do now. An error is why the connection is over.
    fn run(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        for _ in 0..TURNS_PER_POLL {
            self.listen(cx)?;
            let wake = self.driver.turn(Instant::now(), cx.waker());
            self.dispatch();
            match wake? {
                Wake::Now => {}
                Wake::Spin => break,
                Wake::Bell(at) => {
                    if self.sleep(at, cx)? {
                        if std::mem::take(&mut self.handed_over) {
                            cx.waker().wake_by_ref();
                        }
                        return Ok(());
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Whether the bell rang; if it did, the driver knows. Otherwise the task is woken when it does.
    fn listen(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        if !self.driver.is_armed() {
            return Ok(false);
        }
        match self.driver.nic().poll_rang(&mut self.bell, cx) {
            Poll::Ready(Ok(())) => self.driver.rang().map(|()| true),
            Poll::Ready(Err(error)) => Err(Failure::new(format!("its device cannot be watched: {error}"))),
            Poll::Pending => Ok(false),
        }
    }

    /// Sleeps until the bell rings or the time has come; `false` when it has already.
    fn sleep(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Result<bool, Failure> {
        if self.listen(cx)? {
            return Ok(false);
        }
        self.wake.set(at);
        Ok(!self.wake.poll(cx))
    }

    fn dispatch(&mut self) {
        let Some(server) = &self.server else { return };
        let carrier: Arc<dyn Carrier> = Arc::clone(self.driver.connection()) as _;
        let info = Arc::clone(self.driver.connection().info());
        let mut inline = None;
        for incoming in self.driver.take_calls() {
            let inline = inline.get_or_insert_with(Inline::new);
            server.router.dispatch(&carrier, &info, incoming, inline).map(tokio::spawn);
        }
        self.handed_over |= inline.is_some_and(|inline| inline.has_handed_over());
    }

    /// The TCP connection says nothing more until it ends, but why the peer's queue pair failed.
    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            match take_verdict(&mut self.said) {
                Ok(None) => {}
                Ok(Some(Err(reason))) => {
                    (self.lost, self.told) = (true, true);
                    return Err(Failure::new(format!("RDMA failed at the peer: {reason}")));
                }
                _ => return Err(Failure::told("bytes on a TCP connection whose frames go by RDMA")),
            }
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => {
                    return Err(Failure::new(format!("its TCP connection failed: {error}")));
                }
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    return Err(Failure::new("the peer closed it"));
                }
                Poll::Ready(Ok(())) => self.said.extend_from_slice(buffer.filled()),
            }
        }
    }

    /// Asks a silent peer, and gives up on one that does not answer.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.keepalive.poll(cx) {
            let many_handlers = self.driver.with(|turn| turn.has_many_handlers());
            if many_handlers || self.driver.heard() != self.heard {
                // Or this side is not listening because of its own handlers.
                self.heard = self.driver.heard();
                self.watch.note_heard();
            } else {
                // What is bound for the next replies is others' meanwhile.
                self.driver.doze()?;
            }
            let delivered = self.driver.with(|turn| turn.link().endpoint.delivered());
            let next = match self.watch.fired(delivered) {
                Due::Wait(next) => next,
                Due::Ping(next) => {
                    let question = self.driver.with(|turn| {
                        turn.ping();
                        turn.link().endpoint.position()
                    });
                    self.run(cx)?;
                    let delivered = self.driver.with(|turn| turn.link().endpoint.delivered());
                    self.watch.note_asked(question, delivered);
                    next
                }
                Due::Dead => {
                    self.lost = true;
                    return Err(Failure::new("the peer is silent and does not answer a ping"));
                }
            };
            self.keepalive.set(Some(Instant::now() + next));
        }
        Ok(())
    }

    /// Moves a server that was told to drain towards its end.
    fn drain(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while let Some(server) = &mut self.server
            && let Poll::Ready(step) = server.farewell.poll(cx)
        {
            self.driver.with(|turn| step.take(turn))?;
            self.run(cx)?;
        }
        Ok(())
    }

    fn poll_running(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let closed = self.poll_stream(cx);
        // What came before the end counts, so it is looked at after it.
        let turned = self.run(cx);
        turned.and(closed)?;
        self.keep_alive(cx)?;
        self.drain(cx)?;
        let is_done = self.server.is_none() && self.driver.with(|turn| turn.is_done());
        if is_done { Err(Failure::new("this side closed it")) } else { Ok(()) }
    }

    /// Whether it was RDMA itself that failed.
    fn is_broken(&self) -> bool {
        self.lost || self.driver.is_broken()
    }

    fn begin_closing(&mut self, failure: Failure) {
        if self.is_broken() {
            if let Some(broken) = self.broken.take() {
                broken(failure.reason());
            }
            if !self.told {
                self.last_word = encode_verdict(&Err(failure.reason().to_owned()));
            }
        }
        self.driver.end(&failure);
        let until = Box::pin(tokio::time::sleep(LAST_WORDS));
        self.phase = Phase::Closing { failure, until };
    }

    /// Sends what waits, until the peer's NIC has all of it, and closes the TCP connection.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.driver.has_to_send() {
            match self.driver.turn(Instant::now(), cx.waker()) {
                Err(_) => break,
                Ok(Wake::Now | Wake::Spin) => {}
                Ok(Wake::Bell(at)) => match self.sleep(at, cx) {
                    Ok(true) => return Poll::Pending,
                    Ok(false) => {}
                    Err(_) => break,
                },
            }
        }
        while !self.last_word.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.last_word) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(len @ 1..)) => self.last_word.advance(len),
                Poll::Ready(_) => self.last_word.clear(),
            }
        }
        self.driver.stop();
        let Phase::Closing { failure, .. } = &self.phase else { return Poll::Pending };
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if shut.is_pending() {
            return Poll::Pending;
        }
        if !failure.is_told() {
            return Poll::Ready(());
        }
        // The peer has what it was told when it closes too.
        let mut bytes = [0; 64];
        match Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut bytes)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
        }
    }
}

impl<A: Adapter, S: AsyncRead + AsyncWrite + Unpin> Future for Task<A, S>
where
    A::Nic: Rings,
{
    /// How the connection ended.
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        if let Phase::Running = this.phase {
            match this.poll_running(cx) {
                Ok(()) => return Poll::Pending,
                Err(failure) => this.begin_closing(failure),
            }
        }
        let said = this.poll_last_words(cx);
        let broken = this.is_broken();
        let Phase::Closing { failure, until } = &mut this.phase else { return Poll::Pending };
        if said.is_ready() || until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ended { failure: failure.clone(), broken });
        }
        Poll::Pending
    }
}

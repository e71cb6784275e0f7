//! Whole messages over a TCP socket: a length of four bytes, then the payload.
//!
//! The bound that a framework is held against. Like one, the server has a message whole, in memory of its own, before it
//! answers; unlike one, that memory is the same for all messages and nothing is parsed. With several messages in flight
//! the client sends them in one write and waits for all of them, which no framework reaches with independent callers.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Payload;
use crate::closed_loop::Samples;
use crate::pages::Pages;
use crate::workload::Budget;
use crate::{Failure, peer};

const LENGTH: usize = 4;

/// Takes what a socket holds in one read while messages are small.
const READ_BUFFER: usize = 64 << 10;

pub(super) async fn serve(at: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(at).await?;
    peer::announce(listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // The client closes the connection when it has what it wants.
        tokio::spawn(answer(stream));
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut received = Received::new();
    loop {
        let whole = received.next_messages(&mut stream).await?;
        stream.write_all(whole).await?;
        received.forget_messages();
    }
}

/// What was read: whole messages, then perhaps the beginning of another.
struct Received {
    memory: Pages,
    filled: usize,
    whole: usize,
}

impl Received {
    fn new() -> Self {
        Self { memory: Pages::zeroed(READ_BUFFER), filled: 0, whole: 0 }
    }

    /// Reads until there is at least one whole message, and returns all that there are, with their lengths.
    async fn next_messages(&mut self, stream: &mut TcpStream) -> io::Result<&[u8]> {
        loop {
            while let Some(end) = self.end_of_message() {
                if end > self.memory.len() {
                    self.memory = self.memory.grown(end);
                }
                if end > self.filled {
                    break;
                }
                self.whole = end;
            }
            if self.whole > 0 {
                return Ok(&self.memory[..self.whole]);
            }
            match stream.read(&mut self.memory[self.filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.filled += count,
            }
        }
    }

    /// Where the message ends that begins after the whole ones, once its length is there.
    fn end_of_message(&self) -> Option<usize> {
        let length = self.memory[self.whole..self.filled].first_chunk::<LENGTH>()?;
        Some(self.whole + LENGTH + u32::from_be_bytes(*length) as usize)
    }

    fn forget_messages(&mut self) {
        self.memory.copy_within(self.whole..self.filled, 0);
        self.filled -= self.whole;
        self.whole = 0;
    }
}

pub(crate) struct Client {
    state: Option<State>,
    payload: Payload,
    in_flight: usize,
}

/// What a run takes along into its task.
struct State {
    stream: TcpStream,
    received: Received,
}

impl Client {
    pub(super) async fn connect(address: &str, payload: Payload, in_flight: usize) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { state: Some(State { stream, received: Received::new() }), payload, in_flight })
    }

    /// In a task, as the loops of the other paths.
    pub(super) async fn run(&mut self, budget: Budget) -> Result<Samples, Failure> {
        let mut state = self.state.take().ok_or("the last run failed")?;
        let (payload, in_flight) = (self.payload.clone(), self.in_flight);
        let run = tokio::spawn(async move {
            let samples = state.ping_pong(&payload, in_flight, budget).await?;
            Ok::<_, Failure>((samples, state))
        });
        let (samples, state) = run.await??;
        self.state = Some(state);
        Ok(samples)
    }
}

impl State {
    async fn ping_pong(
        &mut self,
        payload: &Payload,
        in_flight: usize,
        budget: Budget,
    ) -> Result<Samples, Failure> {
        let size = LENGTH + payload.0.len();
        let mut batch = Pages::zeroed(in_flight * size);
        for message in batch.chunks_exact_mut(size) {
            let (length, body) = message.split_at_mut(LENGTH);
            length.copy_from_slice(&u32::try_from(body.len())?.to_be_bytes());
            body.copy_from_slice(&payload.0);
        }
        let mut latencies = Vec::with_capacity(budget.calls + in_flight);
        let began = Instant::now();
        let until = began + budget.time;
        let mut last = began;
        while last < until && latencies.len() < budget.calls {
            self.stream.write_all(&batch).await?;
            let sent = last;
            let mut answered = 0;
            while answered < in_flight {
                let whole = self.received.next_messages(&mut self.stream).await?;
                last = Instant::now();
                for message in whole.chunks(size) {
                    payload.check(message.get(LENGTH..).unwrap_or_default())?;
                    latencies.push(last - sent);
                    answered += 1;
                }
                self.received.forget_messages();
            }
        }
        Samples::new(last - began, latencies)
    }
}

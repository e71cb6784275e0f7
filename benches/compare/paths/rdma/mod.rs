//! Whole messages between two queue pairs, on the verbs layer and its NIC trait: what byway over RDMA is held against.
//!
//! Owns both ends' loops. The two processes describe their ends to each other over a TCP connection, which then only says
//! that the peer is alive. Messages that fit into a request itself are sends ([`sends`]), larger ones writes with an immediate
//! ([`writes`]). As on the raw TCP path, the server has a message whole before it answers, from memory that is its own, and
//! nothing is parsed. Invariant: no end has more messages unanswered than its peer has receives posted, so no
//! message ever finds none.

mod end;
mod sends;
mod writes;

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Payload;
use crate::closed_loop::Samples;
use crate::workload::Budget;
use crate::{Failure, peer};
use end::End;
pub(crate) use end::Wait;
use writes::Mailbox;

/// What the client tells first, and both ends then agree on.
#[derive(Debug, Clone, Copy)]
struct Plan {
    bytes: usize,
    /// Messages without an answer.
    window: usize,
}

pub(super) async fn serve(at: SocketAddr, wait: Wait) -> Result<(), Failure> {
    let listener = TcpListener::bind(at).await?;
    peer::announce(listener.local_addr()?)?;
    // One at a time: a bench makes one connection, and an end that spins shares its thread with nobody.
    loop {
        let (control, _) = listener.accept().await?;
        answer(control, wait).await?;
    }
}

async fn answer(mut control: TcpStream, wait: Wait) -> Result<(), Failure> {
    control.set_nodelay(true)?;
    let bytes = control.read_u32().await? as usize;
    let plan = Plan { bytes, window: control.read_u32().await? as usize };
    let mut end = End::connect(&mut control, plan, wait).await?;
    if end.fits_inline(plan.bytes)? {
        sends::answer(&mut end).await
    } else {
        let mailbox = Mailbox::open(&mut end, &mut control, plan.bytes).await?;
        writes::answer(&mut end, mailbox).await
    }
}

/// A connected client.
pub(crate) struct Client {
    /// `None` after a failed run.
    state: Option<Box<State>>,
    payload: Payload,
    window: usize,
}

/// What a run takes along into its task.
struct State {
    end: End,
    /// Of a connection whose messages are written.
    mailbox: Option<writes::Client>,
    /// Open for as long as the peer is to answer.
    _control: TcpStream,
}

impl Client {
    pub(super) async fn connect(
        address: &str,
        payload: Payload,
        window: usize,
        wait: Wait,
    ) -> Result<Self, Failure> {
        let plan = Plan { bytes: payload.0.len(), window };
        let mut control = TcpStream::connect(address).await?;
        control.set_nodelay(true)?;
        control.write_u32(u32::try_from(plan.bytes)?).await?;
        control.write_u32(u32::try_from(plan.window)?).await?;
        let mut end = End::connect(&mut control, plan, wait).await?;
        let mailbox = if end.fits_inline(plan.bytes)? {
            None
        } else if window > 1 {
            let bytes = plan.bytes;
            return Err(format!(
                "messages of {bytes} bytes do not fit into a request: only one may be in flight"
            )
            .into());
        } else {
            let mailbox = Mailbox::open(&mut end, &mut control, plan.bytes).await?;
            Some(writes::Client::new(&mut end, mailbox, &payload)?)
        };
        Ok(Self { state: Some(Box::new(State { end, mailbox, _control: control })), payload, window })
    }

    /// In a task, as the loops of the other paths.
    pub(super) async fn run(&mut self, budget: Budget) -> Result<Samples, Failure> {
        let mut state = self.state.take().ok_or("the last run failed")?;
        let (payload, window) = (self.payload.clone(), self.window);
        let run = tokio::spawn(async move {
            let samples = match &mut state.mailbox {
                Some(client) => client.run(&mut state.end, &payload, budget).await?,
                None => sends::run(&mut state.end, &payload, window, budget).await?,
            };
            Ok::<_, Failure>((samples, state))
        });
        let (samples, state) = run.await??;
        self.state = Some(state);
        Ok(samples)
    }
}

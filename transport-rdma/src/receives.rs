//! The receives that all connections of one device share.
//!
//! Owns [`Receives`]: how many are posted, and whose they are ([`Ledger`]). Invariant: what peers may use never exceeds
//! what is posted; a connection posts a receive again before it says so to its peer. Receives are posted when
//! connections need them, up to a limit, and then stay: a queue does not give them back. Never: takes a
//! credit away; a connection is asked, and told by its waker.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::memory::Memory;
use crate::nic::{Adapter, Receive, WorkId};
use crate::options::RdmaOptions;
use crate::protocol::credit::Credits;
use crate::protocol::ledger::{Ledger, ShareId};

/// Receives that are posted at once when they run out.
const STEP: u32 = 32;

/// The receives of one device.
#[derive(Debug)]
pub(crate) struct Receives {
    limit: u32,
    /// Bytes of each.
    size: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    posted: u32,
    mail: Vec<(ShareId, Arc<Mail>)>,
}

/// What a share's connection is asked to give back, and how it is told.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    asked: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl Mail {
    /// What was asked since the last time.
    pub(crate) fn take_asked(&self) -> Option<Credits> {
        // Looked at in every turn, so without writing.
        (self.asked.load(Ordering::Acquire) > 0).then(|| Credits(self.asked.swap(0, Ordering::AcqRel)))
    }

    /// Whom to wake. What was asked before is for the next look.
    pub(crate) fn register(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn ask(&self, credits: Credits) {
        self.asked.store(credits.0, Ordering::Release);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Receives {
    pub(crate) fn new(options: &RdmaOptions, device_max: u32) -> Self {
        let (minimum, maximum) = (Credits(options.receives_min.into()), Credits(options.receives_max.into()));
        let ledger = Ledger::new(Credits(0), minimum, maximum);
        let state = Mutex::new(State { ledger, posted: 0, mail: Vec::new() });
        Self { limit: options.shared_receives.min(device_max), size: options.receive_size as usize, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection's share, and how much it is.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(crate) fn open<A: Adapter>(&self, adapter: &A) -> Result<(ShareId, Credits, Arc<Mail>), String> {
        let mut state = self.lock();
        let mut refused = Ok(());
        if state.ledger.free().0 < STEP / 2 {
            refused = state.post_more(adapter, self);
        }
        let Some(id) = state.ledger.open() else {
            let posted = state.posted;
            state.tell();
            return Err(match refused {
                Err(reason) if posted == 0 => format!("receives cannot be posted: {reason}"),
                Err(reason) => {
                    format!("all {posted} receives of the device are in use, and it takes no more: {reason}")
                }
                Ok(()) => format!("all {posted} receives of the device are in use"),
            });
        };
        let mail = Arc::new(Mail::default());
        state.mail.push((id, Arc::clone(&mail)));
        Ok((id, state.ledger.share(id), mail))
    }

    /// Adds to a share as much as it holds already, or less.
    pub(crate) fn borrow<A: Adapter>(&self, adapter: &A, id: ShareId) -> Credits {
        let mut state = self.lock();
        let wanted = state.ledger.share(id);
        if state.ledger.free().0 < 2 * wanted.0 {
            // If it may not be, the connections share what there is.
            let _ = state.post_more(adapter, self);
        }
        let lent = state.ledger.borrow(id, wanted);
        state.tell();
        lent
    }

    pub(crate) fn handle_given_back(&self, id: ShareId, entries: Credits) {
        self.lock().ledger.handle_given_back(id, entries);
    }

    /// The connection is gone, and what it used is posted again, but for `lost`.
    pub(crate) fn close(&self, id: ShareId, lost: Credits) {
        let mut state = self.lock();
        state.ledger.close(id);
        state.posted -= state.ledger.lose(lost).0;
        state.mail.retain(|(share, _)| *share != id);
    }

    /// One connection's share.
    #[cfg(test)]
    pub(crate) fn share(&self, id: ShareId) -> Credits {
        self.lock().ledger.share(id)
    }

    /// Receives that are posted, that are nobody's, and that are some connection's.
    #[cfg(test)]
    pub(crate) fn accounts(&self) -> (u32, u32, u32) {
        let state = self.lock();
        let shares = state.mail.iter().map(|(id, _)| state.ledger.share(*id).0).sum();
        (state.posted, state.ledger.free().0, shares)
    }

    /// Receives that are posted, and those of them that are nobody's.
    pub(crate) fn count(&self) -> (u32, u32) {
        let state = self.lock();
        (state.posted, state.ledger.free().0)
    }
}

impl State {
    /// Posts some more receives, if there may be more.
    ///
    /// # Errors
    /// Why the device takes no more, for a person.
    fn post_more<A: Adapter>(&mut self, adapter: &A, all: &Receives) -> Result<(), String> {
        let count = STEP.min(all.limit.saturating_sub(self.posted));
        if count == 0 {
            return match self.posted {
                0 => Err("the device or its options have no shared receives (shared_receives)".into()),
                _ => Ok(()),
            };
        }
        let len = count as usize * all.size;
        let memory = Memory::allocate(len).map_err(|error| format!("{len} bytes cannot be had: {error}"))?;
        let slab = adapter.register(memory).map_err(|rejected| rejected.error.to_string())?;
        let buffers = slab.into_buffers(all.size).into_iter();
        let mut batch: Vec<_> = buffers.map(|buffer| Receive { work: WorkId(0), buffer }).collect();
        let offered = batch.len();
        // What is not taken is left in the batch.
        let result = adapter.post_shared(&mut batch);
        let posted = Credits((offered - batch.len()) as u32);
        self.posted += posted.0;
        self.ledger.add(posted);
        result.map_err(|error| error.to_string())
    }

    fn tell(&mut self) {
        while let Some((id, credits)) = self.ledger.poll_ask() {
            if let Some((_, mail)) = self.mail.iter().find(|(share, _)| *share == id) {
                mail.ask(credits);
            }
        }
    }
}

//! What all connections of one device share.
//!
//! Owns [`Host`]: the adapter with its domain, the pool of registered memory and the shared receives. Each connection
//! adds a queue pair and a completion queue of its own, so that one that overruns harms nobody else. Never: knows a
//! connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use byway_runtime::Limits;

use crate::counters::{Counted, Counters};
use crate::nic::{Adapter, NicError};
use crate::options::RdmaOptions;
use crate::pool::{Owner, Pool};
use crate::protocol::credit::Credits;
use crate::protocol::ledger::ShareId;
use crate::protocol::offer::Capabilities;
use crate::protocol::wire::least_receive;
use crate::receives::{Mail, Receives};
use crate::wire::Wire;

/// Receives of the peer's that a queue pair may complete beyond what it was lent: a peer that breaks the rules loses its
/// own connection, and before that is found out its completions need a place.
const UNLENT: u32 = 16;

/// One device and everything that its connections share.
pub struct Host<A> {
    pub(crate) adapter: Arc<A>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) receives: Receives,
    pub(crate) options: RdmaOptions,
    name: String,
    pub(crate) counters: Arc<Counters>,
}

/// A connection's part of its host; it goes back when it is dropped, after the queue pair.
#[derive(Debug)]
pub(crate) struct Share<A: Adapter> {
    pub(crate) host: Arc<Host<A>>,
    pub(crate) id: ShareId,
    pub(crate) owner: Owner,
    pub(crate) mail: Arc<Mail>,
    /// Receives that do not come back.
    pub(crate) lost: Credits,
}

impl<A: Adapter> Drop for Share<A> {
    fn drop(&mut self) {
        self.host.receives.close(self.id, self.lost);
    }
}

/// A queue pair that is not connected yet, and what it is to be offered with.
pub(crate) struct Prepared<A: Adapter> {
    // In this order: the queue pair is gone before its receives are somebody else's.
    pub(crate) wire: Wire<A::Nic>,
    pub(crate) share: Share<A>,
    pub(crate) capabilities: Capabilities,
}

impl<A: Adapter> Host<A> {
    /// Makes a device ready for connections; `name` is for people. Nothing is registered before the first one.
    pub fn new(adapter: A, name: impl Into<String>, options: RdmaOptions) -> Arc<Self> {
        let adapter = Arc::new(adapter);
        let registrar = Arc::clone(&adapter);
        let register =
            move |memory| registrar.register(memory).map_err(|rejected| rejected.error.to_string());
        let receives = Receives::new(&options, adapter.limits().shared_receives_max);
        Arc::new(Self {
            pool: Pool::new(Box::new(register), &options),
            adapter,
            receives,
            options,
            name: name.into(),
            counters: Arc::default(),
        })
    }

    /// The device, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it behaves.
    pub fn options(&self) -> &RdmaOptions {
        &self.options
    }

    /// The pool of registered memory.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The device.
    pub fn adapter(&self) -> &A {
        &self.adapter
    }

    /// What its connections have done so far.
    pub fn counters(&self) -> Counted {
        self.counters.read()
    }

    /// Receives that are posted, and those of them that no connection holds.
    pub fn receives(&self) -> (u32, u32) {
        self.receives.count()
    }

    /// Whether large messages can be written into windows.
    pub(crate) fn windows(&self) -> bool {
        self.options.windows && self.adapter.limits().windows
    }

    /// A queue pair with receives for a new connection.
    ///
    /// # Errors
    /// Why this device has none, for a person.
    pub(crate) fn prepare(self: &Arc<Self>, limits: &Limits) -> Result<Prepared<A>, String> {
        static OWNERS: AtomicU64 = AtomicU64::new(1);
        let (least, size) = (least_receive(limits.max_head), self.options.receive_size);
        if least > size as usize {
            return Err(format!(
                "heads of up to {} bytes (max_head) do not fit its receives of {size}: set receive_size to {least} or more",
                limits.max_head
            ));
        }
        let (id, receives, mail) = self.receives.open(&*self.adapter)?;
        let owner = Owner(OWNERS.fetch_add(1, Ordering::Relaxed));
        let share = Share { host: Arc::clone(self), id, owner, mail, lost: Credits(0) };
        let consumed = u32::from(self.options.receives_max).max(receives.0) + UNLENT;
        let wire = self.wire(consumed).map_err(|error| format!("a queue pair cannot be created: {error}"))?;
        let capabilities = Capabilities {
            receive_depth: receives.0.try_into().unwrap_or(u16::MAX),
            receive_size: size,
            transfers: self.options.transfers,
            offers: self.options.transfers,
            windows: self.windows(),
        };
        Ok(Prepared { wire, share, capabilities })
    }

    fn wire(&self, consumed: u32) -> Result<Wire<A::Nic>, NicError> {
        let spec = &self.options.queue_pair;
        let nic = self.adapter.nic(spec.send_depth + consumed, consumed)?;
        Wire::new(nic, spec, Arc::clone(&self.pool), Arc::clone(&self.counters))
    }
}

impl<A> fmt::Debug for Host<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("pool", &self.pool)
            .field("receives", &self.receives)
            .finish_non_exhaustive()
    }
}

//! What the connections of one device share, and how they behave: every figure with the reason for its default.

use std::time::Duration;

use crate::nic::QueuePairSpec;
use crate::verbs::DeviceChoice;

/// How byway uses RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Which device, port and address. Default: what suits each connection.
    pub choice: DeviceChoice,
    /// What every queue pair is made with; the defaults stand there.
    pub queue_pair: QueuePairSpec,
    /// How long a driver polls its completion queue after the last completion before it sleeps. Zero never polls in
    /// vain. Default: 20 µs with four processors or more, since a wake-up costs about that; else zero, since polling
    /// would take the processor from whom it waits for.
    pub spin: Duration,
    /// How long a connection may take to agree on RDMA, hello and probe included, before it goes on over TCP: what is
    /// added at most to a first call, and the same once more while the device is being opened. Default 1 s: longer than
    /// any path that is worth having.
    pub agreement_timeout: Duration,
    /// For how long a peer with which RDMA failed is dialled without it. Default 30 s; it doubles up to ten minutes.
    pub retry_after: Duration,
    /// Messages of at least this many bytes are written into memory that the peer grants; below it they are copied
    /// through receives. Default 16 KiB: below that, two copies take less than the exchange of announcement and grant.
    pub large_from: u32,
    /// Bytes of each receive: the longest message. Default 20 KiB: a body just below `large_from`, or the longest head that
    /// is accepted by default. A side whose `max_head` does not fit goes without RDMA.
    pub receive_size: u32,
    /// Receives that a connection's peer may use from the start, and always keeps. Default and least 3: two sides with
    /// fewer can wait for each other.
    pub receives_min: u16,
    /// Receives that a connection may borrow in all, as long as its peer has use for them. Default 64.
    pub receives_max: u16,
    /// Receives that all connections of a device share at most. They are posted when they are needed, and then stay.
    /// Default 8,192, which is 160 MiB; clamped to the device.
    pub shared_receives: u32,
    /// Bytes of registered memory for messages on their way out. Default 32 MiB. Senders wait for it.
    pub staging: usize,
    /// Bytes of registered memory for large messages that arrive, from their announcement until the last reference to
    /// the message is dropped. Default 512 MiB. Beyond it calls end with `RESOURCE_EXHAUSTED`.
    pub landing: u64,
    /// Bytes of registered memory that callers may hold by [`Pool::lease`](crate::pool::Pool::lease). Default 256 MiB.
    pub leases: u64,
    /// Bytes of registered memory for large messages that are kept for the next ones. Default 64 MiB: registering a
    /// MiB costs more than writing it.
    pub keep: usize,
    /// Bodies that may be on their way to one side of a connection at once. Default 64.
    pub transfers: u16,
    /// Whether large messages may be written into windows. Default yes; without windows they travel in pieces.
    pub windows: bool,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            choice: DeviceChoice::default(),
            queue_pair: QueuePairSpec { inline_max: 256, ..QueuePairSpec::default() },
            spin: if processors >= 4 { Duration::from_micros(20) } else { Duration::ZERO },
            agreement_timeout: Duration::from_secs(1),
            retry_after: Duration::from_secs(30),
            large_from: 16 << 10,
            receive_size: 20 << 10,
            receives_min: 3,
            receives_max: 64,
            shared_receives: 8192,
            staging: 32 << 20,
            landing: 512 << 20,
            leases: 256 << 20,
            keep: 64 << 20,
            transfers: 64,
            windows: true,
        }
    }
}

//! Callers that never stop, but when they are asked to pause.
//!
//! Owns what each of them sends, and the check of what comes back. Invariant: whatever begins is noted when it ends,
//! so that a call which never does is missed. Never: retries; the next call of a caller is another one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use byway::{Channel, Status};
use byway_test_support::test::v1::{EchoReply, EchoRequest, echo_client::EchoClient};
use tokio::sync::watch;

use crate::tally::{DEADLINE, Kind, Moment, Tally};

/// How many callers of each kind, and how long each pauses between calls: an emulated processor is busy all the same.
const CALLERS: [(Kind, usize, Duration); 4] = [
    (Kind::Small, 20, Duration::from_millis(10)),
    (Kind::Medium, 6, Duration::from_millis(50)),
    (Kind::Large, 2, Duration::from_millis(200)),
    (Kind::Stream, 4, Duration::from_millis(20)),
];

/// After a call that failed, so that calls which fail at once do not crowd out all else.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Replies of a stream, and the time between them.
const REPLIES: u32 = 20;
const BETWEEN_REPLIES_MS: u32 = 10;

/// All callers of one channel.
pub(crate) struct Load {
    shared: Arc<Shared>,
    open: watch::Sender<bool>,
}

#[derive(Default)]
struct Shared {
    tally: Mutex<Tally>,
    moment: Mutex<Moment>,
    in_flight: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Starts the callers, which wait for [`resume`](Self::resume).
    pub(crate) fn start(channel: &Channel) -> Self {
        let (open, opened) = watch::channel(false);
        let shared = Arc::<Shared>::default();
        let mut name = 0;
        for (kind, count, pause) in CALLERS {
            for _ in 0..count {
                name += 1;
                let client = EchoClient::new(channel.clone());
                let caller = Caller { client, channel: channel.clone(), name, kind, number: 0 };
                tokio::spawn(caller.run(Arc::clone(&shared), opened.clone(), pause));
            }
        }
        tokio::spawn(watch_timers(Arc::clone(&shared)));
        Self { shared, open }
    }

    pub(crate) fn resume(&self) {
        self.open.send_replace(true);
    }

    /// Waits until no call is in flight; the number of those that did not end in their time, with an allowance.
    pub(crate) async fn pause(&self) -> usize {
        self.open.send_replace(false);
        let until = Instant::now() + DEADLINE + Duration::from_secs(5);
        loop {
            let in_flight = self.shared.in_flight.load(Ordering::SeqCst);
            if in_flight == 0 || Instant::now() > until {
                return in_flight;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.shared.tally)
    }

    pub(crate) fn mark(&self, moment: Moment) {
        *lock(&self.shared.moment) = moment;
    }
}

struct Caller {
    client: EchoClient<Channel>,
    channel: Channel,
    name: usize,
    kind: Kind,
    number: u64,
}

impl Caller {
    async fn run(mut self, shared: Arc<Shared>, mut open: watch::Receiver<bool>, pause: Duration) {
        // An end of the gate is the end of the program.
        while open.wait_for(|open| *open).await.is_ok() {
            shared.in_flight.fetch_add(1, Ordering::SeqCst);
            let began = Instant::now();
            let result = self.call().await;
            let moment = *lock(&shared.moment);
            lock(&shared.tally).note(self.kind, began, &result, moment);
            shared.in_flight.fetch_sub(1, Ordering::SeqCst);
            tokio::time::sleep(if result.is_ok() { pause } else { AFTER_FAILURE }).await;
        }
    }

    async fn call(&mut self) -> Result<(), Status> {
        self.number += 1;
        let (count, len) = match self.kind {
            Kind::Small => (0, 64),
            Kind::Medium => (0, 64 << 10),
            Kind::Large => (0, 1 << 20),
            Kind::Stream => (REPLIES, 1 << 10),
        };
        let (payload, text) = (self.payload(len), format!("{}:{}", self.name, self.number));
        let mut request =
            EchoRequest { payload: payload.clone(), text: text.clone(), ..EchoRequest::default() };
        if count == 0 {
            let reply = self.client.unary(request).await?.into_inner();
            return check(&reply, &payload, &text, 0);
        }
        (request.count, request.delay_ms) = (count, BETWEEN_REPLIES_MS);
        let mut replies = self.client.expand(request).await?.into_inner();
        for index in 0..count {
            let reply =
                replies.message().await?.ok_or_else(|| Status::data_loss("a stream was too short"))?;
            check(&reply, &payload, &text, index)?;
        }
        match replies.message().await? {
            None => Ok(()),
            Some(_) => Err(Status::data_loss("a stream was too long")),
        }
    }

    /// Differs from call to call, and every other one is in memory of the device.
    fn payload(&self, len: usize) -> Bytes {
        let byte = (self.number as u8).wrapping_mul(31) ^ self.name as u8;
        if len < 1 << 20 || self.number.is_multiple_of(2) {
            return vec![byte; len].into();
        }
        let mut buffer = self.channel.buffer(len);
        buffer.fill(byte);
        buffer.freeze()
    }
}

fn check(reply: &EchoReply, payload: &Bytes, text: &str, index: u32) -> Result<(), Status> {
    if reply.payload == *payload && reply.text == text && reply.index == index {
        return Ok(());
    }
    Err(Status::data_loss(format!("the reply to {text} is another: {} {}", reply.text, reply.index)))
}

/// Notes how late timers are in this runtime.
async fn watch_timers(shared: Arc<Shared>) {
    loop {
        let due = tokio::time::Instant::now() + Duration::from_millis(10);
        tokio::time::sleep_until(due).await;
        let late = due.elapsed();
        let mut tally = lock(&shared.tally);
        tally.timer_late = tally.timer_late.max(late);
    }
}

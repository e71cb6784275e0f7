//! From a call that arrived to its handler.
//!
//! Owns [`Router`] (path to handler), and a server's policy, which holds for every transport: admission, deadlines,
//! cancellation, containment of panics, and where a handler runs. A handler is first polled where its call was read,
//! holding no lock; one that is not ready at once becomes a task. Handlers that compute before their first await would
//! hold up a connection: each turn of a driver has a time budget ([`Inline`]), after which calls become tasks at once,
//! and methods that are slow on average always do.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::{Instant, Sleep};
use tonic::Status;

use crate::adapter::TowerHandler;
use crate::context::{CallContext, ConnectionInfo};
use crate::deadline::Deadline;
use crate::invoke::{Call, CallRef, Carrier};
use crate::server::{Direct, Handling, ServerCall, unknown_method};
use crate::session::{Incoming, Path};

/// Time that handlers may take within one turn of a driver before further calls become tasks: long enough for a
/// batch of small ones, short against the time-out of anything.
const TURN_BUDGET: Duration = Duration::from_micros(200);

/// A method whose first poll takes longer on average is never polled by a driver. A task costs about a microsecond, so
/// above this running elsewhere wins as soon as there is a second core.
const SLOW_NS: u64 = 50_000;

/// A method whose first poll takes less on average is timed for several calls at once: reading the clock twice costs as
/// much as a small call.
const FAST_NS: u64 = 5_000;

/// How many. When such a method turns slow, so many of its calls hold up a connection before it is noticed.
const TIMED_TOGETHER: u32 = 8;

/// Resolves when a server takes no more calls, to when the open ones must be over. Every link's driver is given one.
pub type Drain = Pin<Box<dyn Future<Output = Instant> + Send>>;

/// Which handler answers which path.
#[derive(Default)]
pub struct Router {
    /// By whole path. Callers choose what is looked up, never what is stored, so a fast hash is safe.
    methods: FxHashMap<&'static [u8], usize>,
    /// By the name of the service.
    services: FxHashMap<&'static [u8], usize>,
    routes: Vec<Route>,
    /// Calls that are running, where their number is limited.
    running: Arc<AtomicUsize>,
    max_running: Option<usize>,
}

struct Route {
    /// The path of the method; none for a whole service.
    path: Option<&'static [u8]>,
    handler: Arc<dyn Direct>,
    method: usize,
    cost: Arc<Cost>,
}

impl Router {
    /// Routes the methods of a generated service to it.
    ///
    /// # Errors
    /// The path that is taken already.
    pub fn add_direct(&mut self, service: impl Direct) -> Result<(), &'static str> {
        let handler: Arc<dyn Direct> = Arc::new(service);
        for (method, descriptor) in handler.methods().iter().enumerate() {
            let path = descriptor.path();
            let is_taken =
                service_of(path.as_bytes()).is_some_and(|service| self.services.contains_key(service));
            if is_taken || self.methods.insert(path.as_bytes(), self.routes.len()).is_some() {
                return Err(path);
            }
            let (path, handler) = (Some(path.as_bytes()), Arc::clone(&handler));
            self.routes.push(Route { path, handler, method, cost: Arc::default() });
        }
        Ok(())
    }

    /// Routes every path of the service with this name to a tower service.
    ///
    /// # Errors
    /// The name, when it is taken already.
    pub fn add_tower(&mut self, name: &'static str, service: TowerHandler) -> Result<(), &'static str> {
        if self.methods.keys().any(|path| service_of(path) == Some(name.as_bytes())) {
            return Err(name);
        }
        if self.services.insert(name.as_bytes(), self.routes.len()).is_some() {
            return Err(name);
        }
        self.routes.push(Route { path: None, handler: Arc::new(service), method: 0, cost: Arc::default() });
        Ok(())
    }

    /// Refuses calls with `RESOURCE_EXHAUSTED` while `max` are running, over all connections.
    pub fn limit_running(&mut self, max: usize) {
        self.max_running = Some(max);
    }

    /// The route of `path`. Calls that came together are often of one method: where the `last` one went is looked at
    /// first.
    fn route(&self, path: &[u8], last: &mut usize) -> Option<&Route> {
        match self.routes.get(*last) {
            Some(route) if route.path == Some(path) => return Some(route),
            _ => {}
        }
        let method = self.methods.get(path);
        *last = *method.or_else(|| self.services.get(service_of(path)?))?;
        self.routes.get(*last)
    }

    /// Answers a call that came to `carrier`: at once, when its handler is ready at once and `inline` allows it.
    /// Otherwise returns what is left to do, which its caller polls to the end, as a task or within one.
    #[must_use]
    pub fn dispatch(
        &self,
        carrier: &Arc<dyn Carrier>,
        info: &Arc<ConnectionInfo>,
        incoming: Incoming,
        inline: &mut Inline,
    ) -> Option<Supervised> {
        let id = incoming.id;
        let timeout = incoming.head.timeout;
        let deadline = timeout.and_then(|timeout| inline.last.checked_add(timeout)).map(Deadline::from);
        let call = Call::new(CallRef::new(Arc::clone(carrier), id));
        let (route, place) = match self.admit(&incoming.head.path, inline) {
            Ok(admitted) => admitted,
            Err(status) => {
                call.finish(&status);
                return None;
            }
        };
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            call.finish(&Deadline::status());
            return None;
        }
        // By reference, since what a closure owns moves into each that it is called by.
        let mut begins = Some((call, incoming));
        let mut context = Some(CallContext::renew(inline.context.take(), deadline, info));
        let poll_now = !inline.is_spent() && !route.cost.is_slow();
        if poll_now {
            inline.begin_poll(&route.cost);
        }
        let handling = CallContext::scope(&mut context, || {
            // When it panics, the call is dropped, and with it ended, as it unwinds.
            let begun = catch_unwind(AssertUnwindSafe(|| {
                let (call, incoming) = begins.take()?;
                Some(route.handler.handle(route.method, ServerCall::new(call, incoming)))
            }));
            let mut handling = begun.map_err(|panic| report(&*panic)).ok().flatten();
            let polled =
                poll_now && poll_contained(&mut handling, &mut Context::from_waker(Waker::noop())).is_ready();
            if polled { None } else { handling }
        });
        if poll_now {
            inline.end_poll();
        }
        if handling.is_none() {
            inline.context = context;
            return None;
        }
        inline.handed_over |= !poll_now;
        Some(Supervised {
            handling,
            call: CallRef::new(Arc::clone(carrier), id),
            timer: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline.at()))),
            context,
            first_poll: (!poll_now).then(|| Arc::clone(&route.cost)),
            _place: place,
        })
    }

    /// The route of a call that may run, and its place among those that do.
    fn admit(&self, path: &Path, inline: &mut Inline) -> Result<(&Route, Option<Place>), Status> {
        let route = self.route(path.as_bytes(), &mut inline.route);
        let route = route.ok_or_else(|| unknown_method(path))?;
        let Some(max) = self.max_running else { return Ok((route, None)) };
        let one_more = |running| (running < max).then_some(running + 1);
        match self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok((route, Some(Place(Arc::clone(&self.running))))),
            Err(_) => {
                Err(Status::resource_exhausted(format!("the server is answering {max} calls, its limit")))
            }
        }
    }
}

/// `package.Service` of `/package.Service/Method`.
fn service_of(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    path.get(1..slash)
}

/// Polls a handler; one that panicked is done: its call ends with `INTERNAL` as the handler unwinds.
fn poll_contained(handling: &mut Option<Handling>, cx: &mut Context<'_>) -> Poll<()> {
    let poll = || {
        let Some(running) = handling else { return Poll::Ready(()) };
        if running.as_mut().poll(cx).is_ready() {
            // Dropped in here, since what a handler owns may panic too.
            *handling = None;
            return Poll::Ready(());
        }
        Poll::Pending
    };
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(poll) => poll,
        Err(panic) => {
            report(&*panic);
            // What is left of it may panic again; nothing of it is needed.
            let _ = catch_unwind(AssertUnwindSafe(|| *handling = None));
            Poll::Ready(())
        }
    }
}

fn report(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("not a text"), "a handler panicked; its call ends with INTERNAL");
}

/// Drops a handler that has not finished.
fn drop_contained(handling: &mut Option<Handling>) {
    if catch_unwind(AssertUnwindSafe(|| *handling = None)).is_err() {
        tracing::error!("a handler panicked while it was dropped");
    }
}

/// A handler that was not ready at once: ends with its call, its deadline, its panic or its answer.
pub struct Supervised {
    handling: Option<Handling>,
    call: CallRef,
    timer: Option<Pin<Box<Sleep>>>,
    context: Option<CallContext>,
    /// Where to note how long the first poll takes, when that was not yet done.
    first_poll: Option<Arc<Cost>>,
    _place: Option<Place>,
}

impl Future for Supervised {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.call.poll_over(cx).is_ready() {
            drop_contained(&mut self.handling);
            return Poll::Ready(());
        }
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.call.finish(&Deadline::status());
            drop_contained(&mut self.handling);
            return Poll::Ready(());
        }
        let Self { handling, context, first_poll, .. } = &mut *self;
        match first_poll.take() {
            None => CallContext::scope(context, || poll_contained(handling, cx)),
            Some(cost) => {
                let started = Instant::now();
                let polled = CallContext::scope(context, || poll_contained(handling, cx));
                cost.record(started.elapsed());
                polled
            }
        }
    }
}

/// The place of a call among those that may run at once.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the first poll of a method takes: a moving average over about eight calls, in nanoseconds.
#[derive(Debug, Default)]
struct Cost(AtomicU64);

impl Cost {
    fn record(&self, elapsed: Duration) {
        let sample = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let average = self.0.load(Ordering::Relaxed);
        // Lost updates between threads only make the average a little older.
        self.0.store(average - average / 8 + sample / 8, Ordering::Relaxed);
    }

    fn is_slow(&self) -> bool {
        self.0.load(Ordering::Relaxed) > SLOW_NS
    }

    /// Whether it was ever measured, and is small.
    fn is_fast(&self) -> bool {
        (1..FAST_NS).contains(&self.0.load(Ordering::Relaxed))
    }
}

/// What is left of one turn's time for handlers.
#[derive(Debug)]
pub struct Inline {
    last: Instant,
    spent: Duration,
    handed_over: bool,
    /// Polls since the last reading of the clock, all of one method, and where to note what they took.
    untimed: Option<(Arc<Cost>, u32)>,
    /// The last route that was looked up.
    route: usize,
    /// That of the last call that was over at once.
    context: Option<CallContext>,
}

impl Inline {
    /// The budget of a turn that begins now.
    pub fn new() -> Self {
        Self {
            last: Instant::now(),
            spent: Duration::ZERO,
            handed_over: false,
            untimed: None,
            route: 0,
            context: None,
        }
    }

    /// Whether calls became tasks that were not polled yet, and may keep the thread that polls them busy. The driver
    /// should have its task scheduled again, so that another thread wakes up to share the work: tokio runs a task that
    /// was spawned last on the same thread and wakes no other for it, not even to look after the sockets.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over
    }

    fn is_spent(&self) -> bool {
        self.spent >= TURN_BUDGET
    }

    /// Notes that a call of the method with this cost is about to be polled.
    fn begin_poll(&mut self, cost: &Arc<Cost>) {
        if self.untimed.as_ref().is_some_and(|(method, _)| !Arc::ptr_eq(method, cost)) {
            self.read_clock();
        }
        self.untimed.get_or_insert_with(|| (Arc::clone(cost), 0)).1 += 1;
    }

    /// Notes that it was polled.
    fn end_poll(&mut self) {
        let Some((method, polls)) = &self.untimed else { return };
        if *polls == TIMED_TOGETHER || !method.is_fast() {
            self.read_clock();
        }
    }

    /// Charges the time since the last reading of the clock to the method that was polled since.
    fn read_clock(&mut self) {
        let Some((method, polls)) = self.untimed.take() else { return };
        let now = Instant::now();
        let lap = now - self.last;
        self.last = now;
        self.spent += lap;
        method.record(lap / polls);
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.read_clock();
    }
}

impl Default for Inline {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_becomes_slow_after_slow_calls_and_fast_again_after_fast_ones() {
        let cost = Cost::default();
        assert!(!cost.is_slow());
        cost.record(Duration::from_millis(1));
        assert!(cost.is_slow(), "one call of a millisecond is an average of 125 µs");
        for _ in 0..20 {
            cost.record(Duration::from_micros(1));
        }
        assert!(!cost.is_slow());
        cost.record(Duration::from_micros(300));
        assert!(!cost.is_slow(), "one slow call among many does not make a method slow");
    }
}

//! Whole connections on virtual time: hosts on simulated devices, drivers, and who acts on their connections.
//!
//! Owns [`World`]. It treats a driver as its task does, and no better: a driver has a turn only when it was woken, its
//! bell rang, or the time that it asked for has come, so a wake-up that gets lost is a connection that hangs. The TCP
//! connection beside a queue pair is a flag that the other side sees a while later. Never: a thread, a clock, I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use byway_runtime::connection::Connection;
use byway_runtime::keepalive::{Due, Watch};
use byway_runtime::session::{Failure, Incoming, Role};
use byway_runtime::{ConnectionInfo, Endpoint as Peer, Keepalive, Limits};
use fastrand::Rng;
use tokio::time::Instant;

use super::super::{Driver, Joined, Wake};
use crate::bootstrap::sendable;
use crate::host::Host;
use crate::link::RdmaLink;
use crate::options::RdmaOptions;
use crate::protocol::{Endpoint, Settings};
use crate::sim::{Fabric, FabricOptions, NicId, SimAdapter, SimNicOptions};
use crate::wire::Polled;

pub(super) const SIDES: [usize; 2] = [0, 1];

/// How long a connection that is over may take to deliver its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Turns at one instant: far more than work for, so that a driver which never rests is found.
const TURNS_MAX: u32 = 20_000;

/// A waker that leaves a mark.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl std::task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    pub(super) fn raised() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    pub(super) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn lower(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Where the task of a side is.
#[derive(Debug)]
enum Phase {
    Running,
    /// What waits is being sent.
    Closing {
        told: bool,
        until: Duration,
    },
    /// Everything is said, and the peer is to close too.
    Waiting {
        until: Duration,
    },
}

/// One end of a connection, as its task has it.
pub(super) struct Side {
    pub(super) driver: Option<Driver<SimAdapter>>,
    pub(super) connection: Arc<Connection<RdmaLink>>,
    pub(super) host: usize,
    flag: Arc<Flag>,
    waker: Waker,
    phase: Phase,
    /// When it is to have a turn in any case, and whether that is only to look.
    at: Option<Duration>,
    sleeps: bool,
    watch: Watch,
    ask_at: Duration,
    heard: u64,
    /// When the other side sees that this one has closed.
    pub(super) closed_at: Option<Duration>,
    /// Why it ended.
    pub(super) failure: Option<Failure>,
    turns: (Duration, u32),
}

pub(super) struct Link {
    /// The client's and the server's.
    pub(super) sides: [Side; 2],
}

pub(super) struct World {
    pub(super) fabric: Fabric,
    base: Instant,
    pub(super) hosts: Vec<Arc<Host<SimAdapter>>>,
    pub(super) links: Vec<Link>,
    /// Drivers that have no turns any more, and whose queue pairs are still there.
    pub(super) captured: Vec<Driver<SimAdapter>>,
    pub(super) random: Rng,
    /// Whether peers that are silent are asked whether they are alive. Where nothing fails they are not, since a
    /// question would wake a connection that hangs.
    pub(super) keepalive: bool,
    /// Whether nothing may go unnoticed until the next look.
    pub(super) strict: bool,
}

/// Two queue pairs that are connected and agreed on, as after a bootstrap.
pub(super) fn joined(
    hosts: [&Arc<Host<SimAdapter>>; 2],
    limits: [Limits; 2],
) -> Result<[Joined<SimAdapter>; 2], String> {
    let [mut client, mut server] = [hosts[0].prepare(&limits[0])?, hosts[1].prepare(&limits[1])?];
    let ends =
        [&client, &server].map(|prepared| prepared.wire.endpoint().expect("a queue pair has an address"));
    client.wire.connect(&ends[1]).expect("a fresh queue pair");
    server.wire.connect(&ends[0]).expect("a fresh queue pair");
    let capabilities = [client.capabilities, server.capabilities];
    let mut sides = [Some(client), Some(server)].into_iter().enumerate().map(|(side, prepared)| {
        let prepared = prepared.expect("each once");
        let (limits, remote_limits) = (limits[side], limits[1 - side]);
        let options = &hosts[side].options;
        let remote = sendable(&capabilities[1 - side], remote_limits.max_head, options.receive_size);
        let role = if side == 0 { Role::Client } else { Role::Server };
        let local = capabilities[side];
        let settings =
            Settings { role, local, remote, limits, remote_limits, large_from: options.large_from };
        let endpoint = Endpoint::new(settings).ok_or("the offers do not fit")?;
        Ok::<_, String>(Joined {
            wire: prepared.wire,
            share: prepared.share,
            endpoint,
            polled: Polled::default(),
        })
    });
    let both = [sides.next().expect("two")?, sides.next().expect("two")?];
    Ok(both)
}

impl World {
    pub(super) fn new(options: FabricOptions) -> Self {
        let random = Rng::with_seed(options.seed ^ 0x5eed);
        Self {
            fabric: Fabric::new(options),
            base: Instant::now(),
            hosts: Vec::new(),
            links: Vec::new(),
            captured: Vec::new(),
            random,
            keepalive: false,
            strict: false,
        }
    }

    pub(super) fn add_host(&mut self, nic: &SimNicOptions, options: RdmaOptions) -> usize {
        let name = format!("sim{}", self.hosts.len());
        self.hosts.push(Host::new(self.fabric.adapter(nic), name, options));
        self.hosts.len() - 1
    }

    pub(super) fn nic(&self, host: usize) -> NicId {
        self.hosts[host].adapter.id()
    }

    /// Joins two hosts by a new connection; its number.
    pub(super) fn connect(&mut self, hosts: [usize; 2], limits: [Limits; 2]) -> Result<usize, String> {
        let joined = joined(hosts.map(|host| &self.hosts[host]), limits)?;
        let mut number = 0;
        let sides = joined.map(|joined| {
            let side = number;
            number += 1;
            let role = if side == 0 { Role::Client } else { Role::Server };
            let info = Arc::new(ConnectionInfo { link: "rdma", peer: Peer::Local });
            let driver = Driver::new(joined.connection(role, limits[side], limits[1 - side], info));
            self.side(driver, hosts[side])
        });
        self.links.push(Link { sides });
        Ok(self.links.len() - 1)
    }

    fn side(&self, driver: Driver<SimAdapter>, host: usize) -> Side {
        let flag = Flag::raised();
        let waker = Waker::from(Arc::clone(&flag));
        driver.nic().set_waker(Some(waker.clone()));
        let keepalive = Keepalive::default();
        Side {
            connection: Arc::clone(driver.connection()),
            driver: Some(driver),
            host,
            flag,
            waker,
            phase: Phase::Running,
            at: None,
            sleeps: false,
            watch: Watch::new(keepalive),
            ask_at: self.fabric.now() + keepalive.interval,
            heard: 0,
            closed_at: None,
            failure: None,
            turns: (Duration::ZERO, 0),
        }
    }

    /// Time since the fabric was made, as drivers and deadlines see it.
    pub(super) fn now(&self) -> Instant {
        self.base + self.fabric.now()
    }

    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.base + at
    }

    fn elapsed(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.base)
    }

    /// When a side that runs looks whether its peer is alive.
    fn asks(&self, side: &Side) -> Option<Duration> {
        (self.keepalive && matches!(side.phase, Phase::Running)).then_some(side.ask_at)
    }

    /// Sides that have something to do now.
    pub(super) fn ready(&self) -> Vec<(usize, usize)> {
        let now = self.fabric.now();
        let mut ready = Vec::new();
        for (link, Link { sides }) in self.links.iter().enumerate() {
            for side in SIDES {
                let (this, other) = (&sides[side], &sides[1 - side]);
                let woken = this.flag.is_raised() || this.at.is_some_and(|at| at <= now);
                let closed = other.closed_at.is_some_and(|at| at <= now)
                    && !matches!(this.phase, Phase::Closing { .. });
                if this.driver.is_some() && (woken || closed || self.asks(this).is_some_and(|at| at <= now)) {
                    ready.push((link, side));
                }
            }
        }
        ready
    }

    /// When a side is to have a turn whatever else happens.
    pub(super) fn next_at(&self) -> Option<Duration> {
        let sides =
            self.links.iter().flat_map(|link| SIDES.map(|side| (&link.sides[side], &link.sides[1 - side])));
        let living = sides.filter(|(side, _)| side.driver.is_some());
        let times = living.flat_map(|(side, other)| {
            let asks = self.asks(side);
            let closed = other.closed_at.filter(|_| !matches!(side.phase, Phase::Closing { .. }));
            [side.at, asks, closed]
        });
        times.flatten().min()
    }

    /// One turn of one side; the calls that came.
    pub(super) fn poll(&mut self, link: usize, side: usize) -> Vec<Incoming> {
        let (now, instant) = (self.fabric.now(), self.now());
        let other = &self.links[link].sides[1 - side];
        let peer_closed = other.closed_at.is_some_and(|at| at <= now);
        let this = &mut self.links[link].sides[side];
        let looks = !this.flag.lower() && this.at.is_some_and(|at| at <= now) && this.sleeps && self.strict;
        this.count_turn(now);
        this.at = None;
        let Some(driver) = &mut this.driver else { return Vec::new() };
        match this.phase {
            Phase::Running => {
                let (heard, closing) = (driver.heard(), driver.wire.is_closing());
                let turned = driver.turn(instant, &this.waker);
                let calls: Vec<_> = driver.take_calls().collect();
                let missed = driver.heard() > heard || (closing && !driver.wire.is_closing());
                assert!(!looks || !missed, "a completion that rang no bell");
                let turned = match turned {
                    Ok(_) if peer_closed => Err(Failure::new("the peer closed it")),
                    Ok(wake) => self.rest(link, side, wake).and_then(|()| self.keep_alive(link, side)),
                    Err(failure) => Err(failure),
                };
                if let Err(failure) = turned {
                    self.begin_closing(link, side, failure);
                }
                return calls;
            }
            Phase::Closing { until, told } => {
                let waits = driver.has_to_send() && now < until;
                if let Some(Ok(wake)) = waits.then(|| driver.turn(instant, &this.waker)) {
                    driver.take_calls().for_each(drop);
                    if self.rest(link, side, wake).is_ok() {
                        let this = &mut self.links[link].sides[side];
                        this.at = Some(this.at.map_or(until, |at| at.min(until)));
                        return Vec::new();
                    }
                }
                let at = now + Duration::from_nanos(self.random.u64(0..200_000));
                let this = &mut self.links[link].sides[side];
                this.closed_at = Some(at);
                if let Some(driver) = &mut this.driver {
                    driver.stop();
                }
                if told && now < until {
                    (this.phase, this.at) = (Phase::Waiting { until }, Some(until));
                } else {
                    this.driver = None;
                }
            }
            Phase::Waiting { until } => {
                if peer_closed || now >= until {
                    this.driver = None;
                } else {
                    this.at = Some(until);
                }
            }
        }
        Vec::new()
    }

    fn rest(&mut self, link: usize, side: usize, wake: Wake) -> Result<(), Failure> {
        let now = self.fabric.now();
        let at = match wake {
            Wake::Now => Some(now),
            Wake::Spin => Some(now + Duration::from_nanos(500)),
            Wake::Bell(at) => at.map(|at| self.elapsed(at)),
        };
        let this = &mut self.links[link].sides[side];
        let Some(driver) = &mut this.driver else { return Ok(()) };
        (this.at, this.sleeps) = (at, matches!(wake, Wake::Bell(_)));
        if matches!(wake, Wake::Bell(_)) && driver.nic().has_news() {
            this.at = Some(now);
            // Not a look: the bell rang.
            this.waker.wake_by_ref();
            return driver.rang();
        }
        Ok(())
    }

    /// As its task does.
    fn keep_alive(&mut self, link: usize, side: usize) -> Result<(), Failure> {
        let now = self.fabric.now();
        let this = &mut self.links[link].sides[side];
        let Some(driver) = this.driver.as_mut().filter(|_| self.keepalive && this.ask_at <= now) else {
            return Ok(());
        };
        let many_handlers = driver.with(|turn| turn.has_many_handlers());
        if many_handlers || driver.heard() != this.heard {
            this.heard = driver.heard();
            this.watch.note_heard();
        }
        let delivered = driver.with(|turn| turn.link().endpoint.delivered());
        match this.watch.fired(delivered) {
            Due::Wait(next) => {
                this.ask_at = now + next;
            }
            Due::Ping(next) => {
                let question = driver.with(|turn| {
                    turn.ping();
                    turn.link().endpoint.position()
                });
                this.watch.note_asked(question, delivered);
                (this.ask_at, this.at) = (now + next, Some(now));
            }
            Due::Dead => return Err(Failure::new("the peer is silent and does not answer a ping")),
        }
        Ok(())
    }

    pub(super) fn begin_closing(&mut self, link: usize, side: usize, failure: Failure) {
        let now = self.fabric.now();
        let this = &mut self.links[link].sides[side];
        let Some(driver) = &mut this.driver else { return };
        driver.end(&failure);
        this.phase = Phase::Closing { told: failure.is_told(), until: now + LAST_WORDS };
        this.at = Some(now);
        this.failure = Some(failure);
    }

    /// The runtime of one side stops: its driver is dropped in the middle of whatever it does.
    pub(super) fn drop_driver(&mut self, link: usize, side: usize) {
        let at = self.fabric.now() + Duration::from_nanos(self.random.u64(0..200_000));
        let this = &mut self.links[link].sides[side];
        this.driver = None;
        this.closed_at.get_or_insert(at);
    }
}

impl Side {
    /// What keeps it, for whoever looks for the reason.
    pub(super) fn describe(&self) -> String {
        let Some(driver) = &self.driver else { return "gone".into() };
        let (endpoint, open) = self.connection.turn(&mut Vec::new(), |turn| {
            let endpoint = &turn.link().endpoint;
            let frames = endpoint.position() - endpoint.delivered();
            (
                format!("{:?} under way {:?} frames {frames}", endpoint.credits(), endpoint.under_way()),
                turn.is_idle(),
            )
        });
        format!(
            "host {}, idle {open}, {endpoint}, {}, {:?}, {:?}, {:?}",
            self.host,
            driver.wire.describe(),
            driver.bodies,
            driver.landings,
            driver.armed
        )
    }

    fn count_turn(&mut self, now: Duration) {
        let (at, turns) = &mut self.turns;
        if *at != now {
            (*at, *turns) = (now, 0);
        }
        *turns += 1;
        assert!(*turns < TURNS_MAX, "a driver that never rests");
    }
}

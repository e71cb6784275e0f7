//! One random schedule: hosts, connections, calls and faults from a seed, played to the end.
//!
//! Owns [`Schedule`]. Everything comes from the seed, so one that fails can be run again alone. The order in which
//! drivers and actors go on at one instant is chance too, and time may pass between any two of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use byway_runtime::connection::Caller;
use byway_runtime::session::Failure;
use byway_runtime::{Carrier, Limits};
use fastrand::Rng;
use tonic::Code;

use super::calls::{Client, Ended, Scene, Script, Server, Way};
use super::world::{SIDES, World};
use crate::link::RdmaLink;
use crate::nic::QueuePairId;
use crate::options::RdmaOptions;
use crate::protocol::wire::least_receive;
use crate::sim::{Delays, FabricOptions, Fault, FaultPlan, SimNicOptions};

const MAX_HEAD: u16 = 256;

/// For how long drivers may still look for completions of their own when everything is over.
const LOOKS: Duration = Duration::from_millis(150);

/// What a schedule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing fails, and every call ends as its two sides want it.
    None,
    /// Packets are lost, now and then: slower, and all the same.
    Loss,
    /// Something fails, at a random moment.
    Fault,
    /// A driver is dropped in the middle.
    Drop,
    /// The client of the first connection does what no driver would; calls of the others go on.
    Hostile,
}

/// What a hostile peer does, and when it may.
pub(super) struct Strike {
    pub(super) when: fn(&World) -> bool,
    pub(super) act: Box<dyn FnOnce(&mut World)>,
}

/// What came out of a schedule, to see that schedules do what they are for.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) completed: usize,
    pub(super) without_memory: usize,
    pub(super) given_up: usize,
    pub(super) late: usize,
    pub(super) unavailable: usize,
    pub(super) never_sent: usize,
    pub(super) bytes: u64,
    pub(super) steps: u64,
}

pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) trouble: Trouble,
    pub(super) world: World,
    callers: Vec<Arc<Caller<RdmaLink>>>,
    scripts: Vec<Script>,
    clients: Vec<Client>,
    servers: Vec<(usize, Server)>,
    /// Calls that a server saw, and those that it answered whole.
    seen: HashSet<usize>,
    answered: HashSet<usize>,
    ends: Vec<Option<Ended>>,
    /// When a driver is dropped.
    drop_at: Option<(Duration, usize, usize)>,
    landing_is_short: bool,
    /// From when on nothing more is to be expected.
    rests_at: Option<Duration>,
    /// Whether connections are being closed.
    parting: bool,
    /// Why each connection failed before it was closed, if it did.
    pub(super) failures: Vec<Option<Failure>>,
    pub(super) strike: Option<Strike>,
}

fn nic_options(random: &mut Rng) -> SimNicOptions {
    SimNicOptions {
        inline_max: random.choice([0, 16, 64, 256]).expect("some"),
        failed_sends_wake: random.bool(),
        windows: random.u8(0..8) > 0,
        ..SimNicOptions::default()
    }
}

fn options(random: &mut Rng) -> RdmaOptions {
    let least = least_receive(MAX_HEAD) as u32;
    let receives_min = random.u16(3..6);
    let default = RdmaOptions::default();
    let mut queue_pair = default.queue_pair;
    queue_pair.send_depth = random.choice([4, 16, 24, 32, 33, 48, 128]).expect("some");
    RdmaOptions {
        queue_pair,
        spin: random.choice([Duration::ZERO, Duration::ZERO, Duration::from_micros(3)]).expect("some"),
        large_from: random.u32(200..3000),
        receive_size: least + random.u32(0..2000),
        receives_min,
        receives_max: receives_min + random.u16(0..12),
        shared_receives: random.u32(32..80),
        staging: random.choice([1, 40 << 10, 100 << 10, 300 << 10, 1 << 20, 3 << 20]).expect("some"),
        landing: random.choice([64 << 10, 512 << 10, 64 << 20]).expect("some"),
        leases: random.choice([0, 128 << 10, 64 << 20]).expect("some"),
        keep: random.choice([0, 64 << 10, 8 << 20]).expect("some"),
        transfers: random.u16(1..8),
        windows: random.u8(0..6) > 0,
        ..default
    }
}

fn limits(random: &mut Rng, role: usize) -> Limits {
    Limits {
        max_head: MAX_HEAD,
        max_calls: if role == 0 { 0 } else { random.u16(1..8) },
        window: random.choice([500, 8 << 10, 256 << 10]).expect("some"),
        ..Limits::default()
    }
}

/// A length near something where the way of a message changes, mostly.
fn len(random: &mut Rng, options: &RdmaOptions) -> u32 {
    let near = |random: &mut Rng, edge: u32| edge.saturating_add(random.u32(0..3)).saturating_sub(1);
    match random.u8(0..20) {
        0 => 0,
        1 => 1,
        2..6 => near(random, options.large_from),
        6..8 => near(random, options.receive_size - 100),
        8 => near(random, 16 << 10),
        9 => near(random, 32 << 10),
        10..13 => random.u32(0..40_000),
        13 if random.u8(0..4) == 0 => random.u32(0..400_000),
        _ => random.u32(0..options.large_from),
    }
}

fn way(random: &mut Rng, server: bool) -> Way {
    let span = |random: &mut Rng, micros: u64| Duration::from_nanos(random.u64(0..micros * 1000));
    match random.u8(0..16) {
        0..3 => Way::Slow(span(random, 300)),
        3 | 4 => Way::GivesUp { after: span(random, 400), drops: random.bool() },
        5 if server => Way::Status,
        6 if server => Way::Deaf,
        7 => Way::Slow(span(random, 5000)),
        _ => Way::Whole,
    }
}

impl Schedule {
    pub(super) fn new(seed: u64, trouble: Trouble) -> Self {
        let mut random = Rng::with_seed(seed);
        let delays = Delays {
            jitter: Duration::from_nanos(random.u64(0..20_000)),
            device: Duration::from_nanos(random.u64(0..4000)),
            arming: Duration::from_nanos(random.u64(0..3000)),
            ..Delays::default()
        };
        let loss_ppm = if trouble == Trouble::Loss { random.u32(100..20_000) } else { 0 };
        let mut world = World::new(FabricOptions { seed, delays, loss_ppm, ..FabricOptions::default() });
        world.keepalive = trouble != Trouble::None;
        world.strict = trouble == Trouble::None;
        let count = random.usize(2..4);
        for _ in 0..count {
            let (nic, options) = (nic_options(&mut random), options(&mut random));
            world.add_host(&nic, options);
        }
        let wanted = random.usize(1..5);
        for _ in 0..wanted {
            let hosts = [random.usize(0..count), random.usize(0..count)];
            let limits = [limits(&mut random, 0), limits(&mut random, 1)];
            // A host may have no receives left; the first connection always finds some.
            let _ = world.connect(hosts, limits);
        }
        assert!(!world.links.is_empty(), "the first connection finds receives");
        let mut this = Self::with(world, seed, trouble);
        this.write_scripts(&mut random);
        this.plan(&mut random);
        this
    }

    /// A schedule without calls and faults so far.
    pub(super) fn with(world: World, seed: u64, trouble: Trouble) -> Self {
        let callers =
            world.links.iter().map(|link| Arc::new(Caller(Arc::clone(&link.sides[0].connection)))).collect();
        let landing_is_short = world.hosts.iter().any(|host| host.options.landing < 32 << 20);
        Self {
            seed,
            trouble,
            world,
            callers,
            scripts: Vec::new(),
            clients: Vec::new(),
            servers: Vec::new(),
            seen: HashSet::new(),
            answered: HashSet::new(),
            ends: Vec::new(),
            drop_at: None,
            landing_is_short,
            rests_at: None,
            parting: false,
            failures: Vec::new(),
            strike: None,
        }
    }

    /// Adds a call.
    pub(super) fn add(&mut self, script: Script) {
        self.clients.push(Client::new(self.scripts.len(), script.at));
        self.scripts.push(script);
        self.ends.push(None);
    }

    fn write_scripts(&mut self, random: &mut Rng) {
        let count = random.usize(1..30);
        for _ in 0..count {
            let link = random.usize(0..self.world.links.len());
            let hosts = [0, 1].map(|side| self.world.links[link].sides[side].host);
            let [client, server] = hosts.map(|host| self.world.hosts[host].options.clone());
            let lens = |random: &mut Rng, options: &RdmaOptions| {
                let count = if random.u8(0..3) > 0 { 1 } else { random.usize(0..8) };
                (0..count).map(|_| len(random, options)).collect::<Vec<_>>()
            };
            let (requests, replies) = (lens(random, &client), lens(random, &server));
            let deadline = (random.u8(0..10) == 0).then(|| Duration::from_nanos(random.u64(0..800_000)));
            self.add(Script {
                link,
                at: Duration::from_nanos(random.u64(0..600_000)),
                method: random.usize(0..4),
                requests,
                replies,
                joined_end: random.bool(),
                both_at_once: random.bool(),
                keeps: random.u8(0..3) == 0,
                leases: random.u8(0..3) == 0,
                deadline,
                garbled: false,
                client: way(random, false),
                server: way(random, true),
            });
        }
    }

    fn plan(&mut self, random: &mut Rng) {
        let at = Duration::from_nanos(random.u64(0..900_000));
        let link = random.usize(0..self.world.links.len());
        let side = random.usize(0..2);
        if self.trouble == Trouble::Drop {
            self.drop_at = Some((at, link, side));
        }
        if self.trouble != Trouble::Fault {
            return;
        }
        let nics: Vec<_> = (0..self.world.hosts.len()).map(|host| self.world.nic(host)).collect();
        let nic = *random.choice(&nics).expect("some");
        let other = *random.choice(&nics).expect("some");
        let queue_pair = QueuePairId(random.u32(0..4));
        let back = at + Duration::from_nanos(random.u64(0..2_000_000_000));
        let plan = FaultPlan::new();
        let plan = match random.u8(0..11) {
            0 | 1 => plan.at(at, Fault::FailQueuePair(nic, queue_pair)),
            2 => plan.at(at, Fault::Kill(nic)),
            3 => plan.at(at, Fault::FailDevice(nic)),
            4 => plan.at(at, Fault::Freeze(nic)),
            5 => plan.at(at, Fault::Freeze(nic)).at(back, Fault::Thaw(nic)),
            6 => plan.at(at, Fault::WithholdFlushes(nic)).at(at, Fault::FailQueuePair(nic, queue_pair)),
            7 => plan.at(at, Fault::ShrinkCompletions(nic, random.u32(1..12))),
            8 => plan.at(at, Fault::Partition(nic, other)).at(back, Fault::Heal(nic, other)),
            9 => plan.at(at, Fault::Block(nic, other)),
            _ => FaultPlan::random(self.seed, &nics, 4, (Duration::ZERO, at), Duration::from_secs(1)),
        };
        self.world.fabric.follow(&plan);
    }

    /// Runs it.
    pub(super) fn run(&mut self) -> Counts {
        let mut counts = Counts::default();
        while self.step() {
            counts.steps += 1;
            self.check();
            assert!(
                counts.steps < 200_000,
                "it never ends, at {:?}: {}",
                self.world.fabric.now(),
                self.left()
            );
        }
        self.check_ends(&mut counts);
        self.check_rest();
        self.failures = self.world.links.iter().map(|link| link.sides[1].failure.clone()).collect();
        self.part();
        counts
    }

    fn is_over(&self) -> bool {
        // The handlers of a hostile peer that says nothing wait until its connection is closed.
        let waits = |link: usize| self.trouble == Trouble::Hostile && link == 0 && !self.parting;
        self.clients.is_empty() && self.servers.iter().all(|(link, _)| waits(*link))
    }

    /// Lets something happen; `false` when nothing is left to do.
    fn step(&mut self) -> bool {
        let now = self.world.fabric.now();
        if let Some((_, link, side)) = self.drop_at.take_if(|(at, ..)| *at <= now) {
            self.world.drop_driver(link, side);
        }
        if let Some(strike) = self.strike.take_if(|strike| (strike.when)(&self.world)) {
            (strike.act)(&mut self.world);
        }
        let drivers = self.world.ready();
        let is_due = |at: Option<Duration>, raised: bool| raised || at.is_some_and(|at| at <= now);
        let clients: Vec<_> = (0..self.clients.len())
            .filter(|i| is_due(self.clients[*i].at, self.clients[*i].flag.is_raised()))
            .collect();
        let servers: Vec<_> = (0..self.servers.len())
            .filter(|i| is_due(self.servers[*i].1.at, self.servers[*i].1.flag.is_raised()))
            .collect();
        let count = drivers.len() + clients.len() + servers.len();
        if count == 0 {
            return self.pass();
        }
        let choice = self.world.random.usize(0..count);
        if let Some(&(link, side)) = drivers.get(choice) {
            self.drive(link, side);
        } else if let Some(&client) = clients.get(choice - drivers.len()) {
            self.poll_client(client);
        } else {
            self.poll_server(servers[choice - drivers.len() - clients.len()]);
        }
        if self.world.random.u8(0..4) == 0 {
            self.world.fabric.advance(Duration::from_nanos(self.world.random.u64(0..2000)));
        }
        true
    }

    /// Lets time pass until something is due; `false` when nothing ever will be.
    fn pass(&mut self) -> bool {
        let fabric = self.world.fabric.next_at();
        let actors = self
            .clients
            .iter()
            .map(|client| client.at)
            .chain(self.servers.iter().map(|(_, server)| server.at));
        let dropped = self.drop_at.map(|(at, ..)| at).filter(|_| !self.is_over());
        let busy = fabric.into_iter().chain(actors.flatten()).chain(dropped).min();
        let drivers = self.world.next_at();
        let now = self.world.fabric.now();
        let is_over = self.is_over() && !self.parting;
        // Last words take up to a second.
        let looks = if self.trouble == Trouble::Hostile { Duration::from_secs(2) } else { LOOKS };
        let rests_at = if is_over { *self.rests_at.get_or_insert(now + looks) } else { Duration::MAX };
        if busy.is_none() && (now > rests_at || drivers.is_none()) {
            return false;
        }
        let next = busy.into_iter().chain(drivers).min();
        let Some(next) = next else { return false };
        let limit = Duration::from_secs(if self.world.keepalive { 300 } else { 60 });
        assert!(next < limit, "still not at an end: {}", self.left());
        self.world.fabric.advance_to(next);
        true
    }

    fn drive(&mut self, link: usize, side: usize) {
        let calls = self.world.poll(link, side);
        let now = self.world.fabric.now();
        for incoming in calls {
            let carrier = Arc::clone(&self.world.links[link].sides[side].connection) as Arc<dyn Carrier>;
            let server = Server::new(incoming, carrier, now);
            assert!(self.seen.insert(server.number), "call {}: it came twice", server.number);
            self.servers.push((link, server));
        }
    }

    fn poll_client(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let script = &self.scripts[client.number];
        let host = self.world.links[script.link].sides[0].host;
        let now = self.world.fabric.now();
        let base = self.world.instant(Duration::ZERO);
        let pool = Arc::clone(&self.world.hosts[host].pool);
        let mut scene = Scene { script, now, base, pool: &pool };
        if client.poll(&self.callers[script.link], &mut scene) {
            let client = self.clients.swap_remove(index);
            self.ends[client.number] = client.ended;
        }
    }

    fn poll_server(&mut self, index: usize) {
        let (link, server) = &mut self.servers[index];
        let host = self.world.links[*link].sides[1].host;
        let now = self.world.fabric.now();
        let base = self.world.instant(Duration::ZERO);
        let pool = Arc::clone(&self.world.hosts[host].pool);
        let script = &self.scripts[server.number];
        let mut scene = Scene { script, now, base, pool: &pool };
        if server.poll(&mut scene) {
            let (_, server) = self.servers.swap_remove(index);
            if server.answered {
                self.answered.insert(server.number);
            }
        }
    }

    /// What there is, for whoever looks for the reason.
    pub(super) fn left(&self) -> String {
        let clients: Vec<_> = self.clients.iter().map(|client| client.number).collect();
        let servers: Vec<_> = self.servers.iter().map(|(_, server)| server.number).collect();
        let what = |number: &usize| format!("{number}: {:?}", self.scripts[*number]);
        let scripts: Vec<_> = clients.iter().chain(&servers).map(what).collect();
        let drivers: Vec<_> =
            self.world.links.iter().flat_map(|link| &link.sides).map(super::world::Side::describe).collect();
        let pools: Vec<_> =
            self.world.hosts.iter().map(|host| (host.pool.used(), host.pool.staging_accounts())).collect();
        format!(
            "calls {clients:?} and handlers {servers:?} are left\n{}\n{}\n{pools:?}",
            scripts.join("\n"),
            drivers.join("\n")
        )
    }

    /// How every call ended.
    fn check_ends(&self, counts: &mut Counts) {
        assert!(self.is_over(), "nothing happens any more: {}", self.left());
        for (number, (script, end)) in self.scripts.iter().zip(&self.ends).enumerate() {
            let end = end.as_ref().expect("every call ends");
            let may_fail = match self.trouble {
                Trouble::None | Trouble::Loss => false,
                Trouble::Fault | Trouble::Drop => true,
                Trouble::Hostile => script.link == 0,
            };
            let all = script.replies.len();
            let plain = |way| matches!(way, Way::Whole | Way::Slow(_));
            let ours = matches!(script.client, Way::GivesUp { .. });
            let theirs = !plain(script.server);
            let fine = match end {
                Ended::Dropped => ours,
                Ended::NotSent => {
                    counts.never_sent += 1;
                    may_fail && !self.seen.contains(&number)
                }
                Ended::With(Ok(()), replies) => {
                    counts.completed += 1;
                    *replies == all && self.answered.contains(&number)
                }
                Ended::With(Err(code), replies) => {
                    let ended = *replies <= all;
                    ended
                        && match code {
                            Code::ResourceExhausted => self.landing_is_short,
                            Code::DeadlineExceeded => script.deadline.is_some(),
                            Code::Cancelled => ours,
                            Code::Aborted | Code::Internal => theirs,
                            Code::Unavailable => may_fail,
                            _ => false,
                        }
                }
            };
            assert!(fine, "call {number} ended with {end:?}: {script:?}");
            counts.count(end);
            counts.bytes +=
                script.requests.iter().chain(&script.replies).map(|len| u64::from(*len)).sum::<u64>();
        }
    }

    /// Ends what is left, in random order, and looks that nothing stays behind.
    fn part(&mut self) {
        let mut sides: Vec<_> =
            (0..self.world.links.len()).flat_map(|link| SIDES.map(|side| (link, side))).collect();
        self.world.random.shuffle(&mut sides);
        self.parting = true;
        self.world.captured.clear();
        let orderly = self.world.random.bool();
        for (link, side) in sides {
            if orderly {
                self.world.begin_closing(link, side, Failure::told("enough"));
            } else {
                self.world.drop_driver(link, side);
            }
        }
        while self.step() {}
        assert!(self.is_over(), "handlers outlive their connection: {}", self.left());
        self.check_left();
    }
}

impl Counts {
    fn count(&mut self, end: &Ended) {
        match end {
            Ended::Dropped | Ended::With(Err(Code::Cancelled), _) => self.given_up += 1,
            Ended::With(Err(Code::ResourceExhausted), _) => self.without_memory += 1,
            Ended::With(Err(Code::DeadlineExceeded), _) => self.late += 1,
            Ended::With(Err(Code::Unavailable), _) => self.unavailable += 1,
            _ => {}
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.without_memory += other.without_memory;
        self.given_up += other.given_up;
        self.late += other.late;
        self.unavailable += other.unavailable;
        self.never_sent += other.never_sent;
        self.bytes += other.bytes;
        self.steps += other.steps;
    }
}

//! One failure after the other, and what must hold in each round.
//!
//! Owns the failures, the order of events in a round, and the verdict. In a round: load over RDMA, the failure, load until
//! all kinds of calls succeed over RDMA again, load, silence, vitals. Invariant: whatever did not hold is said in the end and
//! fails the run. Never: takes time as a fault of the calls that plain timers of the same runtime were late by, too.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use byway::{Channel, Code, Path, Transport};

use crate::keeper::order;
use crate::load::Load;
use crate::tally::{DEADLINE, Kind, Moment, Tally};
use crate::vitals::Vitals;
use crate::{Failure, KEEPALIVE, rdma};

/// How long before a failure and after it, back on RDMA, calls are made.
const LOADED: Duration = Duration::from_secs(3);

/// How long nothing happens before memory is measured: what connections keep for the next messages goes back after two
/// intervals of their keep-alive, and dead connections are given up.
const SILENCE: Duration = Duration::from_millis(4500);

/// Between an order and its execution: the acknowledgement must get out.
pub(crate) const LEAD: Duration = Duration::from_millis(200);

/// How long the channel may take to be on RDMA again after the failure is over: the attempts at 5 s and, when that falls
/// into the failure, at 15 s, and what attempts take.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// What a call may be late beyond what timers are: ends of many calls are handed over one after the other.
const TOLERANCE: Duration = Duration::from_millis(250);

/// What happens to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its process is killed and replaced.
    Kill,
    /// Its process stands still for a while.
    Freeze,
    /// Its process stands still, and is then killed and replaced.
    Bury,
    /// Its interface is down.
    Down,
    /// Nothing that is sent to it arrives.
    Lose,
    /// Nothing that is sent to it by RDMA arrives.
    Block,
    /// Nothing.
    Spare,
}

impl Fault {
    /// All that do harm.
    pub(crate) const ALL: [Self; 6] =
        [Self::Kill, Self::Freeze, Self::Bury, Self::Down, Self::Lose, Self::Block];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Bury => "bury",
            Self::Down => "down",
            Self::Lose => "lose",
            Self::Block => "block",
            Self::Spare => "spare",
        }
    }

    /// How long it lasts: longer than it takes to be noticed.
    pub(crate) const fn lasts(self) -> Duration {
        match self {
            Self::Kill | Self::Spare => Duration::ZERO,
            _ => Duration::from_secs(8),
        }
    }

    /// Within which time calls in flight have ended.
    fn noticed(self) -> Duration {
        match self {
            // The system closes the TCP connection.
            Self::Kill => Duration::from_secs(1),
            // Silence may begin just after a sign of life was looked for, and a question that leaves late has time.
            _ => KEEPALIVE.interval * 2 + KEEPALIVE.timeout * 2,
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().chain([Self::Spare]).find(|fault| fault.name() == text);
        found.ok_or_else(|| format!("there is no failure {text}"))
    }
}

/// What is to be done.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) warm_up: usize,
    /// In turn.
    pub(crate) faults: Vec<Fault>,
    /// Whether large messages are written into windows.
    pub(crate) windows: bool,
}

/// Runs all rounds; whether everything held.
pub(crate) async fn run(address: SocketAddr, plan: &Plan) -> Result<bool, Failure> {
    let mut patience = 0;
    while let Err(error) = order(address, "vitals").await {
        patience += 1;
        if patience == 50 {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let builder = Channel::builder(address.to_string()).transport(Transport::Auto).rdma(rdma(plan.windows));
    let channel = builder.keepalive(KEEPALIVE).timeout(DEADLINE).connect_lazy()?;
    let load = Arc::new(Load::start(&channel));
    let began = Instant::now();
    tokio::spawn(report_path(channel.clone(), began));
    let mut runner = Runner {
        address,
        channel,
        load,
        began,
        strict: !plan.windows,
        wrong: Vec::new(),
        vitals: Vec::new(),
        calls: 0,
    };
    for number in 0..plan.warm_up + plan.rounds {
        let fault = plan.faults[number % plan.faults.len()];
        let name = match number.checked_sub(plan.warm_up) {
            None => format!("warm-up {}: {}", number + 1, fault.name()),
            Some(judged) => format!("round {}: {}", judged + 1, fault.name()),
        };
        runner.round(&name, fault).await?;
    }
    runner.judge_vitals(plan.warm_up);
    let Runner { wrong, calls, .. } = runner;
    println!("endure: {} rounds after {} to warm up, {calls} calls", plan.rounds, plan.warm_up);
    wrong.iter().for_each(|text| println!("WRONG {text}"));
    println!("endure: {}", if wrong.is_empty() { "everything held" } else { "FAILED" });
    Ok(wrong.is_empty())
}

struct Runner {
    address: SocketAddr,
    channel: Channel,
    load: Arc<Load>,
    began: Instant,
    /// Whether a call that fails without an ordered failure is wrong, and not only counted.
    strict: bool,
    wrong: Vec<String>,
    /// After each round, of the client and of the server.
    vitals: Vec<(Vitals, Vitals)>,
    calls: u64,
}

impl Runner {
    fn say(&self, text: &str) {
        println!("{:7.1} {text}", self.began.elapsed().as_secs_f64());
    }

    async fn round(&mut self, name: &str, fault: Fault) -> Result<(), Failure> {
        self.say(&format!("== {name}"));
        *self.load.tally() = Tally::default();
        let calm = (!self.vitals.is_empty()).then(Instant::now);
        self.load.mark(Moment { calm, failure: None });
        self.load.resume();
        let ready = self.back_within(BACK_WITHIN).await;
        self.load.mark(Moment { calm: Some(Instant::now()), failure: None });
        tokio::time::sleep(LOADED).await;
        let before = self.succeeded();
        if ready.is_none() || before.contains(&0) {
            self.wrong.push(format!("{name}: not at work over RDMA before the failure"));
        }
        // From now on calls may fail.
        self.load.mark(Moment::default());
        let answer = order(self.address, fault.name()).await?;
        if answer != "ok" {
            return Err(format!("the keeper answers: {answer}").into());
        }
        tokio::time::sleep(LEAD).await;
        let failure = Instant::now();
        self.load.mark(Moment { failure: Some(failure), calm: None });
        self.say(&format!("{} begins", fault.name()));
        tokio::time::sleep(fault.lasts()).await;
        if fault == Fault::Block {
            self.check_tcp(name, &before);
        }
        self.say(&format!("{} is over", fault.name()));
        match self.back_within(BACK_WITHIN).await {
            Some(took) => {
                self.say(&format!("all calls succeed over RDMA again, {took:.1?} after the failure"))
            }
            None => self.wrong.push(format!(
                "{name}: not back on RDMA within {BACK_WITHIN:?}, but on {}",
                self.channel.path()
            )),
        }
        self.load.mark(Moment { failure: Some(failure), calm: Some(Instant::now()) });
        tokio::time::sleep(LOADED).await;
        let left = self.load.pause().await;
        if left > 0 {
            self.wrong.push(format!("{name}: {left} calls did not end"));
        }
        let tally = std::mem::take(&mut *self.load.tally());
        self.judge(name, fault, &tally);
        tokio::time::sleep(SILENCE).await;
        self.measure(name).await
    }

    fn succeeded(&self) -> [u64; 4] {
        Kind::ALL.map(|kind| self.load.tally().succeeded(kind))
    }

    /// Waits until the channel is on RDMA and calls of each kind have succeeded since it was; how long that took.
    async fn back_within(&self, limit: Duration) -> Option<Duration> {
        let began = Instant::now();
        let mut before = None;
        while began.elapsed() < limit {
            let now = self.succeeded();
            match (before, self.channel.path()) {
                (None, Path::Rdma { .. }) => before = Some(now),
                (Some(before), Path::Rdma { .. })
                    if now.iter().zip(before).all(|(now, before)| *now > before) =>
                {
                    return Some(began.elapsed());
                }
                (_, Path::Rdma { .. }) => {}
                _ => before = None,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }

    /// While RDMA alone is blocked, calls go on over TCP.
    fn check_tcp(&mut self, name: &str, before: &[u64; 4]) {
        let path = self.channel.path();
        if !matches!(path, Path::Tcp { .. }) {
            self.wrong.push(format!("{name}: without RDMA the channel is on {path}"));
        }
        if self.succeeded().iter().zip(before).any(|(now, before)| now <= before) {
            self.wrong.push(format!("{name}: without RDMA calls of some kind do not succeed"));
        }
    }

    fn judge(&mut self, name: &str, fault: Fault, tally: &Tally) {
        print!("{tally}");
        self.calls += tally.count();
        self.wrong.extend(tally.wrong.iter().map(|text| format!("{name}: {text}")));
        if self.strict && tally.unordered > 0 {
            self.wrong.push(format!("{name}: {} calls failed without an ordered failure", tally.unordered));
        }
        let late = TOLERANCE + tally.timer_late;
        if tally.overdue > late {
            self.wrong.push(format!("{name}: a call outlived its deadline by {:.0?}", tally.overdue));
        }
        let expired = tally.in_flight(Code::DeadlineExceeded);
        if expired > 0 {
            self.wrong.push(format!("{name}: {expired} calls in flight ended by their deadline"));
        }
        if tally.failed_after > fault.noticed() + late {
            self.wrong.push(format!(
                "{name}: a call in flight ended only {:.1?} after the failure",
                tally.failed_after
            ));
        }
    }

    async fn measure(&mut self, name: &str) -> Result<(), Failure> {
        let own = Vitals::read(std::process::id())?;
        let answer = order(self.address, "vitals").await?;
        let server = Vitals::decode(&answer).map_err(|_| format!("{name}: {answer}"))?;
        for (who, vitals) in [("client", own), ("server", server)] {
            let Vitals { pid, rss_kib, descriptors, queue_pairs, regions, rnr, retransmits } = vitals;
            println!(
                "  {who} {pid}: rss {rss_kib} KiB, {descriptors} descriptors, {queue_pairs} queue pairs, \
                 {regions} regions, rnr {rnr}, retransmits {retransmits}"
            );
            if rnr > 0 {
                self.wrong.push(format!("{name}: {rnr} receivers were not ready at the {who}"));
            }
        }
        self.say(&format!("the channel is on {}", self.channel.path()));
        self.vitals.push((own, server));
        Ok(())
    }

    /// Nothing grows: from the last round of the warm-up on, and of a server from its second round on.
    fn judge_vitals(&mut self, warm_up: usize) {
        let judged = self.vitals.split_off(warm_up.saturating_sub(1).min(self.vitals.len()));
        let clients: Vec<Vitals> = judged.iter().map(|(client, _)| *client).collect();
        self.judge_growth("client", &clients);
        for lives in judged.chunk_by(|(_, one), (_, next)| one.pid == next.pid) {
            let life: Vec<Vitals> = lives.iter().skip(1).map(|(_, server)| *server).collect();
            self.judge_growth("server", &life);
        }
    }

    fn judge_growth(&mut self, who: &str, readings: &[Vitals]) {
        let Some(first) = readings.first() else { return };
        let most = readings.iter().map(|vitals| vitals.rss_kib).max().unwrap_or_default();
        println!(
            "{who} {}: rss {} KiB at first, {most} KiB at most, in {} rounds",
            first.pid,
            first.rss_kib,
            readings.len()
        );
        if most > first.rss_kib + first.rss_kib / 20 {
            self.wrong.push(format!("the {who}'s memory grew from {} KiB to {most} KiB", first.rss_kib));
        }
        if readings.iter().any(|vitals| vitals.queue_pairs > first.queue_pairs) {
            self.wrong.push(format!("the {who} leaks queue pairs"));
        }
        if readings.iter().any(|vitals| vitals.descriptors > first.descriptors) {
            self.wrong.push(format!("the {who} leaks descriptors"));
        }
    }
}

/// Says when the path changes.
async fn report_path(channel: Channel, began: Instant) {
    let mut known = String::new();
    loop {
        // The time until the next attempt passes without a change.
        let path = channel.path().to_string();
        if path != known {
            println!("{:7.1} path: {path}", began.elapsed().as_secs_f64());
            known = path;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

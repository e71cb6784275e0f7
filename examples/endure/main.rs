//! Calls under load while the server's machine fails again and again: how they end, and whether the channel comes back.
//!
//! ```text
//! first machine   endure keep 10.99.0.1:7000     keeps a server running and does to it what it is told to
//! second machine  endure call 10.99.0.1:7000     makes the calls, orders the failures, and judges
//! ```
//!
//! Owns the command line and the settings of both sides. `cargo xtask endure` runs it on two guests that have RDMA. Never
//! decides what is right: `rounds` does.

mod keeper;
mod load;
mod rounds;
mod serve;
mod tally;
mod vitals;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use byway::{Keepalive, Rdma, RdmaOptions};
use rounds::{Fault, Plan};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: endure keep ADDRESS
       endure call ADDRESS [--rounds N] [--warm-up N] [--faults FAULT,...] [--windows yes|no]

  --rounds N     how many rounds are judged (10)
  --warm-up N    how many come before, whose memory does not count (6)
  --faults LIST  what happens in them, in turn, of kill, freeze, bury, down, lose, block (all),
                 spare (nothing)
  --windows no   large messages travel in pieces; then a call that fails without an ordered failure is wrong, and not
                 only counted: with windows Soft-RoCE fails by itself where packets are repeated

Both need an RDMA device, and keep the interface rdma0, whose traffic it may stop.";

/// When a silent peer is asked, and given up. Far below the deadline of calls, so that a failure that is noticed late shows
/// as a call that ended for the wrong reason.
const KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_millis(1500), timeout: Duration::from_millis(1500) };

/// Long enough to see calls go on over TCP, short enough for many rounds.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Registered memory that is kept, full after the warm-up: what grows afterwards is not kept but lost.
const KEEP: usize = 16 << 20;

/// 0.54 s, for an emulated processor that takes longer to answer than any network; a dead peer is found after 3.8 s.
const ACK_TIMEOUT: u8 = 17;

fn rdma(windows: bool) -> Rdma {
    let mut options = RdmaOptions { retry_after: RETRY_AFTER, windows, keep: KEEP, ..RdmaOptions::default() };
    options.queue_pair.ack_timeout = ACK_TIMEOUT;
    Rdma::new(options)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (role, address, rest) = match args.as_slice() {
        [role, address, rest @ ..] => match address.parse::<SocketAddr>() {
            Ok(address) => (role.as_str(), address, rest),
            Err(_) => return usage(&format!("{address} is no address")),
        },
        _ => return usage("there is no command"),
    };
    let plan = match parse(rest) {
        Ok(plan) => plan,
        Err(text) => return usage(&text),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let result = runtime.block_on(async {
        match role {
            "serve" => serve::serve(address, plan.windows).await.map(|()| true),
            "keep" => keeper::keep(address, plan.windows).await.map(|()| true),
            "call" => rounds::run(address, &plan).await,
            _ => Err(format!("there is no command {role}").into()),
        }
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn parse(args: &[String]) -> Result<Plan, String> {
    let mut plan = Plan { rounds: 10, warm_up: Fault::ALL.len(), faults: Fault::ALL.to_vec(), windows: true };
    let mut args = args.iter();
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{option} needs a number, not {value}"));
        match option.as_str() {
            "--rounds" => plan.rounds = number()?,
            "--warm-up" => plan.warm_up = number()?,
            "--windows" => plan.windows = value == "yes",
            "--faults" => plan.faults = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(plan)
}

fn usage(text: &str) -> ExitCode {
    eprintln!("endure: {text}\n\n{USAGE}");
    ExitCode::from(2)
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("endure: {error}");
    ExitCode::FAILURE
}

//! The command line.
//!
//! Cargo runs a bench in three ways: `cargo bench` passes `--bench`; `cargo test --benches` does not, and wants a short
//! proof that the bench works; test runners ask for a `--list` of tests, of which there are none. Invariant: without
//! `--bench` no argument is an error, since test runners pass their own to every binary.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::paths::Path;
use crate::peer::Service;
use crate::workload::{Effort, Family};

pub(crate) const USAGE: &str = "usage: cargo bench --bench compare -- [OPTION ...]

  --quick           three short rounds, about 25 seconds
  --rounds N        so many rounds instead of seven, or of three with --quick; an odd number has medians that happened
  --workload NAME   unary (the default), embed, or embed-minilm, whose time is that of the model
  --only PATH       measure that path alone; may be given several times. Paths of unary: raw-tcp, raw-rdma,
                    raw-rdma-spin, tonic, tonic-tuned, grpc, tcp, rdma, rdma-spin, rdma-sim. Of the others:
                    tonic-tuned, grpc, tcp, rdma.
                    Without it, paths that need an RDMA device are left out where there is none
  --address IP      the address of this machine that all paths use (127.0.0.1)
  --pin             keep client and server on a processor each, by taskset: two ends that spin must not share one
  --json FILE       also write the medians to FILE";

/// What this process is to do.
pub(crate) enum Request {
    /// Be the server of a measurement.
    Serve(Service, IpAddr),
    Measure(Options),
    /// Name the tests in this binary, of which there are none.
    List,
    Help,
}

pub(crate) struct Options {
    pub(crate) effort: Effort,
    pub(crate) family: Family,
    pub(crate) address: IpAddr,
    /// Whether client and server have a processor each.
    pub(crate) pin: bool,
    pub(crate) json: Option<PathBuf>,
    rounds: Option<usize>,
    only: Vec<Path>,
}

impl Options {
    fn new() -> Self {
        Self {
            effort: Effort::Full,
            family: Family::Unary,
            address: Ipv4Addr::LOCALHOST.into(),
            pin: false,
            json: None,
            rounds: None,
            only: Vec::new(),
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or_else(|| self.effort.rounds())
    }

    /// What to measure, in the order of the report.
    pub(crate) fn paths(&self) -> impl Iterator<Item = Path> {
        let paths = Path::of(self.family).iter().copied();
        paths.filter(|path| self.only.is_empty() || self.only.contains(path))
    }

    /// Whether the paths are those that the user named.
    pub(crate) fn paths_are_named(&self) -> bool {
        !self.only.is_empty()
    }

    fn check(self) -> Result<Self, String> {
        let of_family = Path::of(self.family);
        match self.only.iter().find(|path| !of_family.contains(path)) {
            Some(path) => Err(format!("{} is not measured over {path}", self.family.name())),
            None if self.rounds == Some(0) => Err("there is nothing to report of no rounds".into()),
            None => Ok(self),
        }
    }
}

/// # Errors
/// What is wrong with the arguments, for the user.
pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Request, String> {
    let args: Vec<String> = args.collect();
    if let [first, kind, name, address] = &args[..]
        && first == "--serve"
    {
        return Ok(Request::Serve(Service::parse(kind, name)?, ip(address)?));
    }
    let mut options = Options::new();
    if !args.iter().any(|arg| arg == "--bench") {
        if args.iter().any(|arg| arg == "--list") {
            return Ok(Request::List);
        }
        options.effort = Effort::Smoke;
        return Ok(Request::Measure(options));
    }
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => {}
            "--help" | "-h" => return Ok(Request::Help),
            "--quick" => options.effort = Effort::Quick,
            "--rounds" => options.rounds = Some(number(&value()?)?),
            "--workload" => options.family = value()?.parse()?,
            "--only" => options.only.push(value()?.parse()?),
            "--address" => options.address = ip(&value()?)?,
            "--pin" => options.pin = true,
            "--json" => options.json = Some(value()?.into()),
            _ => return Err(format!("there is no option \"{arg}\"")),
        }
    }
    options.check().map(Request::Measure)
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no IP address"))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no number"))
}

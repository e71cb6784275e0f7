//! The command line.
//!
//! Cargo runs a bench in three ways: `cargo bench` passes `--bench`; `cargo test --benches` does not, and wants a short
//! proof that the bench works; test runners ask for a `--list` of tests, of which there are none. Invariant: without
//! `--bench` no argument is an error, since test runners pass their own to every binary.

use std::path::PathBuf;

use crate::paths::Path;
use crate::workload::Effort;

pub(crate) const USAGE: &str = "usage: cargo bench --bench compare -- [--quick] [--only PATH] [--json FILE]

  --quick        three short rounds, about 25 seconds
  --only PATH    measure raw-tcp, tonic, tonic-tuned, grpc or tcp alone; may be given several times
  --json FILE    also write the medians to FILE";

/// What this process is to do.
pub(crate) enum Request {
    /// Be the server of a measurement.
    Serve(Path),
    Measure(Options),
    /// Name the tests in this binary, of which there are none.
    List,
    Help,
}

pub(crate) struct Options {
    pub(crate) effort: Effort,
    pub(crate) json: Option<PathBuf>,
    only: Vec<Path>,
}

impl Options {
    /// What to measure, in the order of the report.
    pub(crate) fn paths(&self) -> impl Iterator<Item = Path> {
        Path::ALL.into_iter().filter(|path| self.only.is_empty() || self.only.contains(path))
    }
}

/// # Errors
/// What is wrong with the arguments, for the user.
pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Request, String> {
    let args: Vec<String> = args.collect();
    if let [first, path] = &args[..]
        && first == "--serve"
    {
        return path.parse().map(Request::Serve);
    }
    let mut options = Options { effort: Effort::Full, json: None, only: Vec::new() };
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
            "--only" => options.only.push(value()?.parse()?),
            "--json" => options.json = Some(value()?.into()),
            _ => return Err(format!("there is no option \"{arg}\"")),
        }
    }
    Ok(Request::Measure(options))
}

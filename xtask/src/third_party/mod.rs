//! Calls `embedding-service` with gRPC clients that are not ours: grpcio, which has C++ inside, and grpcurl, which is Go.
//!
//! Owns the order of things: environment, build, servers, clients, the servers' end. The cases are in
//! `tests/third_party`. Invariant: everything has a time limit, and no process outlives the run; each has a limit of its
//! own, should this program die. Never installs anything outside cargo's target folder.

mod environment;
mod serving;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::{fmt, io};

use crate::outcome::Outcome;
use crate::{build, cargo};
use environment::Environment;
use serving::Serving;

/// Where the cases are.
const FOLDER: &str = "tests/third_party";

/// The service's protocol, from which the clients make their stubs.
const PROTOS: &str = "examples/embedding-service/proto";

/// For all cases together. Above the limit in `harness.py`, which can say what hangs.
const CLIENTS_LIMIT_S: u32 = 180;

/// What `timeout` returns when the time was up.
const TIMED_OUT: u8 = 124;

/// Why the clients were not run.
#[derive(Debug)]
enum ClientsError {
    /// This machine lacks something that is not part of byway.
    Missing(String),
    /// Something that should work does not.
    Broken(String),
}

impl fmt::Display for ClientsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Missing(text) | Self::Broken(text)) = self;
        f.write_str(text)
    }
}

impl From<io::Error> for ClientsError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Runs every case against two servers.
pub(crate) fn run() -> Outcome {
    match clients() {
        Ok(status) => Outcome::of(status),
        Err(error) => {
            let excusable = matches!(error, ClientsError::Missing(_));
            Outcome::did_not_run("third-party clients", &error, excusable)
        }
    }
}

fn clients() -> Result<u8, ClientsError> {
    // Before anything is built, so that a machine without Python says so at once.
    let python = environment::find_python()?;
    // The build that users run: it shares all of its work with `cargo run --release -p embedding-service`.
    let program = build::executable(&mut cargo(["build", "--release", "--package", "embedding-service"]))?;
    let target = program.ancestors().nth(2).unwrap_or(Path::new("target"));
    let folder = target.join("third-party");
    let environment = environment::prepare(&python, &folder)?;
    let default = Serving::start(&program, &folder, "default", &[])?;
    // 32 texts of 8192 dimensions are a reply of 1 MiB.
    let null = Serving::start(&program, &folder, "null", &["--model-id", "null:8192"])?;

    let status = call(&environment, &program, &default, &null)?;
    // Both, whatever the first has to say.
    let ends = [default.stop(), null.stop()];
    let failed = ends.iter().filter_map(|end| end.as_ref().err());
    let failed = failed.inspect(|text| eprintln!("xtask: {text}")).count();
    match (status, failed) {
        (0, 0) => println!("both servers ended in good order"),
        (0, _) => return Ok(1),
        _ => {}
    }
    Ok(status)
}

fn call(
    environment: &Environment,
    program: &Path,
    default: &Serving,
    null: &Serving,
) -> Result<u8, ClientsError> {
    let mut command = environment.python(CLIENTS_LIMIT_S);
    command.arg(Path::new(FOLDER).join("run.py"));
    command.args(["--default", default.address(), "--null", null.address()]);
    command.arg("--program").arg(program).arg("--grpcurl").arg(environment.grpcurl());
    command.args(["--protos", PROTOS]);
    // A proxy for the packages is none for a server on this machine.
    command.envs([("no_proxy", "127.0.0.1"), ("no_grpc_proxy", "127.0.0.1")]);
    let status = command.status()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    if status == TIMED_OUT {
        eprintln!("xtask: the third-party clients did not end within {CLIENTS_LIMIT_S} s");
    }
    if status != 0 {
        [default, null].iter().for_each(|server| server.show_log());
    }
    Ok(status)
}

/// A command that is ended after that time. It stays in our group, so that an interrupt from the keyboard ends it, too.
fn limited(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=10", &seconds.to_string()]).arg(program);
    command
}

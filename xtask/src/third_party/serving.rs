//! One `embedding-service serve`, as a process.
//!
//! Owns the process and its log. Invariant: the process ends with this value at the latest, in good order where there is
//! time for it. Never passes on settings of whoever runs the tests.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, io, thread};

use super::{ClientsError, limited};

/// From its start until it listens. Its model loads in less than a second.
const START_LIMIT: Duration = Duration::from_secs(60);

/// More than all cases may take.
const LIFE_LIMIT_S: u32 = 300;

/// How much of a log is shown.
const LOG_LINES: usize = 20;

pub(super) struct Serving {
    name: &'static str,
    /// `timeout`, which passes SIGTERM on, kills what does not heed it, and ends with the server's status.
    process: Child,
    ended: bool,
    address: String,
    log: PathBuf,
}

impl Serving {
    /// Starts a server on a free port, and waits until it listens.
    pub(super) fn start(
        program: &Path,
        folder: &Path,
        name: &'static str,
        args: &[&str],
    ) -> Result<Self, ClientsError> {
        let log = folder.join(format!("{name}.log"));
        let mut command = limited(LIFE_LIMIT_S, program);
        command
            .args(["serve", "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"])
            .args(args);
        command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?).spawn().map_err(
                |error| ClientsError::Broken(format!("timeout (coreutils) cannot be started: {error}")),
            )?;
        let mut server = Self { name, process, ended: false, address: String::new(), log };
        server.address = server.listening().inspect_err(|_| server.show_log())?;
        Ok(server)
    }

    /// Where it listens, which it says in the first line.
    fn listening(&mut self) -> Result<String, ClientsError> {
        let stdout = self.process.stdout.take().expect("the output was asked for");
        let (sender, receiver) = mpsc::channel();
        // It ends with the line, or with the process.
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // Nobody listens after the limit.
            let _ = sender.send(read.map(|_| line));
        });
        let line = receiver.recv_timeout(START_LIMIT).map_err(|_| {
            let seconds = START_LIMIT.as_secs();
            ClientsError::Broken(format!("the {} server did not listen within {seconds} s", self.name))
        })??;
        address(&line).map(str::to_owned).ok_or_else(|| {
            ClientsError::Broken(format!("the {} server does not say where it listens: {line:?}", self.name))
        })
    }

    /// `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// It ended with another status than 0, or something in it panicked.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let name = self.name;
        let status = self.end().map_err(|error| format!("the {name} server cannot be ended: {error}"))?;
        if !status.success() {
            self.show_log();
            return Err(format!("the {name} server was asked to end with SIGTERM and ended with {status}"));
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        if log.contains("panicked at") {
            println!("{log}");
            return Err(format!("something in the {name} server panicked"));
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status()?;
        let status = self.process.wait()?;
        self.ended = true;
        Ok(status)
    }

    /// Prints the end of its log.
    pub(super) fn show_log(&self) {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("xtask: the {} server's log ends with:", self.name);
        lines[lines.len().saturating_sub(LOG_LINES)..].iter().for_each(|line| eprintln!("  {line}"));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.ended {
            // What cannot be ended now ends by its limit.
            let _ = self.end();
        }
    }
}

/// The address in the line that a server prints when it listens.
fn address(line: &str) -> Option<&str> {
    line.strip_prefix("listening on ")?.split(", ").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_first_line() {
        let line = "listening on 127.0.0.1:4321, metrics on http://127.0.0.1:4322/metrics\n";
        assert_eq!(address(line), Some("127.0.0.1:4321"));
        assert_eq!(address(""), None);
        assert_eq!(address("error: no"), None);
    }
}

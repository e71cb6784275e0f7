//! The server's process: this executable again, with `--serve PATH`.
//!
//! It prints the address that it listens on, one line, and serves until its standard input is closed. Invariant: it ends
//! with its [`Peer`]; when the bench itself is killed, the system closes the input for it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::paths::Path;
use crate::{Failure, cpu, current_thread};

/// A running server.
pub(crate) struct Peer {
    process: Child,
    address: String,
}

impl Peer {
    pub(crate) fn spawn(path: Path) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--serve", &path.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let mut peer = Self { process, address: String::new() };
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut peer.address)?;
        }
        peer.address.truncate(peer.address.trim_end().len());
        if peer.address.is_empty() {
            return Err("the server ended before it listened".into());
        }
        Ok(peer)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        cpu::of_process(self.process.id())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself, which the client has noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the server of `path` in this process.
pub(crate) fn serve(path: Path) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    current_thread()?.block_on(path.serve())
}

/// Tells the client where this process listens.
pub(crate) fn announce(address: impl std::fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{address}")?;
    output.flush()
}

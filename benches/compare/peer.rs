//! The server's process: this executable again, with `--serve KIND NAME ADDRESS`.
//!
//! It prints the address that it listens on, one line, and serves until its standard input is closed. Invariant: it ends
//! with its [`Peer`]; when the bench itself is killed, the system closes the input for it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::options::Options;
use crate::paths::{self, Path};
use crate::workload::{Ask, Workload};
use crate::{Failure, cpu, current_thread};

/// What a server does.
pub(crate) enum Service {
    /// Sends back what it gets over that path.
    Echo(Path),
    /// Embeds texts with that model, over byway's own framing and HTTP/2 on one port.
    Embedding(String),
}

impl Service {
    pub(crate) fn of(path: Path, workload: &Workload) -> Self {
        match workload.ask {
            Ask::Echo => Self::Echo(path),
            Ask::Embed(model) | Ask::EmbedBatch(model) => Self::Embedding(model.to_owned()),
        }
    }

    /// # Errors
    /// What is wrong with these two words, for the user.
    pub(crate) fn parse(kind: &str, name: &str) -> Result<Self, String> {
        match kind {
            "echo" => Ok(Self::Echo(name.parse()?)),
            "embedding" => Ok(Self::Embedding(name.to_owned())),
            _ => Err(format!("there is no service \"{kind}\"")),
        }
    }

    fn words(&self) -> [String; 2] {
        match self {
            Self::Echo(path) => ["echo".to_owned(), path.to_string()],
            Self::Embedding(model) => ["embedding".to_owned(), model.clone()],
        }
    }

    async fn serve(self, at: SocketAddr) -> Result<(), Failure> {
        match self {
            Self::Echo(path) => path.serve(at).await,
            Self::Embedding(model) => paths::embed::serve(&model, at).await,
        }
    }
}

/// A running server.
pub(crate) struct Peer {
    process: Child,
    address: String,
}

impl Peer {
    pub(crate) fn spawn(service: &Service, options: &Options) -> Result<Self, Failure> {
        let this = std::env::current_exe()?;
        let mut command = if options.pin { cpu::pinned(&this) } else { Command::new(this) };
        let mut process = command
            .arg("--serve")
            .args(service.words())
            .arg(options.address.to_string())
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

/// Runs a server in this process, on a free port of `address`.
pub(crate) fn serve(service: Service, address: IpAddr) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    current_thread()?.block_on(service.serve((address, 0).into()))
}

/// Tells the client where this process listens.
pub(crate) fn announce(address: impl std::fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{address}")?;
    output.flush()
}

//! What a check may read.
//!
//! Owns access to files and to other programs. Invariant: everything goes through the root folder and the runner of one
//! [`Machine`], so that a folder and a function stand for a whole machine. Never writes, and never fails: what cannot be
//! read is `None` or empty, which the checks tell apart from a bad value.

use std::fs;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs a program and returns what it printed, if it succeeded.
type Run = dyn Fn(&str, &[&str]) -> Option<String>;

/// A machine to look at.
pub struct Machine {
    root: PathBuf,
    run: Box<Run>,
}

impl Machine {
    /// The one that this process runs on.
    pub fn this() -> Self {
        Self::new("/", run)
    }

    /// A folder that stands for `/`, and a function that stands for the programs installed there.
    pub fn new(root: impl Into<PathBuf>, run: impl Fn(&str, &[&str]) -> Option<String> + 'static) -> Self {
        Self { root: root.into(), run: Box::new(run) }
    }

    /// The file system's path of what has this path (without a leading slash) on the machine.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text, without white space around it.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// A file's number, or another value that is written like it.
    pub(super) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Whether there is something at this path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder; numbers in names are compared as numbers.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// The last part of what a symbolic link points to.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// What a program prints; `None` when it is missing or fails, as for want of a privilege.
    pub(super) fn output(&self, program: &str, arguments: &[&str]) -> Option<String> {
        (self.run)(program, arguments)
    }

    /// The field of a file of `name: value` lines, such as `/proc/self/status`.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    }

    /// The kernel's names of the RDMA devices.
    pub(super) fn devices(&self) -> Vec<String> {
        self.list("sys/class/infiniband")
    }

    /// Devices with the numbers of their ports.
    pub(super) fn ports(&self) -> Vec<(String, u8)> {
        let of = |device: String| {
            let ports = self.list(&format!("sys/class/infiniband/{device}/ports"));
            ports
                .into_iter()
                .filter_map(|port| port.parse().ok())
                .map(move |port| (device.clone(), port))
                .collect::<Vec<_>>()
        };
        self.devices().into_iter().flat_map(of).collect()
    }

    /// The entries of a port's address table that are not empty: their places and addresses.
    pub(super) fn gids(&self, device: &str, port: u8) -> Vec<(String, Ipv6Addr)> {
        let folder = format!("sys/class/infiniband/{device}/ports/{port}/gids");
        let entry = |index: String| {
            let address: Ipv6Addr = self.number(&format!("{folder}/{index}"))?;
            (!address.is_unspecified()).then_some((index, address))
        };
        self.list(&folder).into_iter().filter_map(entry).collect()
    }

    /// The network interfaces of a port, by what the port's addresses and the interfaces themselves say.
    pub(super) fn interfaces(&self, device: &str, port: u8) -> Vec<String> {
        let folder = format!("sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
        let of = |(index, _)| self.read(&format!("{folder}/{index}"));
        let mut names: Vec<_> = self.gids(device, port).into_iter().filter_map(of).collect();
        names.extend(self.list("sys/class/net").into_iter().filter(|name| {
            let dev_port = self.number::<u8>(&format!("sys/class/net/{name}/dev_port")).unwrap_or(0);
            self.exists(&format!("sys/class/net/{name}/device/infiniband/{device}"))
                && dev_port.checked_add(1) == Some(port)
        }));
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    // Administrators' programs are not on everybody's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", path).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

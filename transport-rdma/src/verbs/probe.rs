//! Whether this process can use RDMA, and if not, why.
//!
//! Owns the survey of devices, ports and addresses (the choice among them is made in `choice`), and the trial that proves
//! the one that was chosen. Invariant: success means that memory
//! was registered and a queue pair created, since a device that opens may still refuse both (locked memory).
//! Never talks to a peer.

use std::sync::Arc;
use std::{fmt, fs};

use super::choice::{Decision, PortFacts, Why, choose, gid_text};
use super::completion::{CompletionChannel, CompletionQueue};
use super::device::{Context, OpenError, Opened, Port, open_each};
use super::error::{Unavailable, VerbsError};
use super::gid::Gid;
use super::interfaces::{interfaces_of, interfaces_on};
use super::queue_pair::{Attachments, QueuePair};
use super::region::ProtectionDomain;
use super::settings::{DeviceChoice, Wanted};
use crate::memory::Memory;
use crate::nic::{Mtu, QueuePairSpec};

/// How much memory the trial registers: more than the 64 KiB that old systems allow, less than any pool of ours.
const TRIAL_LEN: usize = 1 << 20;

/// A device with the port and the address to use.
#[derive(Debug, Clone)]
pub struct Located {
    /// The open device.
    pub context: Arc<Context>,
    /// An active port.
    pub port: Port,
    /// The port's packet size.
    pub mtu: Mtu,
    /// The port's address.
    pub gid: Gid,
    /// The rule that decided for it.
    pub why: Why,
    /// The memory node that the device is attached to; `None` for a software device, or where there is only one.
    /// Threads and memory of another node reach the device over the link between the nodes: 1.5 to 1.9 times the
    /// throughput was measured between the two (ruapc, docs/benchmark.md).
    pub numa_node: Option<u32>,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, port) = (self.context.name(), self.port.number);
        let (kind, index) = (self.gid.kind, self.gid.index);
        let (address, mtu, why) = (gid_text(&self.gid.raw), self.mtu.bytes(), self.why);
        write!(f, "{name} port {port}, address {index} ({address}, {kind}), MTU {mtu}: {why}")
    }
}

/// Finds a usable device and proves it by a trial registration and a trial queue pair.
pub fn probe(choice: &DeviceChoice) -> Result<Located, Unavailable> {
    let located = locate(choice)?;
    let domain = ProtectionDomain::allocate(&located.context)?;
    let memory = Memory::allocate(TRIAL_LEN).map_err(|_| Unavailable::LockedMemory {
        limit: super::error::locked_memory_limit(),
        source: VerbsError::new("allocation", "a trial region", std::io::ErrorKind::OutOfMemory.into()),
    })?;
    let slab = domain.register(memory).map_err(|(error, _)| error)?;
    let channel = CompletionChannel::create(&located.context)?;
    let completions = CompletionQueue::create(&channel, 64)?;
    let attached = Attachments { domain, completions, shared_receives: None };
    let spec = QueuePairSpec { send_depth: 16, recv_depth: Some(16), ..QueuePairSpec::default() };
    drop(QueuePair::create(&attached, located.port.number, &spec)?);
    drop(slab);
    Ok(located)
}

/// What there is to choose from.
#[derive(Debug)]
pub struct Survey {
    /// Every port of every device that could be opened, in the library's order.
    pub ports: Vec<PortFacts>,
    /// Devices that could not be opened or asked, with the reason.
    pub failed: Vec<(String, VerbsError)>,
    /// The device of each of `ports`, and its port.
    found: Vec<(Arc<Context>, Port)>,
}

/// Lists every port of every device.
pub fn survey() -> Result<Survey, Unavailable> {
    let (contexts, failed) = open_devices()?;
    let mut survey = Survey { ports: Vec::new(), failed, found: Vec::new() };
    for context in contexts {
        match ports_of(&context) {
            Ok(ports) => {
                for (port, facts) in ports {
                    survey.ports.push(facts);
                    survey.found.push((Arc::clone(&context), port));
                }
            }
            Err(error) => survey.failed.push((context.name().to_owned(), error)),
        }
    }
    Ok(survey)
}

impl Survey {
    /// Chooses a port and an address. Looks at the system for the interfaces of the connection's address only.
    pub fn decide(&self, wanted: &Wanted) -> Decision {
        let interfaces = wanted.local.map(interfaces_of).unwrap_or_default();
        choose(&self.ports, wanted, &interfaces)
    }

    fn locate(mut self, wanted: &Wanted) -> Result<Located, Unavailable> {
        let chosen = match self.decide(wanted).chosen {
            Ok(chosen) => chosen,
            Err(reason) => return Err(self.failure(wanted).unwrap_or(reason)),
        };
        let (context, port) = self.found.swap_remove(chosen.index);
        let numa_node = numa_node(context.name());
        Ok(Located { context, port, mtu: chosen.mtu, gid: chosen.gid, why: chosen.why, numa_node })
    }

    /// The failure that explains better than any port why nothing is usable: that of the device that was asked for, or
    /// of any when no other device is there.
    fn failure(self, wanted: &Wanted) -> Option<Unavailable> {
        let meant = |name: &str| match &wanted.device {
            Some(asked) => asked.value == name,
            None => self.ports.is_empty(),
        };
        self.failed.into_iter().find(|(name, _)| meant(name)).map(|(_, error)| error.into())
    }
}

/// Finds a device with an active port and an address, without trying it.
pub(super) fn locate(choice: &DeviceChoice) -> Result<Located, Unavailable> {
    let wanted = choice.with_environment()?;
    survey()?.locate(&wanted)
}

/// The memory node that the device is attached to.
fn numa_node(device: &str) -> Option<u32> {
    let path = format!("/sys/class/infiniband/{device}/device/numa_node");
    // -1 on machines with one node.
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn open_devices() -> Result<Opened, Unavailable> {
    let (contexts, failed) = open_each().map_err(|error| match error {
        OpenError::Library(unavailable) => unavailable.again(),
        OpenError::Verbs(error) if error.source.raw_os_error() == Some(libc::ENOSYS) => {
            Unavailable::Kernel(error)
        }
        OpenError::Verbs(error) => error.into(),
    })?;
    if contexts.is_empty() && failed.is_empty() {
        // The kernel knows devices that the library does not show: nobody drives them in user space.
        let devices = kernel_devices();
        return Err(match devices.is_empty() {
            true => Unavailable::NoDevice,
            false => Unavailable::Provider { devices },
        });
    }
    Ok((contexts, failed))
}

/// The devices that the kernel offers to user space.
fn kernel_devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("ibdev")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

fn ports_of(context: &Context) -> Result<Vec<(Port, PortFacts)>, VerbsError> {
    let iwarp = !context.speaks_infiniband();
    (1..=context.attributes()?.ports)
        .map(|number| {
            let port = context.port(number)?;
            let gids = context.gids(&port)?;
            let mut interfaces = interfaces_on(context.name(), number);
            interfaces.extend(gids.iter().map(|gid| gid.interface).filter(|&index| index != 0));
            let facts = PortFacts {
                device: context.name().to_owned(),
                port: number,
                iwarp,
                state: port.state,
                mtu: port.mtu,
                ethernet: port.ethernet,
                gids,
                interfaces,
            };
            Ok((port, facts))
        })
        .collect()
}

//! Whether this process can use RDMA, and if not, why.
//!
//! Owns the choice of device, port and address, and the trial that proves them. Invariant: success means that memory
//! was registered and a queue pair created, since a device that opens may still refuse both (locked memory).
//! Never talks to a peer.

use std::sync::Arc;
use std::{fmt, fs};

use super::completion::{CompletionChannel, CompletionQueue};
use super::device::{Context, Gid, OpenError, Port, PortState, best_gid, open_all};
use super::error::{Unavailable, VerbsError};
use super::queue_pair::{Attachments, QueuePair};
use super::region::ProtectionDomain;
use crate::memory::Memory;
use crate::nic::{Mtu, QueuePairSpec};

/// How much memory the trial registers: more than the 64 KiB that old systems allow, less than any pool of ours.
const TRIAL_LEN: usize = 1 << 20;

/// Which device to use. The default takes the first that works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The kernel's name of the device.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The address's place in the port's table.
    pub gid_index: Option<u8>,
}

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
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, port) = (self.context.name(), self.port.number);
        let (kind, index) = (self.gid.kind, self.gid.index);
        write!(f, "{name} port {port}, address {index} ({kind:?}), MTU {}", self.mtu.bytes())
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

/// Finds a device with an active port and an address, without trying it.
pub(super) fn locate(choice: &DeviceChoice) -> Result<Located, Unavailable> {
    let devices = open_devices()?;
    let named = |context: &Arc<Context>| choice.device.as_deref().is_none_or(|name| name == context.name());
    let mut reason = choice.device.clone().map(Unavailable::NoSuchDevice);
    for context in devices.into_iter().filter(named) {
        match locate_on(&context, choice) {
            Ok(located) => return Ok(located),
            // The first device's reason: the one a user most likely means.
            Err(error) if reason.is_none() || choice.device.is_some() => reason = Some(error),
            Err(_) => {}
        }
    }
    Err(reason.unwrap_or(Unavailable::NoDevice))
}

fn open_devices() -> Result<Vec<Arc<Context>>, Unavailable> {
    let devices = open_all().map_err(|error| match error {
        OpenError::Library(unavailable) => unavailable.again(),
        OpenError::Verbs(error) if error.source.raw_os_error() == Some(libc::ENOSYS) => {
            Unavailable::Kernel(error)
        }
        OpenError::Verbs(error) => error.into(),
    })?;
    if devices.is_empty() {
        // The kernel knows devices that the library does not show: nobody drives them in user space.
        let devices = kernel_devices();
        return Err(match devices.is_empty() {
            true => Unavailable::NoDevice,
            false => Unavailable::Provider { devices },
        });
    }
    Ok(devices)
}

/// The devices that the kernel offers to user space.
fn kernel_devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("ibdev")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

fn locate_on(context: &Arc<Context>, choice: &DeviceChoice) -> Result<Located, Unavailable> {
    if !context.speaks_infiniband() {
        return Err(Unavailable::Iwarp(context.name().to_owned()));
    }
    let ports = context.attributes()?.ports;
    let numbers = choice.port.map_or(1..=ports, |port| port..=port);
    let mut reason = None;
    for number in numbers {
        let port = context.port(number)?;
        match locate_at(context, port, choice.gid_index)? {
            Ok(located) => return Ok(located),
            Err(error) => reason = Some(error),
        }
    }
    Err(reason.unwrap_or_else(|| Unavailable::PortDown {
        device: context.name().to_owned(),
        state: "missing".into(),
    }))
}

fn locate_at(
    context: &Arc<Context>,
    port: Port,
    gid_index: Option<u8>,
) -> Result<Result<Located, Unavailable>, VerbsError> {
    let device = context.name().to_owned();
    let (PortState::Active, Some(mtu)) = (port.state, port.mtu) else {
        let state = format!("{:?}", port.state).to_lowercase();
        return Ok(Err(Unavailable::PortDown { device, state }));
    };
    let mut gids = context.gids(&port)?;
    if let Some(index) = gid_index {
        gids.retain(|gid| gid.index == index);
    }
    Ok(match best_gid(&gids) {
        Some(gid) => Ok(Located { context: Arc::clone(context), port, mtu, gid }),
        None => Err(Unavailable::NoGid { device, port: port.number }),
    })
}

//! Devices, ports and their addresses.
//!
//! Owns the open device. Invariant: everything made from a [`Context`] holds an `Arc` of it, so a device closes after
//! the last of its objects is gone. Never assumes that addresses are numbered without gaps: after an address was
//! removed, the table has a hole.
#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, fs, io};

use super::error::{Unavailable, VerbsError, check};
use super::ffi::*;
use super::gid::{Gid, GidKind};
use super::interfaces::index_of;
use super::library::{Library, library};
use crate::nic::Mtu;

/// The GID table of no known device is longer; a bound for what a driver may claim.
const GID_TABLE_MAX: usize = 1024;

/// An open device.
pub struct Context {
    pub(super) raw: NonNull<ibv_context>,
    pub(super) library: &'static Library,
    name: String,
}

// SAFETY: libibverbs locks its contexts; every call on one is allowed from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Opens every device that the library finds, in its order. An empty list is not an error here.
pub fn open_all() -> Result<Vec<Arc<Context>>, OpenError> {
    let (contexts, failed) = open_each()?;
    match failed.into_iter().next() {
        // One device that cannot be opened does not hide the others.
        Some((_, error)) if contexts.is_empty() => Err(OpenError::Verbs(error)),
        _ => Ok(contexts),
    }
}

/// The devices that could be opened, and the names of those that could not, with the reason.
pub(super) type Opened = (Vec<Arc<Context>>, Vec<(String, VerbsError)>);

/// Opens what can be opened, and tells what cannot.
pub(super) fn open_each() -> Result<Opened, OpenError> {
    let library = library().map_err(OpenError::Library)?;
    let mut count: c_int = 0;
    // SAFETY: `count` is writable for the duration of the call.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    let list = NonNull::new(list)
        .ok_or_else(|| OpenError::Verbs(VerbsError::from_errno("ibv_get_device_list", "this system")))?;
    let (mut contexts, mut failed) = (Vec::new(), Vec::new());
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { list.add(index).read() };
        let name = device_name(device);
        match Context::open(library, device, name.clone()) {
            Ok(context) => contexts.push(context),
            Err(error) => failed.push((name, error)),
        }
    }
    // SAFETY: the list came from ibv_get_device_list; devices that are open stay valid.
    unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
    Ok((contexts, failed))
}

/// The name of a device from a list that is not freed yet.
fn device_name(device: *mut ibv_device) -> String {
    // SAFETY: the caller's list keeps the device alive.
    let name = unsafe { &(*device).name };
    // SAFETY: the library terminates the name within its 64 bytes.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

/// Why devices could not be listed or opened.
#[derive(Debug)]
pub enum OpenError {
    /// The library is not there.
    Library(&'static Unavailable),
    /// A verb failed.
    Verbs(VerbsError),
}

impl Context {
    fn open(
        library: &'static Library,
        device: *mut ibv_device,
        name: String,
    ) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: `device` comes from a list that is not freed yet.
        let raw = unsafe { (library.ibv_open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_open_device", &*name))?;
        let context = Self { raw, library, name };
        set_nonblocking(context.async_fd()).map_err(|source| {
            VerbsError::new("fcntl", format!("the event descriptor of {}", context.name), source)
        })?;
        Ok(Arc::new(context))
    }

    /// The kernel's name of the device, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    pub fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open and the struct writable.
        let code = unsafe { (self.library.ibv_query_device)(self.raw.as_ptr(), raw.as_mut_ptr()) };
        check(code, "ibv_query_device", || self.name.clone())?;
        // SAFETY: plain integers, zeroed before the call.
        let raw = unsafe { raw.assume_init() };
        Ok(DeviceAttributes::from_raw(&raw))
    }

    /// The state of a port; ports are numbered from 1.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let mut raw = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open and the struct writable; an older library fills only its own, shorter prefix.
        let code = unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), number, raw.as_mut_ptr()) };
        check(code, "ibv_query_port", || format!("port {number} of {}", self.name))?;
        // SAFETY: plain integers, zeroed before the call.
        let raw = unsafe { raw.assume_init() };
        Ok(Port {
            number,
            state: PortState::from_code(raw.state),
            mtu: Mtu::at_most(128u32.checked_shl(raw.active_mtu).unwrap_or(0)),
            lid: raw.lid,
            ethernet: raw.link_layer == IBV_LINK_LAYER_ETHERNET,
            gid_table_len: usize::try_from(raw.gid_tbl_len).unwrap_or(0).min(GID_TABLE_MAX),
        })
    }

    /// The addresses of a port, without the holes of the table.
    pub fn gids(&self, port: &Port) -> Result<Vec<Gid>, VerbsError> {
        match self.library._ibv_query_gid_table {
            Some(query) => self.gids_at_once(query, port),
            None => Ok(self.gids_one_by_one(port)),
        }
    }

    fn gids_at_once(
        &self,
        query: unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
        port: &Port,
    ) -> Result<Vec<Gid>, VerbsError> {
        let mut entries = Vec::<ibv_gid_entry>::with_capacity(GID_TABLE_MAX);
        // SAFETY: the buffer has room for the number of entries that is passed, of the size that is passed.
        let count = unsafe {
            query(self.raw.as_ptr(), entries.as_mut_ptr(), GID_TABLE_MAX, 0, size_of::<ibv_gid_entry>())
        };
        let count = usize::try_from(count).map_err(|_| {
            let source = io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO));
            VerbsError::new("ibv_query_gid_table", &*self.name, source)
        })?;
        // SAFETY: the library has written `count` entries and was told the capacity.
        unsafe { entries.set_len(count.min(GID_TABLE_MAX)) };
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port.number));
        Ok(of_port.filter_map(Gid::from_entry).collect())
    }

    /// For libraries before rdma-core 32: a hole reads as zeroes, and sysfs knows the types.
    fn gids_one_by_one(&self, port: &Port) -> Vec<Gid> {
        (0..port.gid_table_len)
            .filter_map(|index| {
                let mut raw = ibv_gid { raw: [0; 16] };
                let number = c_int::try_from(index).ok()?;
                // SAFETY: the context is open and the struct writable.
                let code =
                    unsafe { (self.library.ibv_query_gid)(self.raw.as_ptr(), port.number, number, &mut raw) };
                let kind = fs::read_to_string(format!(
                    "/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{index}",
                    self.name, port.number
                ));
                let kind = GidKind::from_sysfs(kind.unwrap_or_default().trim());
                let interface = fs::read_to_string(format!(
                    "/sys/class/infiniband/{}/ports/{}/gid_attrs/ndevs/{index}",
                    self.name, port.number
                ));
                let interface = index_of(interface.unwrap_or_default().trim()).unwrap_or(0);
                let index = u8::try_from(index).ok()?;
                (code == 0 && raw.raw != [0; 16]).then_some(Gid { index, kind, raw: raw.raw, interface })
            })
            .collect()
    }

    /// The descriptor that is readable when an asynchronous event waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: the descriptor belongs to the context and stays open as long as it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Whether the device speaks the InfiniBand transport (also over Ethernet). iWARP devices do not: they have no
    /// write with immediate, so this layer does not use them.
    pub fn speaks_infiniband(&self) -> bool {
        // SAFETY: the context is open and keeps its device.
        let device = unsafe { self.raw.as_ref() }.device;
        // SAFETY: as above.
        unsafe { (*device).transport_type == 0 }
    }

    pub(super) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open; providers set the operations while opening and never change them afterwards.
        let context = unsafe { self.raw.as_ref() };
        &context.ops
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A failure would mean that objects of the context are alive, which their `Arc`s exclude; nothing is left to do.
        // SAFETY: this is the last owner, and every object made from the context is destroyed.
        unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

/// Makes reads of a descriptor return instead of waiting, so that draining it ends.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: takes a descriptor and returns its flags.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sets flags of a descriptor that this crate owns.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a device can do. Counts are clamped to what fits 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// The firmware's version; empty on software devices.
    pub firmware: String,
    /// The device's identity.
    pub guid: u64,
    /// Number of ports.
    pub ports: u8,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Requests in one queue.
    pub depth_max: u32,
    /// Pieces of one request.
    pub pieces_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// Entries of one shared receive queue; zero when there are none.
    pub shared_receives_max: u32,
    /// Reads and atomics in flight towards this device, per queue pair.
    pub reads_max: u8,
    /// Whether peers can change memory atomically.
    pub atomics: bool,
    /// Whether type-2 windows can be bound by a work request.
    pub windows: bool,
}

impl DeviceAttributes {
    fn from_raw(raw: &ibv_device_attr) -> Self {
        let count = |value: c_int| u32::try_from(value).unwrap_or(0);
        let firmware = raw.fw_ver.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        let type_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        Self {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            guid: u64::from_be(raw.node_guid),
            ports: raw.phys_port_cnt,
            queue_pairs_max: count(raw.max_qp),
            depth_max: count(raw.max_qp_wr),
            pieces_max: count(raw.max_sge),
            completions_max: count(raw.max_cqe),
            shared_receives_max: count(raw.max_srq_wr),
            reads_max: u8::try_from(raw.max_qp_rd_atom).unwrap_or(u8::MAX),
            atomics: raw.atomic_cap != 0,
            windows: raw.max_mw != 0 && raw.device_cap_flags & type_2 != 0,
        }
    }
}

/// A port as it was when asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub state: PortState,
    /// The largest packet payload; `None` when the driver gives no valid one.
    pub mtu: Option<Mtu>,
    /// Its InfiniBand address; zero on RoCE.
    pub lid: u16,
    /// Whether packets travel over Ethernet (RoCE).
    pub ethernet: bool,
    /// Length of the address table, holes included.
    pub gid_table_len: usize,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// Carries traffic.
    Active,
    /// No link.
    Down,
    /// Waits for the subnet manager.
    Initializing,
    /// Configured, not yet active.
    Armed,
    /// Active, its link is recovering.
    ActiveDefer,
    /// A state that this version does not know.
    Unknown(u32),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.write_str("active"),
            Self::Down => f.write_str("down"),
            Self::Initializing => f.write_str("initializing"),
            Self::Armed => f.write_str("armed"),
            Self::ActiveDefer => f.write_str("active, its link recovering"),
            Self::Unknown(code) => write!(f, "in the unknown state {code}"),
        }
    }
}

impl PortState {
    /// The state that a number of the verbs interface, or of the kernel's `state` file, stands for.
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Down,
            2 => Self::Initializing,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            other => Self::Unknown(other),
        }
    }
}

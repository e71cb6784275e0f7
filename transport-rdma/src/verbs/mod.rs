//! RDMA verbs through libibverbs, loaded at run time.
//!
//! ```text
//!  probe, adapter, nic what the rest of the crate uses
//!  queue_pair  send_queue  receive_queue  window  completion  events  router
//!  region  device      objects that own each other through `Arc`
//!  library  ffi        the function table and the C layouts
//! ```
//!
//! Owns every foreign object of this process. Invariants: an object lives as long as anything made from it; memory
//! that the device may touch belongs to a posted request, a window or an exposed region, never to the caller.
//! Never blocks (but for [`CompletionChannel::wait`]), never retries, and decides nothing about calls.

mod adapter;
mod bell;
mod completion;
mod device;
mod error;
mod events;
mod ffi;
mod library;
mod nic;
mod probe;
mod queue_pair;
mod receive_queue;
mod region;
mod router;
mod send_queue;
mod window;
mod work_id;

pub use adapter::VerbsAdapter;
pub use completion::{CompletionChannel, CompletionQueue, WorkCompletion};
pub use device::{Context, DeviceAttributes, Gid, GidKind, OpenError, Port, PortState, best_gid, open_all};
pub use error::{Unavailable, VerbsError, locked_memory_limit};
pub use events::{AsyncEvent, QueuePairEvent};
pub use nic::{NicOptions, VerbsNic};
pub use probe::{DeviceChoice, Located, probe};
pub use queue_pair::{Atomic, Attachments, Initialized, QueuePair, ReadyToReceive, ReadyToSend, Route};
pub use receive_queue::SharedReceiveQueue;
pub use region::{ProtectionDomain, allocate_huge};
pub use window::Window;

//! RDMA verbs through libibverbs, loaded at run time.
//!
//! ```text
//!  probe, adapter, nic what the rest of the crate uses
//!  choice, settings    which device, port and address: plain values, no device
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
mod choice;
mod completion;
mod counters;
mod device;
mod error;
mod events;
mod ffi;
mod gid;
mod interfaces;
mod library;
mod nic;
mod probe;
mod queue_pair;
mod receive_queue;
mod region;
mod router;
mod send_queue;
mod settings;
mod window;
mod work_id;

pub use adapter::VerbsAdapter;
pub use choice::{Chosen, Decision, PortFacts, Refusal, Why, choose, gid_text};
pub use completion::{CompletionChannel, CompletionQueue, WorkCompletion};
pub use counters::{PortCounters, PortCounts};
pub use device::{Context, DeviceAttributes, OpenError, Port, PortState, open_all};
pub use error::{Unavailable, VerbsError, locked_memory_limit};
pub use events::{AsyncEvent, QueuePairEvent};
pub use gid::{Gid, GidKind, best_gid};
pub use nic::{NicOptions, VerbsNic};
pub use probe::{Located, Survey, probe, survey};
pub use queue_pair::{Atomic, Attachments, Initialized, QueuePair, ReadyToReceive, ReadyToSend, Route};
pub use receive_queue::SharedReceiveQueue;
pub use region::{ProtectionDomain, allocate_huge};
pub use settings::{Asked, DEVICE_VARIABLE, DeviceChoice, GID_INDEX_VARIABLE, Origin, Wanted};
pub use window::Window;

//! A device that is not there: [`Adapter`](crate::nic::Adapter) and [`Nic`](crate::nic::Nic) by simulation, with faults,
//! on virtual time.
//!
//! ```text
//!  fabric      the network: time, what is on the wire, every device        schedule  trace
//!  adapter     a handle to one device                                      device    objects
//!  nic         a handle to one completion queue of it                      consumer  completion
//!  requester   the sending end of a connection                             queue_pair  request
//!  responder   the receiving end                                           keys  receive
//!  faults      what can go wrong, by hand or by plan
//! ```
//!
//! **What it is for.** The transport above the trait is tested without a device, in thousands of schedules that are each
//! repeatable from a seed. The suite that runs on a kernel device runs here too, so the simulator is not kinder; where
//! devices differ it does what the standard says, and where the standard leaves a choice, what is harder on its user.
//!
//! **How to use it.** Make a [`Fabric`], and NICs from it, or adapters and NICs from these. Calls of a NIC only hand over; things happen when the fabric
//! is told that time passes:
//!
//! ```
//! use byway_rdma::nic::{Nic, Payload, QueuePairSpec, WorkId};
//! use byway_rdma::sim::{Fabric, FabricOptions, SimNicOptions};
//!
//! let fabric = Fabric::new(FabricOptions { seed: 1, ..FabricOptions::default() });
//! let [mut a, mut b] = [(); 2].map(|()| fabric.nic(&SimNicOptions::default()));
//! let [at_a, at_b] = [&mut a, &mut b].map(|nic| nic.create_queue_pair(&QueuePairSpec::default()).unwrap());
//! a.connect(at_a, &b.endpoint(at_b).unwrap()).unwrap();
//! b.connect(at_b, &a.endpoint(at_a).unwrap()).unwrap();
//!
//! a.post_send(at_a, WorkId(7), Payload::Inline(b"nobody has posted a receive"), None).unwrap();
//! let mut completions = Vec::new();
//! assert_eq!(a.poll(&mut completions, 16).unwrap(), 0);
//! while completions.is_empty() {
//!     assert!(fabric.step());
//!     a.poll(&mut completions, 16).unwrap();
//! }
//! assert_eq!(completions[0].work, WorkId(7));
//! assert!(completions[0].outcome.is_err());
//! ```
//!
//! A driver that is a function of time is run by a loop: [`Fabric::next_at`] and the driver's own timers say how far to
//! [`Fabric::advance_to`]; [`SimNic::has_news`] says whose turn it is. A driver that is a task registers its waker with
//! [`SimNic::set_waker`], arms, polls once more, and sleeps.
//!
//! In real time, within one process, use [`Progress::AtOnce`] with [`Delays::NONE`]: a message has arrived, and its
//! receiver is woken, when the call that posts it returns.
//!
//! **Invariants.** Same seed, same calls, same steps ([`Fabric::trace_hash`] tells). Time moves only when told. Messages of
//! one queue pair are never reordered, those of different ones are. Never a thread, a clock or I/O.

mod adapter;
mod completion;
mod consumer;
mod device;
mod fabric;
mod faults;
mod keys;
mod nic;
mod objects;
mod queue_pair;
mod receive;
mod request;
mod requester;
mod responder;
mod schedule;
mod trace;

pub use adapter::{NicId, SimAdapter, SimNicOptions};
pub use device::Counters;
pub use fabric::{Delays, Fabric, FabricOptions, Progress};
pub use faults::{Fault, FaultPlan};
pub use nic::SimNic;

//! From a network card's receive queue to the core where its datagrams are processed: read, planned, set, checked, undone.
//!
//! Tools that move interrupts are many. What they leave open is whether it stayed so, how to go back, and where the program
//! that receives should sit. This crate goes the whole way and knows nothing of datagrams.
//!
//! Terms, used alike everywhere:
//!
//! - a **queue** is one receive queue of a network interface;
//! - a **core** is what the kernel calls a CPU, by its number;
//! - a **node** is a memory node: the cores and the memory that are near each other;
//! - a **seat** is where one receiver sits: a core and its node; the **seat of a queue** is what a plan gives to it: the
//!   core of its interrupt and the core of its receiver.
//!
//! [`Reader`] reads a host without privileges: [`Topology`], interfaces, queues and their interrupts, each answer with its
//! source or with the reason why there is none. [`plan::Plan`] decides from that alone, without any I/O, and prints as a
//! table. [`Steering`] compares, applies and restores, with what was in a [`Journal`]. The roots of sysfs and procfs, the
//! driver ([`ethtool::Ethtool`]) and the kernel's word on queues ([`Netdev`]) are parameters, so that machines that are not
//! at hand can be described by a test. Beside that, [`place`] deals out cores where there is no interface to plan for, and
//! [`pin_current_thread`] puts a thread onto one.
//!
//! ```
//! use steer::{Netlink, Reader, ethtool::Ioctl, plan::{Plan, Request}};
//!
//! let reader = Reader {
//!     sys_root: "/sys".as_ref(),
//!     proc_root: "/proc".as_ref(),
//!     ethtool: &Ioctl::new()?,
//!     netdev: &Netlink,
//!     busy_polls: &[],
//! };
//! let host = reader.read(&reader.physical_interfaces())?;
//! if let Ok(plan) = Plan::new(&host, &steer::allowed_cores()?, &Request::default()) {
//!     assert_eq!(plan.interfaces.len(), host.interfaces.len());
//!     let table = plan.to_string();
//!     # let _ = table;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apply;
mod corelist;
mod device;
pub mod ethtool;
mod host;
mod interrupts;
mod irqbalance;
mod journal;
pub mod model;
mod names;
mod netdev;
mod place;
pub mod plan;
mod queues;
mod settings;
mod status;
mod sys;
#[cfg(test)]
mod testing;
mod thread;
mod topology;

pub use apply::{ApplyError, Change, Restored, Steering};
pub use corelist::{CoreListError, format_core_list, parse_core_list};
pub use host::{BusyPoll, ReadError, Reader};
pub use irqbalance::{Irqbalance, IrqbalanceError};
pub use journal::{Journal, Saved};
pub use netdev::{Netdev, NetdevQueue, Netlink};
pub use place::{Seat, Seating, place};
pub use queues::receive_queues;
pub use settings::{Setting, SettingError};
pub use status::{Drift, Rival, Rivals};
pub use thread::{allowed_cores, confine_current_thread, pin_current_thread};
pub use topology::Topology;

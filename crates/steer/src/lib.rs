//! Where a receiver belongs: which cores there are, on which memory node each stands, which of them this process may
//! use, and how a thread gets onto one.
//!
//! Terms, used alike everywhere:
//!
//! - a **queue** is one receive queue of a network interface;
//! - a **core** is what the kernel calls a CPU, by its number;
//! - a **node** is a memory node: the cores and the memory that are near each other.
//!
//! The crate reads the tree it is given ([`Topology::read`] takes the root of sysfs), decides without any I/O
//! ([`place`]), and acts on the calling thread only ([`pin_current_thread`], [`confine_current_thread`]). It knows
//! nothing of datagrams and never touches a network interface.
//!
//! ```
//! let topology = steer::Topology::read(std::path::Path::new("/sys"))?;
//! let allowed = steer::allowed_cores()?;
//! let placement = steer::place(1, &allowed, &topology);
//! steer::pin_current_thread(placement.receivers[0].core)?;
//! # Ok::<(), std::io::Error>(())
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
pub use device::{format_mask, parse_mask};
pub use host::{BusyPoll, ReadError, Reader};
pub use irqbalance::{Irqbalance, IrqbalanceError};
pub use journal::{Journal, Saved};
pub use names::{Named, is_known_driver, read_names};
pub use netdev::{Netdev, NetdevQueue, Netlink};
pub use place::{Placement, Seat, place};
pub use queues::{interface_exists, receive_queues};
pub use settings::{Setting, SettingError};
pub use status::{Drift, Rivals, stale_napi};
pub use thread::{allowed_cores, confine_current_thread, pin_current_thread};
pub use topology::Topology;

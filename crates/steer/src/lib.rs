//! From a network card's receive queue to the core where its datagrams are processed: read, planned, set, checked,
//! undone.
//!
//! Tools that move interrupts are many. What they leave open is whether it stayed so, how to go back, and where the
//! program that receives should sit. This crate goes the whole way and knows nothing of datagrams.
//!
//! Terms, used alike everywhere:
//!
//! - a **queue** is one receive queue of a network interface;
//! - a **core** is what the kernel calls a CPU, by its number;
//! - a **node** is a memory node: the cores and the memory that are near each other;
//! - a **seat** is where one receiver sits: a core and its node; the **seat of a queue** is what a plan gives to it:
//!   the core of its interrupt and the core of its receiver.
//!
//! [`Reader`] reads a host without privileges: [`Topology`], interfaces, queues and their interrupts, each answer with
//! its source or with the reason why there is none. [`plan::Plan`] decides from that alone, without any I/O, and prints
//! as a table. [`Steering`] compares, applies and restores, with what was in a [`Journal`]. The roots of sysfs and
//! procfs, the driver ([`ethtool::Ethtool`]) and the kernel's word on queues ([`Netdev`]) are parameters, so that
//! machines that are not at hand can be described by a test. Beside that, [`place`] deals out cores where there is no
//! interface to plan for, and [`pin_current_thread`] puts a thread onto one. What is read of a card and what is written
//! to it, and with which rights, stands in the [README](https://docs.rs/crate/nic-steer).
//!
//! ```
//! use nic_steer::{Netlink, Reader, ethtool::Ioctl, plan::{Plan, Request}};
//!
//! let reader = Reader {
//!     sys_root: "/sys".as_ref(),
//!     proc_root: "/proc".as_ref(),
//!     ethtool: &Ioctl::new()?,
//!     netdev: &Netlink,
//!     busy_polls: &[],
//! };
//! let host = reader.read(&reader.physical_interfaces()?)?;
//! if let Ok(plan) = Plan::new(&host, &nic_steer::allowed_cores()?, &Request::default()) {
//!     assert_eq!(plan.interfaces.len(), host.interfaces.len());
//!     let table = plan.to_string();
//!     # let _ = table;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which file does what
//!
//! In the order of use, with what each asks of the kernel. Every number is in one of the files that name the kernel's
//! headers, beside the name it has there.
//!
//! | file | does | asks the kernel with |
//! |---|---|---|
//! | `host.rs` | reads a host; the only one that asks all of those below | |
//! | `topology.rs` | cores, siblings, caches, memory nodes | `/sys/devices/system/{cpu,node}` |
//! | `device.rs` | one interface and its device | `/sys/class/net/IF`: `ifindex`, `type` (`ARPHRD_LOOPBACK`), `flags` (`IFF_UP`), `device`, `queues`, `threaded` |
//! | `interrupts.rs`, `names.rs` | which interrupt belongs to a queue, by number or by the driver's name for it | `/sys/kernel/irq/N/actions`, `/proc/irq/N/{smp_affinity_list,effective_affinity_list}` |
//! | `netdev.rs` | queues, polling contexts, their interrupts and threads, from Linux 6.8 on | generic netlink: `CTRL_CMD_GETFAMILY`, `NETDEV_CMD_QUEUE_GET`, `NETDEV_CMD_NAPI_GET` |
//! | `ethtool/mod.rs` | the questions to a driver as a trait; the `RXH_` bits of a hash | |
//! | `ethtool/ioctl.rs`, `sys.rs` | the same of the running kernel; the one call that takes a pointer | `SIOCETHTOOL` |
//! | `ethtool/wire.rs` | requests and answers as bytes | `ETHTOOL_GDRVINFO`, `ETHTOOL_[GS]CHANNELS`, `ETHTOOL_[GS]RINGPARAM`, `ETHTOOL_[GS]RSSH`, `ETHTOOL_[GS]RXFHINDIR`, `ETHTOOL_[GS]RXFH`, `ETHTOOL_[GS]COALESCE`, `ETHTOOL_GRXCLSRLCNT`, `ETHTOOL_GRXCLSRULE`, `ETHTOOL_GRXCLSRLALL`, `ETHTOOL_SRXCLSRLINS`, `ETHTOOL_SRXCLSRLDEL` |
//! | `ethtool/command.rs` | what an administrator would type for a change | |
//! | `model.rs` | what was read, as plain data | |
//! | `plan/request.rs`, `plan/mod.rs` | what is asked; what should be | |
//! | `plan/seats.rs`, `plan/balance.rs`, `plan/show.rs` | which cores; how evenly flows will spread; the plan as a table | |
//! | `settings.rs` | one setting, named, read and written | `smp_affinity_list`, `rps_cpus`, `xps_cpus`, and the driver |
//! | `apply.rs`, `journal.rs` | makes changes and takes them back; what was before them, on disk | `CAP_NET_ADMIN` in `/proc/self/status` |
//! | `status.rs`, `irqbalance.rs` | what differs and who did it; a word with irqbalance | `/proc/PID/comm`, irqbalance's socket |
//! | `place.rs`, `queues.rs`, `thread.rs`, `corelist.rs` | cores without a plan, how many queues, pinning, core lists | `sched_setaffinity` |

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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

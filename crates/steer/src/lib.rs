//! Decides which core handles each receive queue of a network card, sets that, checks that it stays so, and undoes it.
//!
//! Many tools move interrupts. They do not check later, they do not put anything back, and they do not say on which
//! core the program that receives should run. This crate does all of it, and knows nothing of datagrams.
//!
//! Terms, with one meaning everywhere:
//!
//! - a **queue** is one receive queue of a network interface;
//! - a **core** is what the kernel calls a CPU, by its number;
//! - a **node** is a memory node: the cores and the memory that are near each other;
//! - a **seat** is where one receiver sits: a core and its node; the **seat of a queue** is what a plan gives to it:
//!   the core of its interrupt and the core of its receiver.
//!
//! [`Reader`] reads a host without privileges: [`Topology`], interfaces, queues and their interrupts, each answer with
//! its source or with the reason why there is none. [`plan::Plan`] decides from that alone, without any I/O, and prints
//! as a table. [`Steering`] compares, applies and restores; a [`Journal`] keeps what was before. The roots of sysfs and
//! procfs, the driver ([`ethtool::Ethtool`]) and what the kernel says of queues ([`Netdev`]) are parameters, so that
//! machines that are not at hand can be described by a test. Beside that, [`place`] deals out cores where there is no
//! interface to plan for, and [`pin_current_thread`] puts a thread onto one. The
//! [README](https://docs.rs/crate/nic-steer) lists what is read of a card, what is written to it, and which rights that
//! takes.
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
//! # The files
//!
//! From the top down; imports run downwards and never back. In brackets stands what each file asks of the kernel. Every
//! number that the kernel defines has its name in the kernel's headers beside it. `unsafe` is in the file marked `!`.
//!
//! - `export`: a plan as files for systemd, udev and the shell (`/sys/class/net/IF/addr_assign_type` for
//!   `NET_ADDR_PERM`)
//! - `status`: what differs from a plan, what could not be read, and what was asked for and cannot be had
//! - `restore`: puts back what was saved
//! - `apply`: makes changes, and saves before; adds rules to those of others (`CAP_NET_ADMIN` in `/proc/self/status`)
//! - `change`: what is reported of a change
//! - `journal/mod`, `journal/folder`: what was before it, on disk; under a lock (`flock`), in files that only root can
//!   have made (`openat` with `O_NOFOLLOW`)
//! - `rivals`: which other programs set what we set (systemd's `.link` files)
//! - `rules`, `setting`: settings read and written (`/proc/irq/N/smp_affinity_list`, `rps_cpus` and `xps_cpus` below
//!   `/sys/class/net/IF/queues`, and the driver); rules added to those of others and removed again
//! - `identity`: which interface it is, and whether it is gone (`/proc/thread-self/ns/net`)
//! - `plan/mod`, `plan/decide`, `plan/flows`: what should be, setting by setting; which queue gets which datagrams and
//!   which send queue a core uses
//! - `plan/reasons`, `plan/seats`: why these cores, in words; which cores
//! - `plan/cores`: the cores that are dealt out, and which is the best for the next
//! - `plan/parts`: what is asked of a plan, what it consists of, and what cannot be
//! - `host`: reads a host; the only file that asks all of those below
//! - `interrupts`: which interrupt belongs to a queue, by number or by the driver's name for it
//!   (`/sys/kernel/irq/N/actions`, `/proc/irq/N/effective_affinity_list`)
//! - `device`: one interface and its device (`/sys/class/net/IF`: `ifindex`, `type` for `ARPHRD_LOOPBACK`, `flags` for
//!   `IFF_UP`, `device`, `queues`, `threaded`)
//! - `netdev`: the interfaces as the kernel lists them (`if_nameindex`, `getifaddrs`), and their queues, polling
//!   contexts, interrupts and threads, from Linux 6.8 on (`NETDEV_CMD_QUEUE_GET`, `NETDEV_CMD_NAPI_GET`)
//! - `statistics`: what interfaces and queues have received and lost (`RTM_GETLINK`, `RTM_GETSTATS`,
//!   `NETDEV_CMD_QSTATS_GET`)
//! - `events`: notifications of the kernel about interfaces (`RTM_NEWLINK`, `RTM_DELLINK`, `ETHTOOL_MSG_*_NTF`)
//! - `model`: what was read, as plain data
//! - `ethtool/mod`, `ethtool/ioctl`: the running kernel's answer for a driver
//! - `sys` `!`: the one call that takes a pointer (`SIOCETHTOOL`)
//! - `ethtool/wire`, `ethtool/command`: requests and answers as bytes (`ETHTOOL_GDRVINFO`, `ETHTOOL_[GS]CHANNELS`,
//!   `ETHTOOL_[GS]RINGPARAM`, `ETHTOOL_[GS]COALESCE`, `ETHTOOL_[GS]RSSH`, `ETHTOOL_[GS]RXFHINDIR`, `ETHTOOL_[GS]RXFH`,
//!   `ETHTOOL_[GS]FEATURES`, `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GSTATS`, `ETHTOOL_GRXCLSRLCNT`,
//!   `ETHTOOL_GRXCLSRLALL`, `ETHTOOL_GRXCLSRULE`, `ETHTOOL_SRXCLSRLINS`, `ETHTOOL_SRXCLSRLDEL`); what an administrator
//!   would type for a change
//! - `ethtool/driver`: the questions to a driver as a trait, the answers as plain data, the `RXH_` bits of a hash
//! - `irqbalance`: finds irqbalance (`/proc/PID/comm`, `/proc/net/unix`), and asks it to leave interrupts alone
//! - `place`: cores without a plan; pinning (`sched_setaffinity`)
//! - `topology`: cores, siblings, caches, memory nodes (`/sys/devices/system/cpu`, `/sys/devices/system/node`)
//! - `corelist`: lists of cores as the kernel writes them

mod apply;
mod change;
mod corelist;
mod device;
pub mod ethtool;
mod events;
mod export;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod host;
mod identity;
mod interrupts;
mod irqbalance;
mod journal;
pub mod model;
mod netdev;
mod place;
pub mod plan;
mod restore;
mod rivals;
mod rules;
mod setting;
mod statistics;
mod status;
mod sys;
#[cfg(test)]
mod testing;
mod topology;

pub use apply::Steering;
pub use change::{ApplyError, ApplyFailure, Change, Restored};
pub use corelist::{CoreListError, format_core_list, parse_core_list};
pub use device::receive_queues;
pub use events::{LinkChange, LinkEvent, LinkEvents};
pub use export::{Export, ExportError};
pub use host::{BusyPoll, ReadError, Reader};
pub use identity::{Identity, Namespace};
pub use irqbalance::{Irqbalance, IrqbalanceError, Presence};
pub use journal::{Entry, Journal, JournalError, LockedJournal, Saved};
pub use netdev::{Link, Netdev, NetdevQueue, Netlink};
pub use place::{
    Seat, Seating, allowed_cores, confine_current_thread, confine_thread, cores_of_thread, pin_current_thread, place,
};
pub use restore::RestoreOptions;
pub use rivals::{Rival, Rivals};
pub use setting::{Setting, SettingError};
pub use statistics::{LinkStatistics, ListedLink, QueueStatistics, Statistics};
pub use status::{Comparison, Drift, Unknown, Verdict};
pub use topology::Topology;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

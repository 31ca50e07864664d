//! Reads a host: interfaces, their queues and interrupts, and the cores where datagrams are processed. Needs no
//! privileges and changes nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, fs, io};

use crate::corelist::parse_core_list;
use crate::device::Device;
use crate::ethtool::{Answer, Ethtool, EthtoolError, Family, FlowHash, NTUPLE, Rules};
use crate::interrupts::Roots;
use crate::model::{Host, Interface, Interrupt, Kind, Known, Queue, SendQueue, Sorting, Work, WorkBy};
use crate::netdev::{Netdev, NetdevQueue};
use crate::topology::{Topology, read_if_any, read_number, try_numbered};

/// Reads a host, and the settings of its interfaces.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// `/sys` on a live machine.
    pub sys_root: &'a Path,
    /// `/proc` on a live machine.
    pub proc_root: &'a Path,
    /// Answers what only a driver knows.
    pub ethtool: &'a dyn Ethtool,
    /// Answers what the kernel knows of queues.
    pub netdev: &'a dyn Netdev,
    /// The queues that a program polls from a core of its own. Only the program itself knows them.
    pub busy_polls: &'a [BusyPoll],
}

/// A queue that a program polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyPoll {
    /// The name of the interface.
    pub interface: String,
    /// The number of the queue, from 0.
    pub queue: usize,
    /// The core that the program polls from.
    pub core: usize,
}

/// Why a host could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such interface.
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names of the interfaces that exist.
        existing: Vec<String>,
    },
    /// A file of sysfs or procfs cannot be read, or does not make sense.
    Tree(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface { name, existing } => {
                write!(formatter, "there is no interface {name}; this host has {}", existing.join(", "))
            }
            Self::Tree(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Tree(error)
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reader").field("sys_root", &self.sys_root).finish_non_exhaustive()
    }
}

impl Reader<'_> {
    /// Reads the machine and these interfaces.
    pub fn read(&self, interfaces: &[String]) -> Result<Host, ReadError> {
        let topology = Topology::read(self.sys_root)?;
        let interfaces = interfaces.iter().map(|name| self.interface(name, &topology)).collect::<Result<_, _>>()?;
        Ok(Host { topology, interfaces })
    }

    /// Reads the rules by which the devices of these interfaces sort.
    pub fn read_sorting(&self, host: &mut Host) {
        for interface in &mut host.interfaces {
            let name = &interface.name;
            interface.sorting = known(self.ethtool.feature(name, NTUPLE).and_then(|ntuple| {
                // Where it is off for good the driver is not asked for rules: some drivers log each such question.
                let is_possible = ntuple.is_on || ntuple.is_changeable;
                let rules = if is_possible { self.ethtool.rules(name)? } else { Rules::default() };
                Ok(Sorting { ntuple, rules })
            }));
        }
    }

    /// The names of all interfaces that have a device of their own, in order.
    pub fn physical_interfaces(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.all_interfaces()? {
            if let Some(device) = Device::find(self.sys_root, &name)?
                && device.kind(None)? == Kind::Physical
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Every interrupt of the device behind an interface, by number and name.
    pub(crate) fn all_interrupts(&self, interface: &str) -> io::Result<Vec<(u32, String)>> {
        let roots = Roots { sys: self.sys_root, proc: self.proc_root };
        Device::find(self.sys_root, interface)?.map_or(Ok(Vec::new()), |device| roots.names(&device))
    }

    /// The send queues of an interface.
    pub(crate) fn send_queues(&self, interface: &str) -> io::Result<Vec<usize>> {
        Device::find(self.sys_root, interface)?.map_or(Ok(Vec::new()), |device| device.send_queues())
    }

    /// The names of all that is where interfaces are, in order.
    pub(crate) fn all_interfaces(&self) -> io::Result<Vec<String>> {
        let folder = self.sys_root.join("class/net");
        let names: io::Result<Vec<String>> = fs::read_dir(&folder).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
        });
        let fail = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot list the interfaces in {}: {error}", folder.display()))
        };
        let mut names = names.map_err(fail)?;
        names.sort();
        Ok(names)
    }

    fn interface(&self, name: &str, topology: &Topology) -> Result<Interface, ReadError> {
        let Some(device) = Device::find(self.sys_root, name)? else {
            return Err(ReadError::NoInterface { name: name.to_owned(), existing: self.all_interfaces()? });
        };
        let index = device.index()?;
        let driver = known(self.ethtool.driver(name));
        let driver_name = match &driver {
            Known::Is(driver) => Some(driver.clone()),
            _ => device.driver()?,
        };
        let kind = device.kind(driver_name.as_deref())?;
        let queues = self.queues(name, &device, driver_name.as_deref(), index, &kind)?;
        // With one node there is nothing to guess. With several, where an interrupt fires today says nothing of the
        // device, and a plan made from it would change once it is applied.
        let nodes: BTreeSet<usize> = topology.node_of_core.values().copied().collect();
        let only_node = || nodes.first().copied().filter(|_| nodes.len() == 1);
        Ok(Interface {
            name: name.to_owned(),
            index,
            members: device.members()?,
            is_up: device.is_up()?,
            node: device.node()?.or_else(only_node),
            channels: known(self.ethtool.channels(name)),
            rings: known(self.ethtool.rings(name)),
            rss: known(self.ethtool.rss(name)),
            flow_hash_v4: known(self.ethtool.flow_hash(name, Family::V4).and_then(FlowHash::expressible)),
            flow_hash_v6: known(self.ethtool.flow_hash(name, Family::V6).and_then(FlowHash::expressible)),
            coalescing: known(self.ethtool.coalescing(name)),
            sorting: Known::Unknown("the driver was not asked".to_owned()),
            send_queues: send_queues(&device)?,
            driver,
            kind,
            queues,
        })
    }

    fn queues(
        &self,
        name: &str,
        device: &Device,
        driver: Option<&str>,
        index: u32,
        kind: &Kind,
    ) -> Result<Vec<Queue>, ReadError> {
        let numbers = device.receive_queues()?;
        // Where the kernel does not answer the names of the interrupts are looked at instead; where those do not tell
        // either, its error is a part of the reason.
        let told = self.netdev.receive_queues(index);
        let interrupts = if matches!(kind, Kind::Physical | Kind::Wireless) {
            let roots = Roots { sys: self.sys_root, proc: self.proc_root };
            roots.interrupts(device, driver, &numbers, &told)?
        } else {
            vec![Known::NotSupported; numbers.len()]
        };
        let kernel = told.unwrap_or_default();
        let threaded = device.is_threaded()?;
        let queue = |(number, interrupt): (usize, Known<Interrupt>)| {
            let told = kernel.iter().find(|told| told.queue as usize == number);
            let rps_cores = device.queue_mask(&format!("rx-{number}"), "rps_cpus")?.unwrap_or_default();
            let is_threaded = told.and_then(|told| told.threaded).unwrap_or(threaded);
            let thread = if is_threaded { self.thread(name, told)? } else { Known::NotSupported };
            let polled = self.busy_polls.iter().find(|poll| poll.interface == name && poll.queue == number);
            let work = work(polled.map(|poll| poll.core), thread, &interrupt, &rps_cores);
            let napi = told.and_then(|told| told.napi);
            Ok(Queue { index: number, interrupt, napi, rps_cores, work })
        };
        numbers.into_iter().zip(interrupts).map(queue).collect()
    }

    /// What lets every program poll the queues of every interface from its own core (`net.core.busy_read`,
    /// `net.core.busy_poll`), by the name of the setting.
    pub(crate) fn busy_polling(&self) -> io::Result<Vec<(&'static str, usize)>> {
        let mut found = Vec::new();
        for name in ["busy_read", "busy_poll"] {
            let microseconds = read_number(&self.proc_root.join("sys/net/core").join(name))?;
            found.extend(microseconds.filter(|&microseconds| microseconds > 0).map(|most| (name, most)));
        }
        Ok(found)
    }

    /// The kernel thread that polls a queue, and the cores it may run on.
    fn thread(&self, interface: &str, told: Option<&NetdevQueue>) -> io::Result<Known<(u32, Vec<usize>)>> {
        // Kernels before 5.17 cut names to 15 bytes, so that those of several queues can be the same.
        let by_name = |napi: u32| -> io::Result<Option<u32>> {
            let name = format!("napi/{interface}-{napi}");
            let cut = &name.as_bytes()[..name.len().min(15)];
            let mut found = Vec::new();
            for pid in try_numbered(self.proc_root, "")? {
                // A process that ends meanwhile, or that is hidden, is not the one.
                let comm = fs::read_to_string(self.proc_root.join(pid.to_string()).join("comm")).unwrap_or_default();
                if [name.as_bytes(), cut].contains(&comm.trim().as_bytes()) {
                    found.extend(u32::try_from(pid));
                }
            }
            Ok(found.first().copied().filter(|_| found.len() == 1))
        };
        let pid = match told {
            Some(NetdevQueue { thread: Some(pid), .. }) => Some(*pid),
            Some(NetdevQueue { napi: Some(napi), .. }) => by_name(*napi)?,
            _ => None,
        };
        let Some(pid) = pid else {
            let why = "kernel threads poll the queues (threaded NAPI), and it is unknown which one polls this queue";
            return Ok(Known::Unknown(why.to_owned()));
        };
        let status = read_if_any(&self.proc_root.join(pid.to_string()).join("status"))?.unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Ok(match list.and_then(|list| parse_core_list(list).ok()) {
            Some(cores) => Known::Is((pid, cores)),
            None => Known::Unknown(format!(
                "the kernel thread {pid} polls the queue (threaded NAPI), and /proc does not say on which cores"
            )),
        })
    }
}

/// Who processes the datagrams of a queue: a program that polls it, else a thread that does, else the interrupt; and
/// then RPS, which hands on what any of the latter two have taken.
fn work(
    polled: Option<usize>,
    thread: Known<(u32, Vec<usize>)>,
    interrupt: &Known<Interrupt>,
    rps: &[usize],
) -> Known<Work> {
    if let Some(core) = polled {
        return Known::Is(Work { by: WorkBy::BusyPoll, cores: vec![core] });
    }
    if !rps.is_empty() {
        return Known::Is(Work { by: WorkBy::Rps, cores: rps.to_vec() });
    }
    match thread {
        Known::Is((pid, cores)) => return Known::Is(Work { by: WorkBy::Thread(pid), cores }),
        Known::Unknown(why) => return Known::Unknown(why),
        Known::NotSupported => {}
    }
    match interrupt {
        Known::Is(interrupt) => Known::Is(Work { by: WorkBy::Interrupt, cores: interrupt.effective.clone() }),
        Known::NotSupported => Known::Unknown(
            "the device has no interrupts: its datagrams are processed where their sender runs".to_owned(),
        ),
        Known::Unknown(reason) => Known::Unknown(reason.clone()),
    }
}

fn send_queues(device: &Device) -> io::Result<Vec<SendQueue>> {
    let queue =
        |index: usize| device.queue_mask(&format!("tx-{index}"), "xps_cpus").map(|cores| SendQueue { index, cores });
    device.send_queues()?.into_iter().map(queue).collect()
}

fn known<T>(answer: Answer<T>) -> Known<T> {
    match answer {
        Ok(value) => Known::Is(value),
        Err(EthtoolError::NotSupported) => Known::NotSupported,
        Err(error) => Known::Unknown(error.to_string()),
    }
}

// Some settings show what was, for a moment. On some machines an interrupt moves only when it fires the next time:
// while it does, `smp_affinity_list` shows what it was before, and until then `effective_affinity_list` shows where it
// still is. The kernel announces neither. So what looks wrong is read again, a bounded number of times, before it is
// reported.

/// How often to look.
pub(crate) const READS: usize = 10;

/// Waits a little until the next look: all of them together take a tenth of a second.
#[cfg(not(test))]
pub(crate) fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(10));
}

#[cfg(test)]
type Meanwhile = (usize, Option<Box<dyn FnMut(usize)>>);

#[cfg(test)]
thread_local! {
    /// What happens while a test's thread waits, instead of time passing: called with the number of pauses before.
    pub(crate) static WHILE_PAUSED: std::cell::RefCell<Meanwhile> =
        const { std::cell::RefCell::new((0, None)) };
}

/// Says what happens while this thread waits.
#[cfg(test)]
pub(crate) fn while_pausing(happens: impl FnMut(usize) + 'static) {
    WHILE_PAUSED.set((0, Some(Box::new(happens))));
}

#[cfg(test)]
pub(crate) fn pause() {
    WHILE_PAUSED.with_borrow_mut(|(pauses, happens)| {
        if let Some(happens) = happens {
            happens(*pauses);
        }
        *pauses += 1;
    });
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;

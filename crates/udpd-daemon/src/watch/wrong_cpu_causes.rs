//! Why the datagrams of a receive queue are handled on another core than planned, and what cures that. Asked for
//! when an alarm is due and not before, because it takes a few dozen small files.
//!
//! The cause decides the words: an interrupt that fires elsewhere, and then what moves interrupts on this host; RPS or
//! a polling thread, which no interrupt can overrule; a core that is off.

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;

use steer::model::{Host, Known, Work, WorkBy};
use steer::{Presence, Rival, Rivals, format_core_list};

use udpd_engine::plan::advice;
use udpd_engine::plan::interfaces::Kernel;

/// What is the case, and what to do; empty where nothing is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub fact: String,
    pub cure: String,
}

/// A queue of an interface that is asked about, and what was read for another queue of it in the same line.
#[derive(Debug, Clone, Default)]
pub struct CauseQuery {
    pub queue: u32,
    found: Rc<OnceCell<Result<(Host, Rivals), String>>>,
}

impl CauseQuery {
    /// The same for this queue, which shares what is read.
    pub fn of(&self, queue: u32) -> Self {
        Self { queue, found: Rc::clone(&self.found) }
    }
}

impl Why {
    pub fn find(interface: &str, asked: CauseQuery, wanted: &[usize], ban_irqbalance: bool) -> Self {
        let read = || {
            let kernel = Kernel::open().map_err(|failure| failure.to_string())?;
            let host = kernel.reader().read(&[interface.to_owned()]).map_err(|error| error.to_string())?;
            Ok((host, Rivals::find(Path::new("/"))))
        };
        match asked.found.get_or_init(read) {
            Ok((host, rivals)) => Self::of(host, asked.queue, wanted, rivals, ban_irqbalance),
            Err(error) => Self::new(format!("why is unknown: {error}"), again(interface)),
        }
    }

    fn new(fact: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { fact: fact.into(), cure: cure.into() }
    }

    /// The same for the first interface of a host that was read.
    fn of(host: &Host, queue: u32, wanted: &[usize], rivals: &Rivals, ban_irqbalance: bool) -> Self {
        let off: Vec<usize> = wanted.iter().copied().filter(|core| !host.topology.online.contains(core)).collect();
        let Some(interface) = host.interfaces.first() else { return Self::new("why is unknown", "") };
        let name = &interface.name;
        if let [core, ..] = off.as_slice() {
            let cure = format!("bring it back (echo 1 > /sys/devices/system/cpu/cpu{core}/online); {}", again(name));
            return Self::new(format!("core {} is off", format_core_list(&off)), cure);
        }
        let Some(found) = interface.queues.iter().find(|found| found.index == queue as usize) else {
            return Self::new("there is no such queue any more", "restart udpd, or give the card its queues back");
        };
        let (by, cores) = match &found.work {
            Known::Is(Work { by, cores }) => (by, cores),
            Known::Unknown(reason) => return Self::new(reason, ""),
            Known::NotSupported => return Self::new("it has no interrupt", ""),
        };
        match by {
            WorkBy::Rps => {
                let cure = format!("`echo 0 > /sys/class/net/{name}/queues/rx-{queue}/rps_cpus` switches RPS off");
                Self::new(Rival::Rps { cores: cores.clone() }.to_string(), cure)
            }
            WorkBy::Thread(pid) => {
                let cure = format!("`echo 0 > /sys/class/net/{name}/threaded` switches threaded NAPI off");
                Self::new(Rival::Thread { pid: *pid, cores: cores.clone() }.to_string(), cure)
            }
            WorkBy::Interrupt => {
                let interrupt = found.interrupt.get();
                let who =
                    interrupt.map_or("its interrupt".to_owned(), |it| format!("interrupt {} {}", it.number, it.name));
                let fires = format!("{who} fires on {}", format_core_list(cores));
                if cores.iter().any(|core| wanted.contains(core)) {
                    return Self::new(format!("{fires} by now, as planned"), "");
                }
                let mover = match &rivals.irqbalance {
                    Presence::Runs(irqbalance) => {
                        advice::of_rival(&Rival::Irqbalance(irqbalance.pid()), ban_irqbalance)
                    }
                    Presence::Absent => "irqbalance does not run: the driver forgot it, or another program \
                                         wrote smp_affinity_list"
                        .to_owned(),
                    Presence::Unknown(reason) => {
                        advice::of_rival(&Rival::PerhapsIrqbalance(reason.clone()), ban_irqbalance)
                    }
                };
                Self::new(fires, format!("{mover}; {}", again(name)))
            }
            _ => Self::new(format!("a program polls the queue on {}", format_core_list(cores)), ""),
        }
    }
}

fn again(interface: &str) -> String {
    format!("`udpd steer apply {interface}` sets it again")
}

#[cfg(test)]
#[path = "wrong_cpu_causes_tests.rs"]
mod tests;

//! Whether a host still is as planned, and who or what has changed it otherwise.
//!
//! Steering is undone silently: irqbalance moves an interrupt minutes later, a driver forgets every affinity when its
//! queues change, a link flap resets a ring. So the comparison names the setting, the value found, the value wanted,
//! and the rival, as far as the host shows one.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::apply::Steering;
use crate::change::{ApplyError, Change};
use crate::model::{Host, Queue};
use crate::plan::Plan;
use crate::settings::Setting;
use crate::topology::numbered;

/// One setting that is not as planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// The setting, what it is (`from`), what it should be (`to`), and the command that sets it.
    pub change: Change,
    /// The number of the queue, when the setting belongs to one.
    pub queue: Option<usize>,
    /// Who is likely to have changed it.
    pub rival: Option<Rival>,
}

impl fmt::Display for Drift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { interface, setting, from, to, .. } = &self.change;
        let queue = self.queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        write!(formatter, "{interface}:{queue} {setting} is {from}, wanted {to}")?;
        if let Some(rival) = &self.rival {
            write!(formatter, "; {rival}")?;
        }
        Ok(())
    }
}

/// Who is likely to have changed a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rival {
    /// irqbalance, which runs as this process. [`Irqbalance::ban`](crate::Irqbalance::ban) keeps it off.
    Irqbalance(u32),
    /// A `.link` file of systemd, which sets it when the interface appears.
    LinkFile {
        /// The path of the file.
        path: String,
        /// The line that sets it.
        line: String,
    },
    /// The driver, or an administrator: the host shows no one else.
    Driver {
        /// When drivers do that.
        habit: &'static str,
    },
}

impl fmt::Display for Rival {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irqbalance(pid) => write!(formatter, "irqbalance runs (process {pid}) and moves interrupts"),
            Self::LinkFile { path, line } => write!(formatter, "{path} sets it when the interface appears ({line})"),
            Self::Driver { habit } => formatter.write_str(habit),
        }
    }
}

/// Who else sets what we set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rivals {
    /// The process id of irqbalance.
    pub irqbalance: Option<u32>,
    /// `.link` files of systemd that set queues, rings or interrupts, with each line that does.
    pub link_files: Vec<(String, String)>,
}

/// Where systemd looks for `.link` files.
const LINK_FOLDERS: [&str; 3] = ["etc/systemd/network", "run/systemd/network", "usr/lib/systemd/network"];

/// The keys of a `.link` file that set what we set.
const LINK_KEYS: [&str; 5] = ["RxChannels", "CombinedChannels", "RxBufferSize", "OtherChannels", IRQ_AFFINITY];

/// The beginning of the keys that set interrupts: `IRQAffinityPolicy`, `IRQAffinity`, `IRQAffinityNUMA`.
const IRQ_AFFINITY: &str = "IRQAffinity";

impl Rivals {
    /// Looks for them below `root`, which is `/` on a live machine.
    pub fn find(root: &Path) -> Self {
        let proc = root.join("proc");
        let is_irqbalance = |pid: &usize| {
            fs::read_to_string(proc.join(format!("{pid}/comm"))).is_ok_and(|name| name.trim() == "irqbalance")
        };
        let irqbalance = numbered(&proc, "").into_iter().find(is_irqbalance).and_then(|pid| u32::try_from(pid).ok());
        let files = LINK_FOLDERS.iter().filter_map(|folder| fs::read_dir(root.join(folder)).ok());
        let link_files = files.flat_map(Iterator::flatten).flat_map(|entry| {
            let path = entry.path();
            let text = fs::read_to_string(&path).ok().filter(|_| path.extension().is_some_and(|kind| kind == "link"));
            let text = text.unwrap_or_default();
            let sets = |line: &&str| LINK_KEYS.iter().any(|key| line.starts_with(key));
            let lines = text.lines().map(str::trim).filter(sets);
            lines.map(|line| (path.display().to_string(), line.to_owned())).collect::<Vec<_>>()
        });
        Self { irqbalance, link_files: link_files.collect() }
    }

    /// The first file that sets one of these keys.
    fn link_file(&self, keys: &[&str]) -> Option<Rival> {
        let sets = |(_, line): &&(String, String)| keys.iter().any(|key| line.starts_with(key));
        let (path, line) = self.link_files.iter().find(sets)?.clone();
        Some(Rival::LinkFile { path, line })
    }

    /// Who is likely to have changed a setting.
    fn of(&self, setting: &Setting) -> Option<Rival> {
        let reset = Rival::Driver { habit: "a reset of the driver changes it, or an administrator did" };
        match setting {
            Setting::Interrupt { .. } => {
                let forgets = "irqbalance does not run: the driver forgets it when its queues, rings or link change, \
                               or somebody wrote it";
                let irqbalance = self.irqbalance.map(Rival::Irqbalance);
                irqbalance.or_else(|| self.link_file(&[IRQ_AFFINITY])).or(Some(Rival::Driver { habit: forgets }))
            }
            Setting::Channels => self.link_file(&["RxChannels", "CombinedChannels", "OtherChannels"]).or(Some(reset)),
            Setting::Rings => self.link_file(&["RxBufferSize"]).or(Some(reset)),
            Setting::Indirection | Setting::HashKey => {
                Some(Rival::Driver { habit: "drivers make a table of their own when the number of queues changes" })
            }
            _ => None,
        }
    }
}

impl Steering<'_> {
    /// Everything that is not as planned. An error when any of it could not be read: that is not "as planned".
    pub fn drift(&self, host: &Host, plan: &Plan, rivals: &Rivals) -> Result<Vec<Drift>, ApplyError> {
        let queue_of = |change: &Change| {
            let interface = host.interfaces.iter().find(|interface| interface.name == change.interface)?;
            match &change.setting {
                Setting::Interrupt { number, .. } => {
                    let is_its =
                        |queue: &&Queue| queue.interrupt.get().is_some_and(|interrupt| interrupt.number == *number);
                    interface.queues.iter().find(is_its).map(|queue| queue.index)
                }
                Setting::Rps(queue) | Setting::Xps(queue) => Some(*queue),
                _ => None,
            }
        };
        let drift = |change: Change| Drift { queue: queue_of(&change), rival: rivals.of(&change.setting), change };
        Ok(self.changes(host, plan)?.into_iter().map(drift).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Reader;
    use crate::plan::Request;
    use crate::testing::Machine;

    fn drift(machine: &Machine, rivals: &Rivals) -> Vec<Drift> {
        let (sys, proc) = (machine.sys(), machine.proc());
        let reader = Reader {
            sys_root: &sys,
            proc_root: &proc,
            ethtool: &machine.ethtool,
            netdev: &machine.netdev,
            busy_polls: &[],
        };
        let (allowed, request) = ([0, 1, 2, 3], Request::default());
        let steering = Steering { reader, allowed: &allowed, request: &request };
        let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        steering.drift(&host, &plan, rivals).expect("every setting is readable")
    }

    #[test]
    fn a_moved_interrupt_is_told_with_its_queue_what_was_found_and_what_is_wanted() {
        let machine = Machine::named("virtio-multi");
        assert_eq!(drift(&machine, &Rivals::default()), []);
        fs::write(machine.proc().join("irq/29/smp_affinity_list"), "0\n").expect("a file");
        let found = drift(&machine, &Rivals { irqbalance: Some(77), ..Rivals::default() });
        let [drift] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(drift.queue, Some(2));
        let text = drift.to_string();
        assert!(
            text.starts_with(
                "eth0: queue 2: interrupt 29 virtio0-input.2 is 0, wanted 2; irqbalance runs (process 77)"
            ),
            "{text}"
        );
    }

    #[test]
    fn rivals_are_found_by_their_process_and_their_files() {
        let machine = Machine::unpack(
            "proc/12/comm = systemd\nproc/345/comm = irqbalance\n\
             etc/systemd/network/10-a.link = [Match]\\nDriver=ixgbe\\n[Link]\\nRxBufferSize=4096\n\
             etc/systemd/network/20-b.link = [Link]\\nMTUBytes=9000\\nIRQAffinityPolicy=spread\n\
             etc/systemd/network/readme.txt = RxBufferSize=1\n",
        );
        let rivals = Rivals::find(machine.root.path());
        assert_eq!(rivals.irqbalance, Some(345));
        let mut lines: Vec<&str> = rivals.link_files.iter().map(|(_, line)| line.as_str()).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["IRQAffinityPolicy=spread", "RxBufferSize=4096"]);
        let of = |rivals: &Rivals, setting| rivals.of(&setting).expect("somebody").to_string();
        assert!(of(&rivals, Setting::Rings).contains("10-a.link"));
        assert!(of(&rivals, Setting::Channels).contains("a reset of the driver"));
        let interrupt = Setting::Interrupt { number: 1, name: String::new() };
        assert_eq!(of(&rivals, interrupt.clone()), "irqbalance runs (process 345) and moves interrupts");
        let without = Rivals { irqbalance: None, ..rivals };
        assert!(of(&without, interrupt).contains("20-b.link"));
    }
}

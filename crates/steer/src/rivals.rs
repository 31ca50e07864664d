//! Which other programs set what we set: irqbalance, `.link` files of systemd, RPS and threaded polling, the driver.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::corelist::format_core_list;
use crate::irqbalance::Irqbalance;
use crate::irqbalance::Presence;
use crate::setting::Setting;

/// What is likely to have changed a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rival {
    /// irqbalance, which runs as this process. [`Irqbalance::ban`](crate::Irqbalance::ban) keeps it off.
    Irqbalance(u32),
    /// Perhaps irqbalance: the reason why it cannot be told whether it runs.
    PerhapsIrqbalance(String),
    /// RPS hands datagrams on to other cores, whatever the interrupt does.
    Rps {
        /// The cores that process them.
        cores: Vec<usize>,
    },
    /// A kernel thread polls the queue (threaded NAPI), whatever the interrupt does.
    Thread {
        /// The process id of the thread.
        pid: u32,
        /// The cores that it may run on.
        cores: Vec<usize>,
    },
    /// The interrupt controller: the interrupt still fires elsewhere than its affinity says.
    Controller,
    /// A `.link` file of systemd, which sets it when the interface appears.
    LinkFile {
        /// The path of the file.
        path: String,
        /// The line that sets it.
        line: String,
    },
    /// The driver, or an administrator: the host shows no other program.
    Driver {
        /// When drivers do that.
        habit: &'static str,
    },
}

impl fmt::Display for Rival {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irqbalance(pid) => write!(formatter, "irqbalance runs (process {pid}) and moves interrupts"),
            Self::PerhapsIrqbalance(why) => write!(formatter, "whether irqbalance runs is unknown: {why}"),
            Self::Rps { cores } => {
                let cores = format_core_list(cores);
                write!(formatter, "RPS hands its datagrams on to the cores {cores}: the interrupt does not decide")
            }
            Self::Thread { pid, cores } => {
                let cores = format_core_list(cores);
                write!(
                    formatter,
                    "threaded NAPI: the kernel thread {pid} polls the queue on the cores {cores}, and the interrupt \
                     does not decide"
                )
            }
            Self::Controller => formatter.write_str(
                "it has fired since and did not move: the interrupt controller does not do what the affinity says",
            ),
            Self::LinkFile { path, line } => write!(formatter, "{path} sets it when the interface appears ({line})"),
            Self::Driver { habit } => formatter.write_str(habit),
        }
    }
}

/// The other programs that set what we set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rivals {
    /// Whether irqbalance runs.
    pub irqbalance: Presence,
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
    /// Looks for these programs below `root`, which is `/` on a live machine.
    pub fn find(root: &Path) -> Self {
        let files = LINK_FOLDERS.iter().filter_map(|folder| fs::read_dir(root.join(folder)).ok());
        let link_files = files.flat_map(Iterator::flatten).flat_map(|entry| {
            let path = entry.path();
            let text = fs::read_to_string(&path).ok().filter(|_| path.extension().is_some_and(|kind| kind == "link"));
            let text = text.unwrap_or_default();
            let sets = |line: &&str| LINK_KEYS.iter().any(|key| line.starts_with(key));
            let lines = text.lines().map(str::trim).filter(sets);
            lines.map(|line| (path.display().to_string(), line.to_owned())).collect::<Vec<_>>()
        });
        Self { irqbalance: Irqbalance::find(root), link_files: link_files.collect() }
    }

    /// The first file that sets one of these keys.
    fn link_file(&self, keys: &[&str]) -> Option<Rival> {
        let sets = |(_, line): &&(String, String)| keys.iter().any(|key| line.starts_with(key));
        let (path, line) = self.link_files.iter().find(sets)?.clone();
        Some(Rival::LinkFile { path, line })
    }

    /// What is likely to have changed a setting.
    pub(crate) fn of(&self, setting: &Setting) -> Option<Rival> {
        let reset = Rival::Driver { habit: "a reset of the driver changes it, or an administrator did" };
        match setting {
            Setting::Interrupt { .. } => {
                let forgets = "irqbalance does not run: the driver forgets it when its queues, rings or link change, \
                               or a program wrote it";
                let irqbalance = match &self.irqbalance {
                    Presence::Runs(irqbalance) => Some(Rival::Irqbalance(irqbalance.pid())),
                    Presence::Unknown(why) => Some(Rival::PerhapsIrqbalance(why.clone())),
                    Presence::Absent => None,
                };
                irqbalance.or_else(|| self.link_file(&[IRQ_AFFINITY])).or(Some(Rival::Driver { habit: forgets }))
            }
            Setting::Channels => self.link_file(&["RxChannels", "CombinedChannels", "OtherChannels"]).or(Some(reset)),
            Setting::Rings => self.link_file(&["RxBufferSize"]).or(Some(reset)),
            Setting::Indirection | Setting::HashKey => {
                Some(Rival::Driver { habit: "drivers make a table of their own when the number of queues changes" })
            }
            Setting::Coalescing | Setting::Ntuple | Setting::Rule { .. } => Some(reset),
            Setting::Xps(_) => {
                let habit =
                    "drivers such as virtio_net write it anew when their queues change or a core goes off or on";
                Some(Rival::Driver { habit })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn rivals_are_found_by_their_process_and_their_files() {
        let machine = Machine::unpack(
            "proc/1/comm = systemd\nproc/345/comm = irqbalance\n\
             etc/systemd/network/10-a.link = [Match]\\nDriver=ixgbe\\n[Link]\\nRxBufferSize=4096\n\
             etc/systemd/network/20-b.link = [Link]\\nMTUBytes=9000\\nIRQAffinityPolicy=spread\n\
             etc/systemd/network/readme.txt = RxBufferSize=1\n",
        );
        let rivals = Rivals::find(machine.root.path());
        assert_eq!(rivals.irqbalance, Presence::Runs(Irqbalance::new(345)));
        let mut lines: Vec<&str> = rivals.link_files.iter().map(|(_, line)| line.as_str()).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["IRQAffinityPolicy=spread", "RxBufferSize=4096"]);
        let of = |rivals: &Rivals, setting| rivals.of(&setting).expect("a rival").to_string();
        assert!(of(&rivals, Setting::Rings).contains("10-a.link"));
        assert!(of(&rivals, Setting::Channels).contains("a reset of the driver"));
        let interrupt = Setting::Interrupt { number: 1, name: String::new() };
        assert_eq!(of(&rivals, interrupt.clone()), "irqbalance runs (process 345) and moves interrupts");
        let without = Rivals { irqbalance: Presence::Absent, ..rivals };
        assert!(of(&without, interrupt).contains("20-b.link"));
    }
}

//! Whether a host still is as planned, and which program or driver has changed it otherwise.
//!
//! Steering is undone silently: irqbalance moves an interrupt minutes later, a driver forgets every affinity when its
//! queues change, a link flap resets a ring. So the comparison names the setting, the value found, the value wanted,
//! and the program that probably changed it. What could not be read is named too, and never called "as planned".

use std::fmt;

use crate::apply::{Steering, setting_of};
use crate::change::Change;
use crate::corelist::format_core_list;
use crate::device::parse_mask;
use crate::ethtool::{Family, FlowHash};
use crate::host::{READS, Reader, pause};
use crate::interrupts::Roots;
use crate::model::{Host, Interface, Known, Queue, WorkBy};
use crate::plan::{Amount, InterfacePlan, Plan, Request, RequestField, Target, Wanted};
use crate::rivals::{Rival, Rivals};
use crate::setting::{Setting, SettingError, is_same};

/// One setting that is not as planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// The setting, what it is (`from`), what it should be (`to`), and the command that sets it.
    pub change: Change,
    /// The number of the queue, when the setting belongs to one.
    pub queue: Option<usize>,
    /// What is likely to have changed it.
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

impl Drift {
    /// False where the plan has no such setting, so that applying it again does not help: its command does.
    pub fn is_set_by_apply(&self) -> bool {
        !matches!(self.rival, Some(Rival::Thread { .. } | Rival::Controller))
    }
}

/// How a host compares with its plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Everything that is not as planned.
    pub drifts: Vec<Drift>,
    /// What could not be read, and what was asked for and cannot be had.
    pub unknown: Vec<Unknown>,
}

/// What a comparison comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was read and is as planned.
    AsPlanned,
    /// Something differs, whatever else could not be read.
    Differs,
    /// Nothing that was read differs, but something could not be read or cannot be had.
    Unknown,
}

impl Comparison {
    /// A difference weighs more than something unknown: it is certain, and it has a cure.
    pub fn verdict(&self) -> Verdict {
        match (self.drifts.as_slice(), self.unknown.as_slice()) {
            ([], []) => Verdict::AsPlanned,
            ([], _) => Verdict::Unknown,
            _ => Verdict::Differs,
        }
    }
}

/// How often an interrupt must fire elsewhere after it was read before it counts as one that does not move.
const FIRINGS: u64 = 3;

impl Steering<'_> {
    /// Compares a host, as it was read, with its plan. Whatever cannot be read is a part of the answer.
    pub fn compare(&self, host: &Host, plan: &Plan, rivals: &Rivals) -> Comparison {
        let mut comparison = Comparison::default();
        for (interface, part) in with_plans(host, plan) {
            comparison.unknown.extend(unknowns(interface, part, self.request));
            comparison.unknown.extend(self.polled_by_anybody(interface));
            for wanted in &part.wanted {
                self.compare_setting(interface, wanted, rivals, &mut comparison);
            }
            for queue in &interface.queues {
                comparison.drifts.extend(self.overridden(interface, part, queue));
            }
        }
        self.look_again(&mut comparison);
        self.look_where_they_fire(host, plan, &mut comparison);
        comparison
    }

    /// The setting that lets every program poll the queues, without any right.
    fn polled_by_anybody(&self, interface: &Interface) -> Vec<Unknown> {
        let unknown = |why: String, cure: String| Unknown::new(&interface.name, None, WHERE_PROCESSED, why, cure);
        match self.reader.busy_polling() {
            Ok(found) => {
                let told = found.into_iter().map(|(name, microseconds)| {
                    let why = format!(
                        "net.core.{name} is {microseconds}: a program that waits for datagrams processes them on its \
                         own core, whatever the interrupt does"
                    );
                    unknown(why, format!("turn it off (`sysctl -w net.core.{name}=0`)"))
                });
                told.collect()
            }
            Err(error) => vec![unknown(error.to_string(), "ask again when the cause is gone".to_owned())],
        }
    }

    fn compare_setting(&self, interface: &Interface, wanted: &Wanted, rivals: &Rivals, comparison: &mut Comparison) {
        let Some((setting, to)) = setting_of(interface, &wanted.target) else { return };
        let queue = match wanted.target {
            Target::Interrupt { queue, .. } | Target::Rps { queue, .. } | Target::Xps { queue, .. } => Some(queue),
            _ => None,
        };
        let name = &interface.name;
        let unknown = |why: String, cure: &str| Unknown::new(name, queue, &setting.to_string(), why, cure);
        match self.reader.get(name, &setting) {
            Ok(from) if is_same(&setting, &from, &to) || self.is_rounded(name, &setting, &from, &to) => {}
            Ok(from) => {
                let rival = rps_found(&setting, &from).or_else(|| rivals.of(&setting));
                let change = self.planned(name, &setting, from, to, wanted);
                comparison.drifts.push(Drift { change, queue, rival });
            }
            // A kernel without RPS has it off, and so has a queue that is not there.
            Err(SettingError::NotSupported | SettingError::Gone(_)) if wanted.target.is_rps_off() => {}
            Err(SettingError::NotSupported) => {
                let why = format!("the plan wants {to}, and neither the host nor the driver has it");
                comparison.unknown.push(unknown(why, "keep it as it is"));
            }
            Err(error) => comparison.unknown.push(unknown(error.to_string(), "ask again when the cause is gone")),
        }
    }

    /// An interrupt that is just moving shows its old cores: it differs only if it still does a little later.
    fn look_again(&self, comparison: &mut Comparison) {
        for _ in 1..READS {
            let moves = |drift: &Drift| matches!(drift.change.setting, Setting::Interrupt { .. });
            if !comparison.drifts.iter().any(moves) {
                return;
            }
            pause();
            comparison.drifts.retain_mut(|drift| {
                let Change { interface, setting, from, to, .. } = &mut drift.change;
                if let (Setting::Interrupt { .. }, Ok(now)) = (&*setting, self.reader.get(interface, setting)) {
                    *from = now;
                }
                !is_same(setting, from, to)
            });
        }
    }

    /// Finds interrupts whose affinity is as planned and that fire elsewhere all the same. One that has not fired since
    /// does not count: it moves when it fires.
    fn look_where_they_fire(&self, host: &Host, plan: &Plan, comparison: &mut Comparison) {
        let mut strays: Vec<StrayInterrupt> = Vec::new();
        for (interface, part) in with_plans(host, plan) {
            for wanted in &part.wanted {
                let Some(stray) = StrayInterrupt::new(interface, wanted) else { continue };
                let is_known =
                    |drift: &Drift| drift.queue == Some(stray.queue) && drift.change.interface == stray.interface;
                if !comparison.drifts.iter().any(is_known) {
                    strays.push(stray);
                }
            }
        }
        let roots = Roots { sys: self.reader.sys_root, proc: self.reader.proc_root };
        for look in 0..READS {
            if strays.is_empty() {
                return;
            }
            if look > 0 {
                pause();
            }
            strays.retain_mut(|stray| match stray.look(&roots) {
                Ok(Fires::Elsewhere) => {
                    comparison.drifts.push(stray.drift(&self.reader));
                    false
                }
                Ok(Fires::Perhaps) => true,
                Ok(Fires::AsPlanned) => false,
                Err(error) => {
                    comparison.unknown.push(stray.unknown(error.to_string()));
                    false
                }
            });
        }
    }

    /// A kernel thread that processes the datagrams of a queue elsewhere, although the interrupt is where the plan
    /// wants it.
    fn overridden(&self, interface: &Interface, part: &InterfacePlan, queue: &Queue) -> Option<Drift> {
        let seat = part.seats.iter().find(|seat| seat.queue == queue.index)?;
        let planned = seat.cores_of_queue();
        let work = queue.work.get()?;
        let WorkBy::Thread(pid) = work.by else { return None };
        if planned.is_empty() || work.cores == planned {
            return None;
        }
        let (setting, from, to) = (Setting::Threaded, "1".to_owned(), "0".to_owned());
        let why = format!("the datagrams should be processed on core {}", format_core_list(planned));
        let command = self.reader.command(&interface.name, &setting, &to);
        let change = Change::planned(&interface.name, &setting, from, to, why, command);
        Some(Drift { change, queue: Some(queue.index), rival: Some(Rival::Thread { pid, cores: work.cores.clone() }) })
    }
}

/// Each interface with its own part of the plan, in whatever order that is.
fn with_plans<'a>(host: &'a Host, plan: &'a Plan) -> impl Iterator<Item = (&'a Interface, &'a InterfacePlan)> {
    let part = |interface: &Interface| plan.interfaces.iter().find(|part| part.name == interface.name);
    host.interfaces.iter().filter_map(move |interface| Some((interface, part(interface)?)))
}

/// RPS itself, where it was found on.
fn rps_found(setting: &Setting, found: &str) -> Option<Rival> {
    let Setting::Rps(_) = setting else { return None };
    parse_mask(found).filter(|cores| !cores.is_empty()).map(|cores| Rival::Rps { cores })
}

/// An interrupt that is told to fire on some cores and that fires on others, as far as was seen.
struct StrayInterrupt {
    interface: String,
    queue: usize,
    number: u32,
    name: String,
    wanted: Vec<usize>,
    why: String,
    effective: Vec<usize>,
    /// How often it had fired at the first look.
    fired: Option<u64>,
}

enum Fires {
    AsPlanned,
    /// It has not fired often enough to say.
    Perhaps,
    Elsewhere,
}

impl StrayInterrupt {
    fn new(interface: &Interface, wanted: &Wanted) -> Option<Self> {
        let Target::Interrupt { queue, cores } = &wanted.target else { return None };
        let interrupt = interface.queues.get(*queue)?.interrupt.get()?;
        let fires_there = interrupt.effective.iter().all(|core| cores.contains(core));
        (!fires_there).then(|| Self {
            interface: interface.name.clone(),
            queue: *queue,
            number: interrupt.number,
            name: interrupt.name.clone(),
            wanted: cores.clone(),
            why: wanted.why.clone(),
            effective: interrupt.effective.clone(),
            fired: None,
        })
    }

    /// The count is read first: if it has grown, the interrupt has fired before the affinity was read.
    fn look(&mut self, roots: &Roots<'_>) -> std::io::Result<Fires> {
        let fired = roots.fired(self.number);
        self.effective = roots.effective(self.number)?;
        if self.effective.iter().all(|core| self.wanted.contains(core)) {
            return Ok(Fires::AsPlanned);
        }
        let fired = fired?;
        let first = *self.fired.get_or_insert(fired);
        Ok(if fired >= first + FIRINGS { Fires::Elsewhere } else { Fires::Perhaps })
    }

    fn setting(&self) -> Setting {
        Setting::Interrupt { number: self.number, name: self.name.clone() }
    }

    fn drift(&self, reader: &Reader<'_>) -> Drift {
        let (setting, to) = (self.setting(), format_core_list(&self.wanted));
        let command = reader.command(&self.interface, &setting, &to);
        let from = format!("{} (its affinity says {to})", format_core_list(&self.effective));
        let change = Change::planned(&self.interface, &setting, from, to, self.why.clone(), command);
        Drift { change, queue: Some(self.queue), rival: Some(Rival::Controller) }
    }

    fn unknown(&self, why: String) -> Unknown {
        let (fires, wanted) = (format_core_list(&self.effective), format_core_list(&self.wanted));
        let why = format!("its affinity says {wanted}, it fires on {fires}, and whether it moves is unknown: {why}");
        let cure = "ask again when datagrams have arrived";
        Unknown::new(&self.interface, Some(self.queue), &self.setting().to_string(), why, cure)
    }
}

// What keeps a host from being "as planned" although no setting differs: what could not be read, and what was asked for
// and cannot be had. Decided from what was read alone, without any I/O.

/// Something that may or may not be as planned, because it could not be read, or that was asked for and cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The name of the interface.
    pub interface: String,
    /// The number of the queue, when it is about one.
    pub queue: Option<usize>,
    /// What is not known, or cannot be had, in a word or two.
    pub what: String,
    /// Why, as a clause that fits behind a colon.
    pub why: String,
    /// What an administrator can do about it.
    pub cure: String,
}

impl Unknown {
    fn new(interface: &str, queue: Option<usize>, what: &str, why: impl Into<String>, cure: impl Into<String>) -> Self {
        let (interface, what) = (interface.to_owned(), what.to_owned());
        Self { interface, queue, what, why: why.into(), cure: cure.into() }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, queue, what, why, cure } = self;
        let queue = queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        write!(formatter, "{interface}:{queue} {what}: {why}; {cure}")
    }
}

/// Everything that is unknown of one interface, or cannot be had.
pub(crate) fn unknowns(interface: &Interface, part: &InterfacePlan, request: &Request) -> Vec<Unknown> {
    let mut found = Unknowns { interface, found: Vec::new() };
    if !interface.is_up {
        let cure = format!("bring it up (`ip link set {} up`), then apply the plan again", interface.name);
        found.add(None, "the link", "the interface is down, and its interrupts appear when it comes up", cure);
    }
    found.of_driver(request);
    found.of_hash(request);
    found.of_coalescing(request);
    found.of_dedicated(part, request);
    for queue in &interface.queues {
        found.of_queue(queue, part);
        found.of_running(queue, request);
    }
    found.found
}

struct Unknowns<'a> {
    interface: &'a Interface,
    found: Vec<Unknown>,
}

const WHERE_PROCESSED: &str = "where its datagrams are processed";
const ASK_AGAIN: &str = "look into the kernel log (`dmesg`) for what the driver says, then ask again";

impl Unknowns<'_> {
    fn add(&mut self, queue: Option<usize>, what: &str, why: impl Into<String>, cure: impl Into<String>) {
        self.found.push(Unknown::new(&self.interface.name, queue, what, why, cure));
    }

    /// What a driver did not tell is unknown whether it was asked for or not; what it does not have counts only
    /// where it was asked for.
    fn of_answer<T>(&mut self, answer: &Known<T>, what: &str, asked: Option<&str>) {
        match (answer, asked) {
            (Known::Unknown(why), _) => self.add(None, what, why.clone(), ASK_AGAIN),
            (Known::NotSupported, Some(asked)) => {
                let why = format!("{asked} and the driver does not support it");
                self.add(None, what, why, "keep it as it is, or take a device whose driver can");
            }
            (Known::NotSupported, None) | (Known::Is(_), _) => {}
        }
    }

    fn of_driver(&mut self, request: &Request) {
        let interface = self.interface;
        let amount = |amount: Amount| match amount {
            Amount::Keep => None,
            Amount::Max => Some("the request asks for the maximum".to_owned()),
            Amount::Number(number) => Some(format!("the request asks for {number}")),
        };
        self.of_answer(&interface.driver, "the driver", None);
        self.of_answer(&interface.channels, "the number of queues", amount(request.rx_queues).as_deref());
        self.of_answer(&interface.rings, "the length of the ring", amount(request.ring).as_deref());
        self.of_answer(&interface.rss, "the indirection table", None);
    }

    fn of_hash(&mut self, request: &Request) {
        let interface = self.interface;
        let families = [(Family::V4, &interface.flow_hash_v4), (Family::V6, &interface.flow_hash_v6)];
        for (family, now) in families {
            let what = format!("the hash of UDP over {family}");
            let asked = request.flow_hash_udp.map(|hash| format!("the request asks for {:?}", hash.letters()));
            self.of_answer(now, &what, asked.as_deref());
            let has_table = interface.rss.get().is_some_and(|rss| !rss.indirection.is_empty());
            if let (Some(asked), Known::Is(FlowHash(0)), false) = (asked, now, has_table) {
                let why = format!("{asked} and the device hashes nothing, because its host gave it no RSS");
                self.add(None, &what, why, "keep it as it is, or let the host give the device RSS");
            }
        }
    }

    fn of_coalescing(&mut self, request: &Request) {
        let interface = self.interface;
        let asked = request.coalesce_usecs().map(|usecs| format!("the request asks for {usecs} us"));
        let what = "the wait before an interrupt";
        self.of_answer(&interface.coalescing, what, asked.as_deref());
        if let (Some(asked), Some(why)) = (asked, interface.why_not_coalesced()) {
            let cure = "keep it as it is, or let the host give the card coalescing";
            self.add(None, what, format!("{asked}, and {why}"), cure);
        }
    }

    /// A queue that was asked for and that the plan goes without: the note about it says why.
    fn of_dedicated(&mut self, part: &InterfacePlan, request: &Request) {
        if part.dedicated.is_empty() && request.dedicated.iter().any(|asked| asked.is_for(&self.interface.name)) {
            let why = part.notes.iter().find(|note| note.fields.contains(&RequestField::Dedicated));
            let why = why.map_or_else(String::new, |note| note.text.clone());
            let cure = "go without it, or take a card whose driver has rules (ntuple) and an indirection table";
            self.add(None, "a queue of its own", why, cure);
        }
    }

    fn of_queue(&mut self, queue: &Queue, part: &InterfacePlan) {
        let number = Some(queue.index);
        if let Known::Unknown(why) = &queue.interrupt {
            let cure = "a kernel from 6.8 on tells it for more drivers; until then it is unknown where it fires";
            self.add(number, "the interrupt", why.clone(), cure);
            return;
        }
        let seat = part.seats.iter().find(|seat| seat.queue == queue.index);
        match (&queue.work, seat) {
            (Known::Unknown(why), _) => {
                let name = &self.interface.name;
                let cure = format!("`echo 0 > /sys/class/net/{name}/threaded` lets the interrupt decide again");
                self.add(number, WHERE_PROCESSED, why.clone(), cure);
            }
            (Known::Is(work), Some(seat)) if work.by == WorkBy::BusyPoll && work.cores != seat.cores_of_queue() => {
                let cores = format_core_list(&work.cores);
                let why = format!("a program polls the queue from core {cores}: the interrupt does not decide");
                let wanted = format_core_list(seat.cores_of_queue());
                let cure = format!("run that program on core {wanted}, or without busy polling");
                self.add(number, WHERE_PROCESSED, why, cure);
            }
            _ => {}
        }
    }
    /// An interrupt that the kernel manages fires where it has it, and a receiver that runs may have been told
    /// otherwise: no setting differs, and the datagrams arrive elsewhere all the same.
    fn of_running(&mut self, queue: &Queue, request: &Request) {
        let seats = request.seated.get(&self.interface.name).into_iter().flatten();
        let Some(seat) = seats.into_iter().find(|seat| seat.queue == queue.index && seat.rps_cores.is_empty()) else {
            return;
        };
        if let (Some(expected), Some(interrupt)) = (seat.interrupt_core, queue.interrupt.get())
            && !interrupt.is_settable
            && !interrupt.effective.contains(&expected)
        {
            let fires = format_core_list(&interrupt.effective);
            let why = format!(
                "the kernel manages its interrupt, which fires on core {fires}, and the running receiver {} expects \
                 its datagrams on core {expected}",
                seat.receiver
            );
            let cure = "restart the program that receives, so that it plans with where the interrupt is";
            self.add(Some(queue.index), WHERE_PROCESSED, why, cure);
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;

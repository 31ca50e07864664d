//! What keeps anybody from saying "as planned" although no setting differs: what could not be read, and what was asked
//! for and cannot be had. Decided from what was read alone, without any I/O.

use std::fmt;

use crate::corelist::format_core_list;
use crate::ethtool::{Family, FlowHash};
use crate::model::{Interface, Known, Queue, WorkBy};
use crate::plan::{Amount, Dedication, InterfacePlan, Request, Wish};

/// Something of which nobody can say whether it is as planned, or that was asked for and cannot be had.
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

impl fmt::Display for Unknown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, queue, what, why, cure } = self;
        let queue = queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        write!(formatter, "{interface}:{queue} {what}: {why}; {cure}")
    }
}

/// Everything of one interface.
pub(crate) fn doubts(interface: &Interface, part: &InterfacePlan, request: &Request) -> Vec<Unknown> {
    let mut found = Doubts { interface, found: Vec::new() };
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

struct Doubts<'a> {
    interface: &'a Interface,
    found: Vec<Unknown>,
}

const ASK_AGAIN: &str = "look into the kernel log (`dmesg`) for what the driver says, then ask again";

impl Doubts<'_> {
    fn add(&mut self, queue: Option<usize>, what: &str, why: impl Into<String>, cure: impl Into<String>) {
        let (interface, what) = (self.interface.name.clone(), what.to_owned());
        self.found.push(Unknown { interface, queue, what, why: why.into(), cure: cure.into() });
    }

    /// What a driver did not tell is unknown whether it was asked for or not; what it does not have is a doubt only
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
        let name = &self.interface.name;
        let is_here = |wish: &Dedication| wish.interface.as_ref().is_none_or(|interface| interface == name);
        if part.dedicated.is_empty() && request.dedicated.iter().any(is_here) {
            let why = part.notes.iter().find(|note| note.wishes.contains(&Wish::Dedicated));
            let why = why.map_or_else(String::new, |note| note.text.clone());
            let cure = "go without it, or take a card whose driver has rules (ntuple) and an indirection table";
            self.add(None, "a queue of its own", why, cure);
        }
    }

    fn of_queue(&mut self, queue: &Queue, part: &InterfacePlan) {
        let number = Some(queue.index);
        if let Known::Unknown(why) = &queue.interrupt {
            let cure = "a kernel from 6.8 on tells it for more drivers; until then nobody can say where it fires";
            self.add(number, "the interrupt", why.clone(), cure);
            return;
        }
        let seat = part.seats.iter().find(|seat| seat.queue == queue.index);
        match (&queue.work, seat) {
            (Known::Unknown(why), _) => {
                let name = &self.interface.name;
                let cure = format!("`echo 0 > /sys/class/net/{name}/threaded` lets the interrupt decide again");
                self.add(number, "where its datagrams are processed", why.clone(), cure);
            }
            (Known::Is(work), Some(seat)) if work.by == WorkBy::BusyPoll && work.cores != seat.cores_of_queue() => {
                let cores = format_core_list(&work.cores);
                let why = format!("a program polls the queue from core {cores}: the interrupt does not decide");
                let wanted = format_core_list(seat.cores_of_queue());
                let cure = format!("run that program on core {wanted}, or without busy polling");
                self.add(number, "where its datagrams are processed", why, cure);
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
            self.add(Some(queue.index), "where its datagrams are processed", why, cure);
        }
    }
}

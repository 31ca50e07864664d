//! The seats of an interface in words: why these cores, and what the operator should know where there are too few.

use std::collections::BTreeSet;

use super::cores::Cores;
use super::parts::Placement;
use super::parts::{Note, RequestField};
use super::parts::{QueueSeat, SpareSeat};
use super::seats::{InterfaceSeats, InterruptOwner, Shortage};
use crate::corelist::format_core_list;

impl InterfaceSeats<'_> {
    /// One seat for each queue.
    pub(super) fn seats(&self, cores: &Cores<'_>) -> Vec<QueueSeat> {
        let seat = |queue: usize| {
            let place = self.receiver_of(queue);
            let core = self.core_of(place);
            QueueSeat {
                queue,
                receiver: self.numbers[place],
                interrupt_core: self.interrupts[queue],
                receiver_core: core,
                receiver_cores: self.cores_of(place, cores),
                rps_cores: self.rps_cores(cores),
                node: cores.topology.node_of_core.get(&core).copied(),
                why: format!("{}; {}", self.because(queue, cores), self.whereabouts(core, cores)),
            }
        };
        (0..self.interrupts.len()).map(seat).collect()
    }

    /// One seat for each receiver that no queue belongs to.
    pub(super) fn spare_seats(&self, cores: &Cores<'_>) -> Vec<SpareSeat> {
        let with: BTreeSet<usize> = (0..self.interrupts.len()).map(|queue| self.receiver_of(queue)).collect();
        let seat = |place: usize| {
            let core = self.core_of(place);
            let is_fed_by_rps = self.rps_cores(cores).contains(&core);
            let because = match (is_fed_by_rps, cores.receivers_on(core), cores.interrupts_on(core)) {
                (false, ..) => "no queue is left for this receiver".to_owned(),
                (true, 2.., _) => "RPS feeds it; no core is left that has no receiver".to_owned(),
                (true, _, 1..) => "RPS feeds it; no core is left but that of an interrupt".to_owned(),
                (true, ..) => "RPS feeds it".to_owned(),
            };
            SpareSeat {
                receiver: self.numbers[place],
                core,
                cores: self.cores_of(place, cores),
                is_fed_by_rps,
                node: cores.topology.node_of_core.get(&core).copied(),
                why: format!("{because}; {}", self.whereabouts(core, cores)),
            }
        };
        (0..self.receivers.len()).filter(|place| !with.contains(place)).map(seat).collect()
    }

    /// The cores to which RPS hands datagrams on; none where the interrupt alone decides. The kernel takes isolated
    /// cores out of every mask of RPS, and refuses a mask of which nothing is left.
    pub(super) fn rps_cores(&self, cores: &Cores<'_>) -> Vec<usize> {
        let all: BTreeSet<usize> = self.receivers.iter().flatten().copied().collect();
        let may_get = |core: &usize| cores.is_online(*core) && !cores.topology.isolated.contains(core);
        all.into_iter().filter(|core| self.is_spread_by_rps && may_get(core)).collect()
    }

    fn core_of(&self, place: usize) -> usize {
        self.receivers[place].expect("every receiver was seated")
    }

    fn cores_of(&self, place: usize, cores: &Cores<'_>) -> Vec<usize> {
        let core = self.core_of(place);
        if let Some(runs) = self.seated.iter().find(|seat| seat.receiver == self.numbers[place]) {
            return runs.receiver_cores.clone();
        }
        match self.placement {
            Placement::Node if self.home.contains(&core) => cores.roaming(&self.home),
            Placement::Node => cores.roaming(&cores.home(cores.topology.node_of_core.get(&core).copied())),
            Placement::Adjacent | Placement::SameCore => vec![core],
        }
    }

    fn because(&self, queue: usize, cores: &Cores<'_>) -> String {
        let place = self.receiver_of(queue);
        let receiver = self.core_of(place);
        let together = match self.interrupts[queue] {
            None => String::new(),
            Some(_) if self.placement == Placement::Node => "the receiver may run on any core of its node".to_owned(),
            Some(core) if core == receiver => "interrupt and receiver share one core".to_owned(),
            Some(core) if cores.topology.are_siblings(core, receiver) => {
                "interrupt and receiver are threads of one physical core".to_owned()
            }
            Some(core) if cores.topology.share_cache(core, receiver) => {
                "interrupt and receiver have a physical core each under one cache".to_owned()
            }
            Some(_) => "interrupt and receiver have a physical core each".to_owned(),
        };
        let interrupt = match &self.owners[queue] {
            InterruptOwner::Own => together,
            InterruptOwner::OfQueue(first) => format!("shares its interrupt with queue {first}; {together}"),
            InterruptOwner::OfAnother(_) => format!("shares its interrupt with another interface; {together}"),
            InterruptOwner::Managed => "the kernel manages the interrupt and keeps it where it is".to_owned(),
            InterruptOwner::Unknown(reason) => reason.clone(),
        };
        let first = (0..queue).find(|&earlier| self.receiver_of(earlier) == place);
        let turn = first.map_or(String::new(), |first| format!("the receiver is that of queue {first}; "));
        let runs = if self.seated.is_empty() { "" } else { "the receiver runs already; " };
        format!("{runs}{turn}{interrupt}")
    }

    fn whereabouts(&self, core: usize, cores: &Cores<'_>) -> String {
        let node_of = |core: &usize| cores.topology.node_of_core.get(core).copied();
        match self.interface.node {
            Some(device) if node_of(&core) == Some(device) => format!("on the device's node {device}"),
            Some(device) if cores.usable().iter().any(|core| node_of(core) == Some(device)) => {
                format!("away from the device's node {device}, which has no core left")
            }
            Some(device) => format!("away from the device's node {device}, which has no core that may be used"),
            None => "the device's node is unknown".to_owned(),
        }
    }

    /// What there was too little of.
    pub(super) fn remarks(&self, cores: &Cores<'_>) -> Vec<Note> {
        let mut notes = self.notes.clone();
        notes.extend(self.shortage_note(cores));
        notes.extend(self.isolated_note(cores));
        let name = &self.interface.name;
        let usable = cores.usable();
        let of_cores = format!("{} core(s) for them ({})", usable.len(), format_core_list(usable));
        if self.interrupts.len() > usable.len() {
            let text = format!(
                "{name} has {} queues and there are {of_cores}: queues share cores in turn",
                self.interrupts.len()
            );
            notes.push(Note { text, fields: vec![RequestField::RxQueues, RequestField::Cores] });
        }
        if self.receivers.len() > usable.len() && self.receivers.len() > self.interrupts.len() {
            let text = format!(
                "{name} feeds {} receivers and there are {of_cores}: receivers share cores",
                self.receivers.len()
            );
            notes.push(Note { text, fields: vec![RequestField::Cores] });
        }
        let own = self.interrupts.iter().zip(&self.owners).filter(|(_, owner)| **owner == InterruptOwner::Own);
        let mut used: BTreeSet<usize> = own.filter_map(|(core, _)| *core).collect();
        used.extend(self.receivers.iter().flatten().filter(|_| self.seated.is_empty()));
        let shared: Vec<usize> = used.into_iter().filter(|&core| cores.is_of_others(core)).collect();
        if !shared.is_empty() {
            let text = format!(
                "others sit on the cores {} already, and no core of {} is left free",
                format_core_list(&shared),
                format_core_list(usable)
            );
            notes.push(Note { text, fields: vec![RequestField::Cores] });
        }
        notes
    }

    /// Receivers that RPS should feed and cannot.
    fn isolated_note(&self, cores: &Cores<'_>) -> Option<Note> {
        let is_isolated = |core: &usize| cores.topology.isolated.contains(core);
        let all: BTreeSet<usize> = self.receivers.iter().flatten().copied().filter(is_isolated).collect();
        if !self.is_spread_by_rps || all.is_empty() {
            return None;
        }
        let all: Vec<usize> = all.into_iter().collect();
        let text = format!(
            "{} needs RPS to feed its receivers, and the kernel lets RPS hand nothing to isolated cores: it brings \
             nothing to the receivers on {}",
            self.interface.name,
            format_core_list(&all)
        );
        Some(Note { text, fields: vec![RequestField::RxQueues, RequestField::Cores] })
    }

    /// Only where the shortage has an effect: a receiver on the physical core of its interrupt.
    fn shortage_note(&self, cores: &Cores<'_>) -> Option<Note> {
        let shortage = self.shortage.as_ref().filter(|_| self.placement == Placement::Adjacent)?;
        let shares = |&queue: &usize| {
            let receiver = self.core_of(self.receiver_of(queue));
            self.interrupts[queue].is_some_and(|core| cores.topology.are_siblings(core, receiver))
        };
        let sharing: Vec<usize> = (0..self.interrupts.len()).filter(shares).collect();
        let whose = match sharing.as_slice() {
            [] => return None,
            all if all.len() == self.interrupts.len() => "each receiver shares the core of its interrupt".to_owned(),
            [queue] => format!("the receiver of queue {queue} shares the core of its interrupt"),
            queues => format!("the receivers of queues {} share the core of their interrupt", format_core_list(queues)),
        };
        let node_of = |core: &usize| cores.topology.node_of_core.get(core).copied();
        let place = match self.interface.node {
            Some(node) if self.home.iter().all(|core| node_of(core) == Some(node)) => format!("node {node} has"),
            _ => "there are".to_owned(),
        };
        let Shortage { needed, free, interfaces } = shortage;
        let text = format!(
            "to keep interrupts and receivers of {} apart takes {needed} free physical cores, and {place} {free}: \
             {whose}",
            interfaces.join(" and ")
        );
        Some(Note { text, fields: vec![RequestField::Placement] })
    }
}

//! Receivers that run already: their seats are taken as they are and interrupts are put to suit, because a receiver
//! expects its datagrams where its program told when it started. What no longer fits is said, and no seat is made up
//! for a receiver that nobody has started.

use super::cores::Cores;
use super::note::{Note, Wish};
use super::party::{Line, Party};
use crate::corelist::format_core_list;

/// What makes a program's receivers fit again.
const CURE: &str = "restart the program that receives, so that it plans anew";

impl Party<'_> {
    /// Gives each receiver the core that it has, and each interrupt that is ours to place the core that is expected.
    pub(super) fn take_seated(&mut self, cores: &mut Cores<'_>) {
        self.numbers = self.seated.iter().map(|seat| seat.receiver).collect();
        self.numbers.sort_unstable();
        self.numbers.dedup();
        let core_of = |number: &usize| {
            self.seated.iter().find(|seat| seat.receiver == *number).map(|seat| cores.add_receiver(seat.receiver_core))
        };
        self.receivers = self.numbers.iter().map(core_of).collect();
        self.is_spread_by_rps = self.seated.iter().any(|seat| !seat.rps_cores.is_empty());
        for queue in 0..self.interrupts.len() {
            if self.lines[queue] == Line::Managed {
                self.say_where_managed(queue);
            }
            if self.lines[queue] != Line::Own {
                continue;
            }
            let number = self.numbers[self.receiver_of(queue)];
            let seat = self.seated.iter().find(|seat| seat.queue == queue);
            let seat = seat.or_else(|| self.seated.iter().find(|seat| seat.receiver == number));
            match seat.and_then(|seat| seat.interrupt_core) {
                Some(core) if cores.is_online(core) => self.interrupts[queue] = Some(cores.add_interrupt(core)),
                Some(core) => self.say(format!(
                    "the running receiver {number} expects the datagrams of queue {queue} on core {core}, which is \
                     off: they arrive on another one until the core is back; or {CURE}"
                )),
                None => {}
            }
        }
        self.say_what_does_not_fit(cores);
    }

    /// An interrupt that stays where the kernel has it fires elsewhere than when its receiver was started.
    fn say_where_managed(&mut self, queue: usize) {
        let Some(seat) = self.seated.iter().find(|seat| seat.queue == queue && seat.rps_cores.is_empty()) else {
            return;
        };
        if let (Some(expected), Some(fires)) = (seat.interrupt_core, self.interrupts[queue])
            && expected != fires
        {
            self.say(format!(
                "the running receiver {} expects the datagrams of queue {queue} on core {expected}, and the kernel, \
                 which manages that interrupt, has it on core {fires}; {CURE}",
                seat.receiver
            ));
        }
    }

    fn say_what_does_not_fit(&mut self, cores: &Cores<'_>) {
        let (queues, started_for) = (self.interrupts.len(), self.seated.len());
        let name = &self.interface.name;
        let mut texts = Vec::new();
        for (number, core) in self.numbers.iter().zip(&self.receivers) {
            if let Some(core) = core.filter(|&core| !cores.is_online(core)) {
                texts.push(format!(
                    "core {core} of the running receiver {number} is off: the receiver runs elsewhere until it is back"
                ));
            }
        }
        let has_queue = |&receiver: &usize| (0..queues).any(|queue| self.receiver_of(queue) == receiver);
        let idle: Vec<usize> = (0..self.numbers.len())
            .filter(|receiver| !has_queue(receiver))
            .map(|receiver| self.numbers[receiver])
            .collect();
        if !idle.is_empty() && !self.is_spread_by_rps {
            texts.push(format!(
                "{name} has {queues} queue(s), and its running receivers were started for {started_for}: the receivers \
                 {} have none; {CURE}",
                format_core_list(&idle)
            ));
        }
        if queues > started_for {
            let new: Vec<usize> = (started_for..queues).collect();
            texts.push(format!(
                "{name} has {queues} queues, and its running receivers were started for {started_for}: they take the \
                 queues {} too, in turn; {CURE}",
                format_core_list(&new)
            ));
        }
        texts.into_iter().for_each(|text| self.say(text));
    }

    fn say(&mut self, text: String) {
        self.notes.push(Note { text, wishes: Vec::<Wish>::new() });
    }
}

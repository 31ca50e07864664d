//! A plan as a table for a person to read before anything is done.

use std::fmt;

use super::parts::{BALANCE_FLOWS, InterfacePlan, Plan, Target};
use crate::corelist::format_core_list;
use crate::ethtool::Rule;

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, interface) in self.interfaces.iter().enumerate() {
            if number > 0 {
                writeln!(formatter)?;
            }
            interface.fmt(formatter)?;
        }
        Ok(())
    }
}

impl fmt::Display for InterfacePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node.map_or("unknown".to_owned(), |node| node.to_string());
        writeln!(formatter, "{}: driver {}, node {node}, queues {}", self.name, self.driver, self.seats.len())?;
        writeln!(formatter, "  queue  interrupt core  receiver core  node  why")?;
        for seat in &self.seats {
            let core = |core: Option<usize>| core.map_or("-".to_owned(), |core| core.to_string());
            writeln!(
                formatter,
                "  {:>5}  {:>14}  {:>13}  {:>4}  {}",
                seat.queue,
                core(seat.interrupt_core),
                format_core_list(&seat.receiver_cores),
                core(seat.node),
                seat.why
            )?;
        }
        for spare in &self.spare_seats {
            let node = spare.node.map_or("-".to_owned(), |node| node.to_string());
            let cores = format_core_list(&spare.cores);
            writeln!(formatter, "  {:>5}  {:>14}  {cores:>13}  {node:>4}  {}", "-", "-", spare.why)?;
        }
        for wanted in self.wanted.iter().filter(|wanted| !wanted.target.is_rps_off()) {
            let cost = wanted.disruption.as_deref().map_or(String::new(), |cost| format!(" [{cost}]"));
            writeln!(formatter, "  wanted: {}, because {}{cost}", wanted.target, wanted.why)?;
        }
        // One line for all of them: on most hosts it is off already.
        if self.wanted.iter().any(|wanted| wanted.target.is_rps_off()) {
            writeln!(
                formatter,
                "  wanted: RPS off, because the interrupts alone decide where datagrams are processed"
            )?;
        }
        for note in &self.notes {
            writeln!(formatter, "  note: {note}")?;
        }
        let share = f64::from(self.busiest_share_thousandths) / 10.0;
        writeln!(
            formatter,
            "  balance: of {BALANCE_FLOWS} equal flows the busiest receiver gets {share:.1} % on average"
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels(channels) if channels.combined_max > 0 => {
                write!(formatter, "combined channels {}", channels.combined)
            }
            Self::Channels(channels) => write!(formatter, "rx channels {}", channels.rx),
            Self::Ring(rings) => write!(formatter, "rx ring {}", rings.rx),
            Self::Indirection(table) => {
                let queues = table.iter().max().map_or(0, |highest| highest + 1);
                write!(formatter, "indirection table of {} entries over {queues} queues", table.len())
            }
            Self::Coalescing(coalescing) => write!(formatter, "an interrupt after {} us", coalescing.rx_usecs),
            Self::Ntuple(on) => write!(formatter, "sorting by rules (ntuple) {}", if *on { "on" } else { "off" }),
            Self::Rule(Rule { family, destination, port, queue }) => {
                let address = destination.map_or(String::new(), |address| format!(" at {address}"));
                write!(formatter, "a rule that sends UDP over {family} to port {port}{address} to queue {queue}")
            }
            Self::FlowHash(family, hash) => write!(formatter, "hash of UDP over {family} {:?}", hash.letters()),
            Self::Interrupt { queue, cores } => {
                write!(formatter, "interrupt of queue {queue} on core {}", format_core_list(cores))
            }
            Self::Rps { queue, cores } if cores.is_empty() => write!(formatter, "RPS of queue {queue} off"),
            Self::Rps { queue, cores } => {
                write!(formatter, "RPS of queue {queue} to cores {}", format_core_list(cores))
            }
            Self::Xps { queue, cores } if cores.is_empty() => {
                write!(formatter, "XPS of send queue {queue} for no core")
            }
            Self::Xps { queue, cores } => {
                let noun = if cores.len() == 1 { "core" } else { "cores" };
                write!(formatter, "XPS of send queue {queue} for {noun} {}", format_core_list(cores))
            }
        }
    }
}

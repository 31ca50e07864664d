//! Which queue gets which datagrams: rules for those that have a queue to themselves, and the indirection table for all
//! the others.
//!
//! A dedicated queue takes a rule that sends its datagrams there, and a table that sends nothing else there. Where
//! either cannot be had, neither is planned, and a note says why. A rule names one queue. Several for one port would
//! take a context of queues of its own in the device, which few drivers have; that is refused, because a second rule
//! for the same datagrams would never match.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::parts::{
    DedicatedQueue, Dedication, InterfacePlan, PlanError, QueueSeat, Request, RequestField, Shares, Target, refuse,
    why_not,
};
use crate::ethtool::{Family, Rule, Rules};
use crate::model::Interface;

impl InterfacePlan {
    /// The highest queues, because a table over the first ones is what every driver and every tool can express.
    pub(super) fn want_dedicated(
        &mut self,
        interface: &Interface,
        queues: usize,
        request: &Request,
    ) -> Result<(), PlanError> {
        let asked = request.dedicated.iter().enumerate().filter(|(_, asked)| asked.is_for(&interface.name));
        let asked: Vec<(usize, &Dedication)> = asked.collect();
        if let Some((_, several)) = asked.iter().find(|(_, asked)| asked.queues != 1) {
            let what = format!("the request asks for {} queues for UDP {}", several.queues, ports(&[(0, several)]));
            let cure = "ask for one: a rule of a network card names one queue, and no context of several is made";
            return Err(refuse(&[RequestField::Dedicated], what, cure));
        }
        if asked.is_empty() {
            return Ok(());
        }
        if let Err(why) = can_dedicate(interface, queues, asked.len()) {
            self.note(&[RequestField::Dedicated], format!("no queue is kept for UDP {}: {why}", ports(&asked)));
            return Ok(());
        }
        let queue_of = |number: usize| queues - 1 - number;
        let mut rules: Vec<Rule> =
            asked.iter().enumerate().flat_map(|(number, (_, asked))| rules_of(asked, queue_of(number))).collect();
        // Of two rules that match, devices obey the one at the lower place, and the last free place is taken first: so
        // a port on every address comes before the same port on one.
        rules.sort_by_key(|rule| (rule.family, rule.destination));
        let there = &interface.sorting.get().expect("it was just looked at").rules;
        if let Some(missing) = missing_places(there, &rules) {
            let text = format!("no queue is kept for UDP {}: {missing}", ports(&asked));
            self.note(&[RequestField::Dedicated], text);
            return Ok(());
        }
        let queue =
            |(number, (place, _)): (usize, &(usize, _))| DedicatedQueue { queue: queue_of(number), dedication: *place };
        self.dedicated = asked.iter().enumerate().map(queue).collect();
        self.want(Target::Ntuple(true), "the device sorts by rules only with this on");
        for rule in rules {
            let why =
                format!("queue {} is kept for UDP port {}: nothing else wakes its receiver", rule.queue, rule.port);
            self.want(Target::Rule(rule), why);
        }
        self.note_other_rules(there);
        Ok(())
    }

    fn note_other_rules(&mut self, there: &Rules) {
        let kept: BTreeSet<usize> = self.dedicated.iter().map(|dedicated| dedicated.queue).collect();
        let wanted: Vec<Rule> = (self.wanted.iter())
            .filter_map(|wanted| if let Target::Rule(rule) = &wanted.target { Some(rule.clone()) } else { None })
            .collect();
        for (place, rule) in &there.taken {
            let Some(rule) = rule else { continue };
            if kept.contains(&(rule.queue as usize)) && !wanted.iter().any(|ours| ours.is_about_the_same(rule)) {
                let text = format!(
                    "the rule at place {place} sends UDP port {} to queue {} too, which is kept for others",
                    rule.port, rule.queue
                );
                self.note(&[], text);
            }
        }
    }

    /// A queue without a share in the table gets nothing, and one with two shares gets double. Dedicated queues have
    /// none.
    pub(super) fn want_table(&mut self, interface: &Interface, queues: usize, request: &Request) {
        let shared = queues - self.dedicated.len();
        let now = interface.rss.get().map(|rss| rss.indirection.as_slice()).unwrap_or_default();
        if now.is_empty() || shared == 0 {
            if queues > 1 {
                let why_not = why_not(&interface.rss, "an indirection table");
                self.note(&[], format!("the spreading of flows over the {queues} queues stays as it is: {why_not}"));
            }
            return;
        }
        let count = u32::try_from(shared).unwrap_or(u32::MAX);
        let stays = request.indirection == Shares::Keep && queues == interface.queues.len();
        if stays && let Some(kept) = without(now, count) {
            let idle: Vec<String> = (0..count).filter(|queue| !kept.contains(queue)).map(|it| it.to_string()).collect();
            if !idle.is_empty() {
                let text = format!("the table gives no flows to the queues {}: their receivers idle", idle.join(", "));
                self.note(&[RequestField::Indirection], text);
            }
            self.want(Target::Indirection(kept), "the request keeps the weights that the table has");
            return;
        }
        let wanted = if is_even(now, count) { now.to_vec() } else { (0..count).cycle().take(now.len()).collect() };
        self.want(Target::Indirection(wanted), format!("each of {count} queues should get its share of the flows"));
    }
}

/// Whether the device can dedicate that many of its queues, as far as it can be seen.
fn can_dedicate(interface: &Interface, queues: usize, asked: usize) -> Result<(), String> {
    let Some(sorting) = interface.sorting.get() else { return Err(why_not(&interface.sorting, "rules (ntuple)")) };
    if !sorting.ntuple.is_on && !sorting.ntuple.is_changeable {
        return Err("the driver keeps its rules (ntuple) turned off".to_owned());
    }
    if interface.rss.get().is_none_or(|rss| rss.indirection.is_empty()) {
        let why_not = why_not(&interface.rss, "an indirection table");
        return Err(format!("all the others cannot be kept off it, because {why_not}"));
    }
    if queues <= asked {
        let all = if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") };
        return Err(format!("the interface has {all}, and one must be left for everything else"));
    }
    Ok(())
}

/// Why the rules that are not there yet do not fit; `None` when they do.
fn missing_places(there: &Rules, wanted: &[Rule]) -> Option<String> {
    let is_there = |rule: &&Rule| there.taken.iter().flat_map(|(_, taken)| taken).any(|it| it.is_about_the_same(rule));
    let new = wanted.len() - wanted.iter().filter(is_there).count();
    match there.free() {
        Some(free) if free < new => {
            let taken = there.taken.len();
            Some(format!("its rules need {new} places in the device, which has {free} left ({taken} are taken)"))
        }
        None if new > 0 && !there.driver_chooses => {
            Some("the driver does not tell how many places for rules the device has".to_owned())
        }
        _ => None,
    }
}

fn rules_of(asked: &Dedication, queue: usize) -> impl Iterator<Item = Rule> {
    let queue = u32::try_from(queue).unwrap_or(u32::MAX);
    asked.destinations.iter().map(move |destination| Rule {
        family: if destination.is_ipv4() { Family::V4 } else { Family::V6 },
        destination: Some(destination.ip()).filter(|address| !address.is_unspecified()),
        port: destination.port(),
        queue,
    })
}

/// "port 514" or "ports 514, 2055".
fn ports(asked: &[(usize, &Dedication)]) -> String {
    let ports = asked.iter().flat_map(|(_, asked)| asked.destinations.iter().map(SocketAddr::port));
    let ports: BTreeSet<u16> = ports.collect();
    let names: Vec<String> = ports.iter().map(u16::to_string).collect();
    format!("{} {}", if names.len() == 1 { "port" } else { "ports" }, names.join(", "))
}

/// The table with its entries for the queues from `count` on dealt out among the others as they share now, so that
/// their weights stay. `None` when none of the others has a share.
fn without(table: &[u32], count: u32) -> Option<Vec<u32>> {
    let shares: Vec<u32> = table.iter().copied().filter(|&queue| queue < count).collect();
    let mut next = shares.iter().copied().cycle();
    table.iter().map(|&queue| if queue < count { Some(queue) } else { next.next() }).collect()
}

/// True when each of the queues, and no other, has its share, give or take one entry.
fn is_even(table: &[u32], queues: u32) -> bool {
    let count = |queue: u32| table.iter().filter(|&&entry| entry == queue).count();
    let share = table.len() / queues.max(1) as usize;
    table.iter().all(|&entry| entry < queues) && (0..queues).all(|queue| (share..=share + 1).contains(&count(queue)))
}

// Which send queue a core uses (XPS): that of its own seat.
//
// What a receiver's core sends, such as a relay or an answer, then leaves through a queue whose lock and whose
// completions no other core has, instead of one that a hash chooses. A core without a seat is in no mask and keeps the
// kernel's hash. Some drivers put every core into some queue's mask (virtio_net, i40e, ice, ixgbe): cores that have a
// seat are taken out of all other masks, because with two queues to choose from the kernel would hash again.

impl InterfacePlan {
    pub(super) fn want_xps(&mut self, interface: &Interface) {
        // With one queue there is nothing to choose, and the kernel has no mask to write.
        if interface.send_queues.len() < 2 {
            return;
        }
        let seated: Vec<usize> = self.seats.iter().flat_map(cores_of).collect();
        for queue in &interface.send_queues {
            let Some(now) = &queue.cores else { continue };
            let cores = self.seats.get(queue.index).map(cores_of).unwrap_or_default();
            let is_seat = !cores.is_empty();
            let why = if is_seat {
                format!("relays and answers of queue {} leave through the queue of their own core", queue.index)
            } else {
                format!("send queue {} has no seat, and cores of seats send through their own", queue.index)
            };
            let others = || now.iter().copied().filter(|core| !seated.contains(core)).collect();
            let cores = if is_seat { cores } else { others() };
            if is_seat || cores != *now {
                self.want(Target::Xps { queue: queue.index, cores }, why);
            }
        }
    }
}

/// The cores of a seat. One whose receiver may run anywhere on a node has no core of its own but the interrupt's, and
/// where the interrupt is unknown the seat is a guess, for which nothing is moved.
fn cores_of(seat: &QueueSeat) -> Vec<usize> {
    let Some(interrupt) = seat.interrupt_core else { return Vec::new() };
    let receiver = Some(seat.receiver_core).filter(|core| seat.receiver_cores == [*core]);
    let mut cores: Vec<usize> = [interrupt].into_iter().chain(receiver).collect();
    cores.sort_unstable();
    cores.dedup();
    cores
}

// How unevenly a hash spreads a few flows over receivers. Four exporters on four receivers do not give each one: flows
// fall on receivers like balls into bins, and the fullest gets more than the average.

/// The share of all flows that the busiest of `receivers` is expected to get of `flows` equal flows.
pub(super) fn busiest_share(flows: usize, receivers: usize) -> f64 {
    if flows == 0 || receivers == 0 {
        return 0.0;
    }
    // The expectation of a count is the sum over m of the chance that it is above m.
    let expected: f64 = (0..flows).map(|most| 1.0 - chance_of_at_most(most, flows, receivers)).sum();
    expected / flows as f64
}

/// A share in thousandths.
pub(super) fn thousandths(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

/// The chance that no receiver gets more than `most` flows. Receiver by receiver: given how many
/// flows are left, the share of the next one is binomial.
fn chance_of_at_most(most: usize, flows: usize, receivers: usize) -> f64 {
    let mut left = vec![0.0; flows + 1];
    left[flows] = 1.0;
    for receiver in 0..receivers {
        let chance = 1.0 / (receivers - receiver) as f64;
        let mut next = vec![0.0; flows + 1];
        for (remaining, weight) in left.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            // The binomial chances of 0, 1, 2 and so on, each from the one before.
            let mut hits = (1.0 - chance).powi(i32::try_from(remaining).unwrap_or(i32::MAX));
            if chance >= 1.0 {
                next[0] += if remaining <= most { *weight } else { 0.0 };
                continue;
            }
            for taken in 0..=most.min(remaining) {
                next[remaining - taken] += weight * hits;
                hits *= (remaining - taken) as f64 / (taken + 1) as f64 * chance / (1.0 - chance);
            }
        }
        left = next;
    }
    left[0].min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn one_receiver_gets_everything_and_one_flow_is_all_of_one_receiver() {
        assert!((busiest_share(64, 1) - 1.0).abs() < 1e-9);
        assert!((busiest_share(1, 8) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn two_flows_on_two_receivers_meet_every_second_time() {
        // Together (a share of 1) or apart (a half), each with a chance of a half.
        assert!((busiest_share(2, 2) - 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_figure_agrees_with_throwing_balls() {
        let mut random = Random::default();
        let rounds = 20_000;
        let mut sum = 0;
        for _ in 0..rounds {
            let mut bins = [0_u32; 4];
            for _ in 0..8 {
                bins[random.below(4)] += 1;
            }
            sum += bins.iter().max().expect("bins");
        }
        let thrown = f64::from(sum) / f64::from(rounds) / 8.0;
        assert!((busiest_share(8, 4) - thrown).abs() < 0.01, "{} and {thrown}", busiest_share(8, 4));
    }
}

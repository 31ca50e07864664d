//! Which queue gets which datagrams: rules for those that have a queue to themselves, and the indirection table for all
//! the others.
//!
//! A queue of one's own takes both halves: a rule that sends the datagrams there, and a table that sends nothing else
//! there. So where either cannot be had, neither is planned, and a note says why. A rule names one queue. Several for
//! one port would take a context of queues of its own in the device, which few drivers have; that is refused, because a
//! second rule for the same datagrams would never match.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::decide::why_not;
use super::note::{PlanError, Wish, refuse};
use super::parts::{DedicatedQueue, InterfacePlan, Target};
use super::request::{Dedication, Request, Shares};
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
        let is_here = |wish: &Dedication| wish.interface.as_ref().is_none_or(|name| *name == interface.name);
        let wishes: Vec<(usize, &Dedication)> =
            request.dedicated.iter().enumerate().filter(|(_, wish)| is_here(wish)).collect();
        if let Some((_, wish)) = wishes.iter().find(|(_, wish)| wish.queues != 1) {
            let what = format!("the request asks for {} queues for UDP {}", wish.queues, ports([*wish]));
            let cure = "ask for one: a rule of a network card names one queue, and no context of several is made";
            return Err(refuse(&[Wish::Dedicated], what, cure));
        }
        if wishes.is_empty() {
            return Ok(());
        }
        if let Err(why) = can_dedicate(interface, queues, wishes.len()) {
            self.note(
                &[Wish::Dedicated],
                format!("no queue is kept for UDP {}: {why}", ports(wishes.iter().map(|(_, wish)| *wish))),
            );
            return Ok(());
        }
        let queue_of = |number: usize| queues - 1 - number;
        let mut rules: Vec<Rule> =
            wishes.iter().enumerate().flat_map(|(number, (_, wish))| rules_of(wish, queue_of(number))).collect();
        // Of two rules that match, devices obey the one at the lower place, and the last free place is taken first: so
        // a port on every address comes before the same port on one.
        rules.sort_by_key(|rule| (rule.family, rule.destination));
        let there = &interface.sorting.get().expect("it was just looked at").rules;
        if let Some(missing) = missing_places(there, &rules) {
            let text = format!("no queue is kept for UDP {}: {missing}", ports(wishes.iter().map(|(_, wish)| *wish)));
            self.note(&[Wish::Dedicated], text);
            return Ok(());
        }
        self.dedicated =
            (wishes.iter().enumerate()).map(|(number, (place, _))| (queue_of(number), *place)).map(dedicated).collect();
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

    /// A queue without a share in the table gets nothing, and one with two shares gets double. Queues that are kept for
    /// somebody have none.
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
                self.note(&[Wish::Indirection], text);
            }
            self.want(Target::Indirection(kept), "the request keeps the weights that the table has");
            return;
        }
        let wanted = if is_even(now, count) { now.to_vec() } else { (0..count).cycle().take(now.len()).collect() };
        self.want(Target::Indirection(wanted), format!("each of {count} queues should get its share of the flows"));
    }
}

/// Whether the device can keep that many of its queues for somebody, as far as it can be seen.
fn can_dedicate(interface: &Interface, queues: usize, wished: usize) -> Result<(), String> {
    let Some(sorting) = interface.sorting.get() else { return Err(why_not(&interface.sorting, "rules (ntuple)")) };
    if !sorting.ntuple.is_on && !sorting.ntuple.is_changeable {
        return Err("the driver keeps its rules (ntuple) turned off".to_owned());
    }
    if interface.rss.get().is_none_or(|rss| rss.indirection.is_empty()) {
        let why_not = why_not(&interface.rss, "an indirection table");
        return Err(format!("all the others cannot be kept off it, because {why_not}"));
    }
    if queues <= wished {
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

fn rules_of(wish: &Dedication, queue: usize) -> impl Iterator<Item = Rule> {
    let queue = u32::try_from(queue).unwrap_or(u32::MAX);
    wish.destinations.iter().map(move |destination| Rule {
        family: if destination.is_ipv4() { Family::V4 } else { Family::V6 },
        destination: Some(destination.ip()).filter(|address| !address.is_unspecified()),
        port: destination.port(),
        queue,
    })
}

fn dedicated((queue, dedication): (usize, usize)) -> DedicatedQueue {
    DedicatedQueue { queue, dedication }
}

/// "port 514" or "ports 514, 2055".
fn ports<'a>(wishes: impl IntoIterator<Item = &'a Dedication>) -> String {
    let ports: BTreeSet<u16> =
        wishes.into_iter().flat_map(|wish| wish.destinations.iter().map(SocketAddr::port)).collect();
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

//! The cores that a plan gives to interrupts and receivers, what each of them has already, and which one is the best
//! for the next interrupt or receiver.
//!
//! Nearness comes first: the **home** of a device are the cores nearest to its memory node. Within it a physical core
//! that is not used yet comes before the second thread of a used one; away from home that comes first of all. Cores of
//! others count as used.

use std::collections::{BTreeMap, BTreeSet};

use super::parts::Request;
use super::parts::{PlanError, RequestField, refuse};
use crate::corelist::format_core_list;
use crate::model::Host;
use crate::topology::Topology;

/// The cores of a host, while interface after interface takes some.
pub(super) struct Cores<'a> {
    pub(super) topology: &'a Topology,
    usable: Vec<usize>,
    /// Where others sit.
    others: BTreeSet<usize>,
    /// How many interrupts are on a core.
    interrupts: BTreeMap<usize, usize>,
    /// How many receivers are on a core.
    receivers: BTreeMap<usize, usize>,
    /// The physical cores of interrupts, of receivers, and of either or of others.
    with_interrupt: BTreeSet<usize>,
    with_receiver: BTreeSet<usize>,
    touched: BTreeSet<usize>,
}

impl<'a> Cores<'a> {
    pub(super) fn new(host: &'a Host, allowed: &[usize], request: &Request) -> Result<Self, PlanError> {
        let topology = &host.topology;
        if let Some(cores) = &request.cores {
            let offline: Vec<usize> = cores.iter().copied().filter(|core| !topology.online.contains(core)).collect();
            if !offline.is_empty() {
                let what = format!("the request names the cores {}, which are not online", format_core_list(&offline));
                let cure = format!("name some of those that are: {}", format_core_list(&topology.online));
                return Err(refuse(&[RequestField::Cores], what, cure));
            }
        }
        let wanted = |core: &usize| request.cores.as_ref().is_none_or(|cores| cores.contains(core));
        let usable: BTreeSet<usize> =
            allowed.iter().copied().filter(|core| topology.online.contains(core)).filter(wanted).collect();
        if usable.is_empty() {
            let may = format_core_list(allowed);
            let what = format!("this process may run on the cores {may}, and the request leaves none of them");
            let cure = "name some of them, or widen the affinity or cpuset that the process starts in";
            return Err(refuse(&[RequestField::Cores], what, cure));
        }
        let mut cores = Self {
            topology,
            usable: usable.into_iter().collect(),
            others: request.taken.iter().copied().collect(),
            interrupts: BTreeMap::new(),
            receivers: BTreeMap::new(),
            with_interrupt: BTreeSet::new(),
            with_receiver: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        cores.touched = request.taken.iter().map(|&core| cores.physical(core)).collect();
        Ok(cores)
    }

    pub(super) fn usable(&self) -> &[usize] {
        &self.usable
    }

    pub(super) fn is_online(&self, core: usize) -> bool {
        self.topology.online.contains(&core)
    }

    pub(super) fn add_interrupt(&mut self, core: usize) -> usize {
        *self.interrupts.entry(core).or_default() += 1;
        self.with_interrupt.insert(self.physical(core));
        self.touched.insert(self.physical(core));
        core
    }

    pub(super) fn add_receiver(&mut self, core: usize) -> usize {
        *self.receivers.entry(core).or_default() += 1;
        self.with_receiver.insert(self.physical(core));
        self.touched.insert(self.physical(core));
        core
    }

    pub(super) fn interrupts_on(&self, core: usize) -> usize {
        self.interrupts.get(&core).copied().unwrap_or(0)
    }

    pub(super) fn receivers_on(&self, core: usize) -> usize {
        self.receivers.get(&core).copied().unwrap_or(0)
    }

    pub(super) fn is_of_others(&self, core: usize) -> bool {
        self.others.contains(&core)
    }

    /// True when nothing lies on this thread.
    pub(super) fn is_free(&self, core: usize) -> bool {
        self.load(core) == 0 && !self.is_of_others(core)
    }

    /// The cores nearest to a node; all where the node or the distance is unknown.
    pub(super) fn home(&self, node: Option<usize>) -> Vec<usize> {
        let nearest = self.usable.iter().map(|&core| self.distance(core, node)).min();
        self.usable.iter().copied().filter(|&core| Some(self.distance(core, node)) == nearest).collect()
    }

    /// One thread of each physical core of a home of which nothing is used, grouped by node and last-level cache.
    pub(super) fn free_physical(&self, home: &[usize]) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut cores = home.to_vec();
        cores.retain(|&core| self.is_untouched(core) && seen.insert(self.physical(core)));
        cores.sort_by_key(|&core| (self.group(core), core));
        cores
    }

    /// Pairs of neighbours under one cache; what is left over under each is paired across caches.
    pub(super) fn pairs(&self, home: &[usize]) -> Vec<(usize, usize)> {
        let (mut pairs, mut odd) = (Vec::new(), Vec::new());
        for group in self.free_physical(home).chunk_by(|&one, &other| self.group(one) == self.group(other)) {
            let chunks = group.chunks_exact(2);
            odd.extend_from_slice(chunks.remainder());
            pairs.extend(chunks.map(|pair| (pair[0], pair[1])));
        }
        pairs.extend(odd.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        pairs
    }

    /// A free thread of a home for an interrupt.
    pub(super) fn free_for_interrupt(&self, home: &[usize]) -> Option<usize> {
        let free = home.iter().copied().filter(|&core| self.is_free(core));
        free.min_by_key(|&core| (!self.is_untouched(core), self.group(core), core))
    }

    /// The physical cores of a home that `interrupts` get when that many `receivers` want a place at home too: as many
    /// as leave these whole physical cores of their own, by their threads. All where that cannot be.
    pub(super) fn for_interrupts(&self, home: &[usize], interrupts: usize, receivers: usize) -> Vec<usize> {
        let first: Vec<usize> = self.free_physical(home).into_iter().map(|core| self.physical(core)).collect();
        let mut threads: BTreeMap<usize, usize> = BTreeMap::new();
        home.iter().for_each(|&core| *threads.entry(self.physical(core)).or_default() += 1);
        let all: usize = first.iter().map(|physical| threads[physical]).sum();
        let mut theirs = 0;
        let mut fits = None;
        for (number, physical) in first.iter().enumerate().take(interrupts) {
            theirs += threads[physical];
            if theirs >= interrupts && all - theirs >= receivers {
                fits = Some(number + 1);
            }
        }
        let theirs: BTreeSet<usize> = first[..fits.unwrap_or(first.len())].iter().copied().collect();
        home.iter().copied().filter(|&core| theirs.contains(&self.physical(core))).collect()
    }

    /// A core for an interrupt that finds no free thread at home: a free one elsewhere, then one of others, then the
    /// one with the least on it.
    pub(super) fn any_for_interrupt(&self, home: &[usize], node: Option<usize>) -> usize {
        let key = |&core: &usize| {
            let far = !home.contains(&core);
            let is_second = !self.is_untouched(core);
            let takes = self.with_receiver.contains(&self.physical(core));
            (self.load(core), self.is_of_others(core), far, is_second, takes, self.distance(core, node), core)
        };
        self.usable.iter().copied().min_by_key(key).expect("a plan has a core")
    }

    /// A free thread of a home for a receiver, on a physical core without an interrupt: the nearest to `interrupt`.
    /// Where that is unknown the highest, because the lowest are where a kernel puts what is not told to be elsewhere.
    pub(super) fn apart_for_receiver(&self, home: &[usize], interrupt: Option<usize>) -> Option<usize> {
        let apart = home.iter().copied().filter(|&core| self.is_free(core) && !self.has_interrupt(core));
        apart.min_by_key(|&core| {
            let is_near = interrupt.is_some_and(|interrupt| self.group(interrupt) == self.group(core));
            let number = if interrupt.is_some() { core } else { usize::MAX - core };
            (!self.is_untouched(core), !is_near, number)
        })
    }

    /// A core for a receiver that finds none at home: a free thread anywhere, without an interrupt on its physical core
    /// if there is one; then a core with interrupts only, then one of others, then the one with the fewest receivers.
    pub(super) fn any_for_receiver(&self, home: &[usize], node: Option<usize>) -> usize {
        let key = |&core: &usize| {
            let class = match (self.receivers_on(core), self.is_of_others(core)) {
                (0, false) if self.interrupts_on(core) > 0 => 2,
                (0, false) => usize::from(self.has_interrupt(core)),
                (0, true) => 3,
                (receivers, _) => 3 + receivers,
            };
            (class, !self.is_untouched(core), !home.contains(&core), self.distance(core, node), core)
        };
        self.usable.iter().copied().min_by_key(key).expect("a plan has a core")
    }

    /// The cores that the scheduler may choose from for a receiver that is bound to a home only. It moves nothing to or
    /// among isolated cores.
    pub(super) fn roaming(&self, home: &[usize]) -> Vec<usize> {
        let own: Vec<usize> = home.iter().copied().filter(|&core| !self.is_of_others(core)).collect();
        let own = if own.is_empty() { home.to_vec() } else { own };
        let shared: Vec<usize> = own.iter().copied().filter(|core| !self.topology.isolated.contains(core)).collect();
        if shared.is_empty() { own } else { shared }
    }

    fn load(&self, core: usize) -> usize {
        self.interrupts_on(core) + self.receivers_on(core)
    }

    fn distance(&self, core: usize, node: Option<usize>) -> u32 {
        node.map_or(0, |node| self.topology.distance(core, node))
    }

    fn physical(&self, core: usize) -> usize {
        self.topology.physical_of_core.get(&core).copied().unwrap_or(core)
    }

    fn group(&self, core: usize) -> (Option<usize>, Option<usize>) {
        let Topology { node_of_core, cache_of_core, .. } = self.topology;
        (node_of_core.get(&core).copied(), cache_of_core.get(&core).copied())
    }

    /// True when no thread of its physical core is used.
    fn is_untouched(&self, core: usize) -> bool {
        !self.touched.contains(&self.physical(core))
    }

    /// True when a thread of its physical core has an interrupt.
    fn has_interrupt(&self, core: usize) -> bool {
        self.with_interrupt.contains(&self.physical(core))
    }
}

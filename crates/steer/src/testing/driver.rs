//! A device that exists only in memory, for tests of what is planned and applied: it keeps what it is told, keeps a
//! list of what it was told in order, and has the manners of the drivers that matter.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::ethtool::{
    Answer, Channels, Coalescing, Ethtool, EthtoolError, Family, Feature, FlowHash, NTUPLE, Rings, Rss, Rule, Rules,
};

/// What the device has; `None` is "not supported".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) driver: Option<String>,
    pub(crate) channels: Option<Channels>,
    pub(crate) rings: Option<Rings>,
    pub(crate) rss: Option<Rss>,
    /// The table was set; otherwise the driver spreads its own over the queues there are.
    pub(crate) table_is_set: bool,
    pub(crate) hash_v4: Option<FlowHash>,
    pub(crate) hash_v6: Option<FlowHash>,
    pub(crate) coalescing: Option<Coalescing>,
    pub(crate) ntuple: Option<Feature>,
    pub(crate) rules: Option<Rules>,
}

/// A value that a test changes while the device is in use, by several threads too.
#[derive(Debug, Default)]
pub(crate) struct Shared<T>(RwLock<T>);

impl<T> Shared<T> {
    pub(crate) fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect("no thread panics while it has this")
    }

    pub(crate) fn borrow_mut(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect("no thread panics while it has this")
    }
}

thread_local! {
    /// What happens on this thread before each question and each setting.
    pub(crate) static STEP: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

fn step() {
    super::faults::step();
    STEP.with_borrow_mut(|step| step.iter_mut().for_each(|step| step()));
}

/// Devices by the name of their interface.
#[derive(Debug, Default)]
pub(crate) struct FakeDevice {
    pub(crate) states: Shared<BTreeMap<String, State>>,
    /// What was set, in order.
    pub(crate) log: Shared<Vec<String>>,
    /// How many settings still succeed before everything fails, as after a kill.
    pub(crate) settings_left: Shared<Option<usize>>,
    /// How many readings still succeed before one fails, once.
    pub(crate) readings_left: Shared<Option<usize>>,
    /// No question is answered, only this error number comes back.
    pub(crate) silent: Shared<Option<i32>>,
    /// The device takes this length instead of the one it is told, as some do.
    pub(crate) rounds_ring_to: Option<u32>,
    /// The kernel refuses a table that names a queue which is not there; its driver's own may.
    pub(crate) refuses_queues_that_are_gone: bool,
    /// The device has no rules for IPv6, and no driver says so before it is told one: ixgbe.
    pub(crate) sorts_ipv4_only: bool,
    /// The device shows a rule that it took as one of another kind.
    pub(crate) shows_rules_as_others: bool,
    /// Rules are there whether the device sorts or not: mlx5.
    pub(crate) keeps_rules_while_off: bool,
    /// The driver is resetting, and does not answer so many questions for its rules.
    pub(crate) busy_questions: Shared<usize>,
    /// The driver answers what its coalescing is and refuses every change: virtio_net of most hosts.
    pub(crate) keeps_coalescing: bool,
    /// Called with the number of queues after it has changed, as a driver makes and removes queues and interrupts.
    pub(crate) follow: Option<Follow>,
}

/// What a driver does when the number of its queues changes.
pub(crate) struct Follow(pub(crate) Box<Following>);

type Following = dyn Fn(&str, u32) + Send + Sync;

impl std::fmt::Debug for Follow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Follow")
    }
}

impl FakeDevice {
    fn read<T>(&self, interface: &str, field: impl FnOnce(&State) -> Option<T>) -> Answer<T> {
        step();
        if let Some(errno) = *self.silent.borrow() {
            return Err(refused("read it", errno));
        }
        let left = self.readings_left.borrow().map(|left| left.checked_sub(1));
        if let Some(left) = left {
            *self.readings_left.borrow_mut() = left;
            if left.is_none() {
                return Err(refused("read it", libc::EIO));
            }
        }
        let states = self.states.borrow();
        field(states.get(interface).ok_or(EthtoolError::NoInterface)?).ok_or(EthtoolError::NotSupported)
    }

    fn set(&self, interface: &str, what: String, change: impl FnOnce(&mut State) -> Option<()>) -> Answer<()> {
        step();
        if let Some(left) = self.settings_left.borrow_mut().as_mut() {
            if *left == 0 {
                return Err(EthtoolError::Failed { operation: what, cause: io::Error::other("the test says no") });
            }
            *left -= 1;
        }
        let mut states = self.states.borrow_mut();
        let state = states.get_mut(interface).ok_or(EthtoolError::NoInterface)?;
        change(state).ok_or(EthtoolError::NotSupported)?;
        self.log.borrow_mut().push(format!("{interface}: {what}"));
        Ok(())
    }
}

fn spread_evenly(entries: usize, queues: u32) -> Vec<u32> {
    (0..queues.max(1)).cycle().take(entries).collect()
}

impl Ethtool for FakeDevice {
    fn driver(&self, interface: &str) -> Answer<String> {
        self.read(interface, |state| state.driver.clone())
    }

    fn channels(&self, interface: &str) -> Answer<Channels> {
        self.read(interface, |state| state.channels)
    }

    fn set_channels(&self, interface: &str, channels: &Channels) -> Answer<()> {
        // The kernel refuses to remove a queue that a table that was set or a rule still names.
        let table = self.read(interface, |state| Some(state.rss.clone().filter(|_| state.table_is_set)))?;
        let table = table.map(|rss| rss.indirection).unwrap_or_default();
        let ruled = self.read(interface, |state| Some(state.rules.clone().unwrap_or_default().taken))?;
        let ruled = ruled.into_iter().filter_map(|(_, rule)| Some(rule?.queue));
        let highest = table.into_iter().chain(ruled).max();
        if highest.is_some_and(|highest| highest >= channels.receiving()) {
            return Err(refused("set the channels", libc::EINVAL));
        }
        self.set(interface, format!("channels rx {} combined {}", channels.rx, channels.combined), |state| {
            let kept = state.channels?;
            let Channels { rx, tx, other, combined, .. } = *channels;
            state.channels = Some(Channels { rx, tx, other, combined, ..kept });
            if let Some(rss) = state.rss.as_mut().filter(|_| !state.table_is_set) {
                rss.indirection = spread_evenly(rss.indirection.len(), channels.receiving());
            }
            Some(())
        })?;
        self.follow.iter().for_each(|follow| follow.0(interface, channels.receiving()));
        Ok(())
    }

    fn rings(&self, interface: &str) -> Answer<Rings> {
        self.read(interface, |state| state.rings)
    }

    fn set_rings(&self, interface: &str, rings: &Rings) -> Answer<()> {
        self.set(interface, format!("rings rx {}", rings.rx), |state| {
            let kept = state.rings.as_mut()?;
            kept.rx = self.rounds_ring_to.unwrap_or(rings.rx);
            kept.tx = rings.tx;
            Some(())
        })
    }

    fn rss(&self, interface: &str) -> Answer<Rss> {
        self.read(interface, |state| state.rss.clone())
    }

    fn set_indirection(&self, interface: &str, table: Option<&[u32]>) -> Answer<()> {
        let queues = self.channels(interface).map_or(u32::MAX, |channels| channels.receiving());
        let is_gone = table.is_some_and(|table| table.iter().any(|&queue| queue >= queues));
        if self.refuses_queues_that_are_gone && is_gone {
            return Err(refused("set the table", libc::EINVAL));
        }
        self.set(interface, format!("indirection {table:?}"), |state| {
            let queues = state.channels.map_or(1, |channels| channels.receiving());
            state.table_is_set = table.is_some();
            let rss = state.rss.as_mut()?;
            rss.indirection = table.map_or_else(|| spread_evenly(rss.indirection.len(), queues), <[u32]>::to_vec);
            Some(())
        })
    }

    fn set_rss_key(&self, interface: &str, key: &[u8]) -> Answer<()> {
        self.set(interface, "key".to_owned(), |state| {
            state.rss.as_mut()?.key = key.to_vec();
            Some(())
        })
    }

    fn flow_hash(&self, interface: &str, family: Family) -> Answer<FlowHash> {
        self.read(interface, |state| if family == Family::V4 { state.hash_v4 } else { state.hash_v6 })
    }

    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()> {
        self.set(interface, format!("hash {family:?} {}", hash.letters()), |state| {
            let field = if family == Family::V4 { &mut state.hash_v4 } else { &mut state.hash_v6 };
            field.as_mut().map(|field| *field = hash)
        })
    }

    fn coalescing(&self, interface: &str) -> Answer<Coalescing> {
        self.read(interface, |state| state.coalescing)
    }

    fn set_coalescing(&self, interface: &str, coalescing: &Coalescing) -> Answer<()> {
        let Coalescing { rx_usecs, rx_frames, adaptive_rx } = *coalescing;
        let now = self.read(interface, |state| state.coalescing)?;
        if adaptive_rx && (rx_usecs, rx_frames) != (now.rx_usecs, now.rx_frames) {
            return Err(refused("set numbers that the driver adapts", libc::EINVAL));
        }
        let what = format!("coalescing {rx_usecs} us {rx_frames} frames adaptive {adaptive_rx}");
        self.set(interface, what, |state| {
            state.coalescing = Some(*coalescing).filter(|_| !self.keeps_coalescing && state.coalescing.is_some());
            state.coalescing.map(drop)
        })
        .inspect_err(|_| self.states.borrow_mut().get_mut(interface).expect("a device").coalescing = Some(now))
    }

    fn feature(&self, interface: &str, name: &str) -> Answer<Feature> {
        self.read(interface, |state| state.ntuple.filter(|_| name == NTUPLE))
    }

    fn set_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()> {
        self.set(interface, format!("{name} {on}"), |state| {
            // A request that a driver cannot follow is no error; one that turns it off drops every rule.
            if state.ntuple?.is_changeable {
                state.ntuple = Some(Feature { is_on: on, is_changeable: true });
                if let Some(rules) = state.rules.as_mut().filter(|_| !on && !self.keeps_rules_while_off) {
                    rules.taken.clear();
                }
            }
            Some(())
        })
    }

    fn rules(&self, interface: &str) -> Answer<Rules> {
        let busy = self.busy_questions.borrow().checked_sub(1);
        if let Some(left) = busy {
            *self.busy_questions.borrow_mut() = left;
            return Err(refused("read the rules", libc::EBUSY));
        }
        self.read(interface, |state| state.rules.clone())
    }

    fn insert_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32> {
        let state = self.read(interface, |state| Some(state.clone()))?;
        let rules = state.rules.ok_or(EthtoolError::NotSupported)?;
        let queues = state.channels.map_or(1, |channels| channels.receiving());
        let is_off = state.ntuple.is_none_or(|ntuple| !ntuple.is_on);
        // A place that a driver gives away itself is none that it can be told, and the other way round.
        if is_off || rule.queue >= queues || place.is_some() == rules.driver_chooses {
            return Err(refused("insert a rule", libc::EINVAL));
        }
        if self.sorts_ipv4_only && rule.family == Family::V6 {
            return Err(EthtoolError::NotSupported);
        }
        let place = place.or_else(|| (0..).find(|place| rules.taken.iter().all(|(taken, _)| taken != place)));
        let place = place.expect("one of four thousand million");
        if rules.places.is_some_and(|places| place >= places || rules.taken.len() >= places as usize) {
            return Err(refused("insert a rule", libc::ENOSPC));
        }
        self.set(interface, format!("rule {place}: {} to queue {}", rule.port, rule.queue), |state| {
            let rules = state.rules.as_mut()?;
            rules.taken.retain(|(taken, _)| *taken != place);
            rules.taken.push((place, Some(rule.clone()).filter(|_| !self.shows_rules_as_others)));
            rules.taken.sort_by_key(|(place, _)| *place);
            Some(())
        })?;
        Ok(place)
    }

    fn delete_rule(&self, interface: &str, place: u32) -> Answer<()> {
        let rules = self.read(interface, |state| state.rules.clone())?;
        if rules.taken.iter().all(|(taken, _)| *taken != place) {
            return Err(refused("delete a rule", libc::ENOENT));
        }
        self.set(interface, format!("no rule {place}"), |state| {
            state.rules.as_mut()?.taken.retain(|(taken, _)| *taken != place);
            Some(())
        })
    }
}

fn refused(operation: &str, errno: i32) -> EthtoolError {
    EthtoolError::Failed { operation: operation.to_owned(), cause: io::Error::from_raw_os_error(errno) }
}

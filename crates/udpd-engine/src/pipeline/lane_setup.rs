//! What a lane is made from: its plan and the settings of its listener, which it shares with the other lanes. All code
//! of a lane reads the keys of the listener here, so that a new key needs no line on the way.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::feeds::feeds;
use crate::config::{Config, ListenerConfig};
use crate::plan::{LanePlan, PipelinePlan};
use udpd_base::sink::settings::SinkTarget;
use udpd_base::text::address;
use udpd_inspect::deduplicate::{Deduplicator, Feed, FeedPlan};
use udpd_inspect::policy::{AccessList, Offences, Unwrapper};
use udpd_inspect::upstream::UpstreamMonitor;

/// What a lane needs before it can make anything, and what another socket for it is made from.
#[derive(Debug, Clone)]
pub struct LaneSetup {
    pub index: usize,
    pub plan: LanePlan,
    pub listener: Arc<ListenerConfig>,
    /// Takes PROXY headers off, where it is behind proxies.
    pub unwrapper: Option<Unwrapper>,
    /// The sources whose datagrams it takes, when not all.
    pub access: Option<Arc<AccessList>>,
    /// The sources that exceed its rate limit, where it has one.
    pub offences: Option<Arc<Offences>>,
    /// Drops the copies of what has come on another side, or before.
    pub deduplicator: Option<Deduplicator>,
    /// Counts what never reached this host, where its listener has a `sequence`.
    pub upstream: Option<UpstreamMonitor>,
    /// It feeds a sink that sends to addresses.
    pub is_relayed: bool,
    /// The log named what this machine does not give its listener when an earlier configuration came into force.
    pub has_warned: bool,
}

/// The addresses that the sinks of a listener send to, by sink. A name is none: it may stand for another one soon.
pub(super) fn destinations<'c>(config: &'c Config, listener: &ListenerConfig) -> Vec<(&'c str, SocketAddr)> {
    let sinks = listener.sinks.iter().map(|&sink| &config.sinks[sink]);
    let peers = sinks.filter_map(|sink| match sink.settings.target() {
        SinkTarget::Peers(peers) => Some((sink.name.as_str(), peers)),
        _ => None,
    });
    let parsed = |peer: String| address::parse_destination(&peer).ok();
    peers
        .flat_map(|(sink, peers)| peers.into_iter().filter_map(move |peer| Some((sink, parsed(peer.to_string())?))))
        .collect()
}

impl LaneSetup {
    /// Those of all lanes of a plan.
    pub(super) fn all(config: &Config, plan: &PipelinePlan) -> Vec<Self> {
        Self::all_with(config, plan, &[])
    }

    /// The same, with those of these feeds that are of the plan too: they go on with what they remember.
    fn all_with(config: &Config, plan: &PipelinePlan, feeds_before: &[Arc<Feed>]) -> Vec<Self> {
        let (feed_of, feeds) = feeds(&config.listeners);
        let feed = |plan: FeedPlan| {
            let known = feeds_before.iter().find(|known| known.plan == plan).cloned();
            known.unwrap_or_else(|| Arc::new(Feed::new(plan)))
        };
        let feeds: Vec<Arc<Feed>> = feeds.into_iter().map(feed).collect();
        let shared = |(index, listener): (usize, &ListenerConfig)| {
            let lanes = plan.lanes.iter().filter(|lane| lane.listener == index).count();
            let upstream = listener
                .sequence
                .map(|sequence| UpstreamMonitor::new(sequence, lanes, listener.reads_drops(), listener.silence));
            let is_relayed = !destinations(config, listener).is_empty();
            let access = listener.access.list.clone();
            (
                Arc::new(listener.clone()),
                Unwrapper::new(&listener.name, &listener.proxies),
                access,
                upstream,
                is_relayed,
            )
        };
        let listeners: Vec<_> = config.listeners.iter().enumerate().map(shared).collect();
        let setup = |(index, plan): (usize, &LanePlan)| {
            let (listener, unwrapper, access, upstream, is_relayed) = listeners[plan.listener].clone();
            let offences = listener.rate_limit.map(|_| Arc::default());
            let feed = feed_of[plan.listener].map(|feed| Arc::clone(&feeds[feed]));
            let deduplicator = feed.map(|feed| Deduplicator::new(feed, &listener.name, plan.address));
            let unwrapper = unwrapper.map(|unwrapper| unwrapper.at(plan.address));
            let (plan, has_warned) = (plan.clone(), false);
            Self { index, plan, listener, unwrapper, access, offences, deduplicator, upstream, is_relayed, has_warned }
        };
        plan.lanes.iter().enumerate().map(setup).collect()
    }

    /// The same when another configuration was in force before.
    pub(super) fn all_after(
        before: &Config,
        feeds_before: &[Arc<Feed>],
        config: &Config,
        plan: &PipelinePlan,
    ) -> Vec<Self> {
        let has_warned = |listener: &ListenerConfig| {
            let asks_for = |listener: &ListenerConfig| (listener.busy_poll, listener.engine, listener.gro);
            let mut known = before.listeners.iter().filter(|known| known.name == listener.name);
            known.any(|known| asks_for(known) == asks_for(listener))
        };
        let mut all = Self::all_with(config, plan, feeds_before);
        all.iter_mut().for_each(|setup| setup.has_warned = has_warned(&setup.listener));
        all
    }

    /// Whether it is the first of its listener.
    pub(super) fn is_first(&self) -> bool {
        self.plan.number == 0
    }

    /// Whether it warns for its listener, once, of what this machine does not give.
    pub(super) fn warns(&self) -> bool {
        self.is_first() && !self.has_warned
    }
}

impl fmt::Display for LaneSetup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "listener {}, lane {}", self.listener.name, self.plan.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_reload_a_listener_warns_of_what_it_lacks_only_when_it_asks_for_something_else() {
        let configuration = |listeners: &[(&str, &str)]| {
            let mut text = String::from("[sink.out]\ntype = \"null\"\n");
            for (number, (name, busy_poll)) in listeners.iter().enumerate() {
                text.push_str(&format!(
                    "[[listener]]\nname = \"{name}\"\naddress = \"127.0.0.1:{}\"\nlanes = 2\nsinks = [\"out\"]\n\
                     busy_poll = \"{busy_poll}\"\n",
                    5140 + number
                ));
            }
            Config::parse(&text, "test.toml", &Default::default()).expect("valid")
        };
        let before = configuration(&[("same", "50us"), ("other", "50us")]);
        let now = configuration(&[("new", "50us"), ("other", "70us"), ("same", "50us")]);
        let plan = crate::plan::make(&now, &Default::default()).expect("a plan");
        let warners = |setups: Vec<LaneSetup>| -> Vec<String> {
            setups.iter().filter(|setup| setup.warns()).map(|setup| setup.listener.name.clone()).collect()
        };
        assert_eq!(warners(LaneSetup::all(&now, &plan)), ["new", "other", "same"], "one lane of each");
        assert_eq!(warners(LaneSetup::all_after(&before, &[], &now, &plan)), ["new", "other"]);
    }
}

//! What the main thread does for the listeners once a second: it logs which sources exceed a rate limit and which other
//! processes are on a port, and repairs what an interface that was removed and added again has broken, or a core that
//! went off.

use std::path::Path;
use std::sync::Arc;

use steer::Topology;

use super::port_sharing::ShareWatch;
use super::rate_limits::OffenceWatch;
use super::thread_cores::{CoreWatch, ThisHost};
use udpd_base::exit::ExitCode;
use udpd_engine::config::{Config, ListenerConfig};
use udpd_engine::pipeline::{Lane, Pipeline};
use udpd_inspect::policy::Offences;
use udpd_sandbox::SandboxMode;

/// Added to a refusal that a start would not have got.
const GIVEN_UP: &str = ", which udpd gave up when it had started (sandbox): restart it, and for the next time lower \
                        net.ipv4.ip_unprivileged_port_start or write sandbox = \"off\"";

#[derive(Debug)]
pub struct ListenerWatch {
    limits: Vec<(Arc<Offences>, OffenceWatch)>,
    ties: Vec<InterfaceTie>,
    sharing: ShareWatch,
    cores: CoreWatch,
    /// The listeners that are to spin, by index, until it is known whether they can.
    spinning: Vec<usize>,
}

/// A listener that depends on an interface.
#[derive(Debug)]
struct InterfaceTie {
    listener: usize,
    name: String,
    interface: String,
    /// The index under which the listener knows it.
    index: u32,
    /// It is bound to it; otherwise it has only joined groups on it.
    bound: bool,
    /// Why an address may be refused that was had at the start, if for one reason.
    given_up: &'static str,
    /// What has been said, so that nothing is said twice.
    said: TieState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TieState {
    Nothing,
    Gone,
    /// It has another name, and is heard all the same.
    Renamed,
    Failed,
}

impl ListenerWatch {
    /// For a pipeline that has just been started.
    pub fn new(config: &Config, pipeline: &Pipeline) -> Self {
        let limits = pipeline.lanes().iter().filter_map(|lane| {
            let limit = lane.setup.listener.rate_limit?;
            let key = format!("rate_limit ({} datagrams/s, burst {})", limit.per_source, limit.burst);
            Some((lane.setup.offences.clone()?, OffenceWatch::new(lane.setup.to_string(), key)))
        });
        let listeners = || config.listeners.iter().enumerate();
        let spinning = listeners().filter(|(_, listener)| !listener.busy_poll.is_zero()).map(|(index, _)| index);
        let mut sharing = ShareWatch::new(config, pipeline);
        sharing.look(pipeline);
        // What cannot be read was logged when the plan was made, and then no lane has a node.
        let topology = Topology::read(Path::new("/sys")).unwrap_or_default();
        let mut allowed = steer::allowed_cores().unwrap_or_default();
        let given_up = if config.daemon.sandbox == SandboxMode::Off { "" } else { GIVEN_UP };
        allowed.retain(|core| config.steer.request.cores.as_ref().is_none_or(|cores| cores.contains(core)));
        Self {
            sharing,
            cores: CoreWatch::new(pipeline.pinned().to_vec(), &allowed, &topology, &ThisHost),
            limits: limits.collect(),
            ties: listeners().flat_map(|(index, listener)| ties(index, listener, pipeline, given_up)).collect(),
            spinning: spinning.collect(),
        }
    }

    /// The same in place of another, whose pipeline has ended: what that has found of a listener that spins as before
    /// is not looked for, and said, again.
    pub fn after(&self, before: &Config, config: &Config, pipeline: &Pipeline) -> Self {
        let mut next = Self::new(config, pipeline);
        next.spinning.retain(|&index| {
            let listener = &config.listeners[index];
            let is_same = |known: &ListenerConfig| known.name == listener.name && known.busy_poll == listener.busy_poll;
            let place = before.listeners.iter().position(is_same);
            place.is_none_or(|place| self.spinning.contains(&place))
        });
        next
    }

    pub fn look(&mut self, pipeline: &Pipeline) {
        for (offences, watch) in &mut self.limits {
            watch.look(offences).iter().for_each(|line| log::warn!("{line}"));
        }
        for tie in &mut self.ties {
            tie.look(pipeline);
        }
        pipeline.follow_interfaces();
        self.sharing.look(pipeline);
        let found = self.cores.look(&ThisHost);
        found.lines.iter().for_each(|line| log::log!(line.level, "{}", line.text));
        found.moved.iter().for_each(|(lane, cores)| pipeline.lanes()[*lane].set_cores(cores));
        self.spinning.retain(|&listener| {
            let idle = pipeline.lanes_of(listener).find(|lane| lane.has_nothing_to_poll());
            if let Some(lane) = idle {
                log::warn!(
                    "listener {}: busy_poll has nothing to poll: its datagrams come from an interface without \
                     receive queues, such as lo, veth or tun, or through a driver without NAPI; write busy_poll = \
                     \"0us\"",
                    lane.setup.listener.name
                );
            }
            idle.is_none()
        });
    }

    /// Which listeners hear nothing of an interface now, and why.
    pub fn deaf(&self) -> Vec<String> {
        let is_deaf = |tie: &&InterfaceTie| matches!(tie.said, TieState::Gone | TieState::Failed);
        let gone = |tie: &InterfaceTie| format!("interface {} of listener {} is gone", tie.interface, tie.name);
        self.ties.iter().filter(is_deaf).map(gone).collect()
    }

    /// When the receivers have ended.
    pub fn end(&mut self) {
        for (offences, watch) in &mut self.limits {
            watch.end(offences).iter().for_each(|line| log::warn!("{line}"));
        }
    }
}

/// The interfaces that a listener depends on.
fn ties(index: usize, listener: &ListenerConfig, pipeline: &Pipeline, given_up: &'static str) -> Vec<InterfaceTie> {
    let tie = |interface: &String, known: Option<u32>, bound| {
        let index_now = known.or_else(|| index_of(interface))?;
        let (name, interface) = (listener.name.clone(), interface.clone());
        Some(InterfaceTie {
            listener: index,
            name,
            interface,
            index: index_now,
            bound,
            given_up,
            said: TieState::Nothing,
        })
    };
    let first = pipeline.lanes_of(index).next().and_then(Lane::bound_interface);
    let bound = listener.interface.as_ref().and_then(|interface| tie(interface, first, true));
    let joined = listener.multicast.interface.as_ref().filter(|_| !listener.multicast.groups.is_empty());
    // New sockets join what the old ones had joined.
    let joined = joined.filter(|interface| listener.interface.as_ref() != Some(interface));
    bound.into_iter().chain(joined.and_then(|interface| tie(interface, None, false))).collect()
}

impl InterfaceTie {
    fn look(&mut self, pipeline: &Pipeline) {
        match index_of(&self.interface) {
            Some(now) if now == self.index && self.said == TieState::Nothing => {}
            Some(now) if now == self.index => {
                log::info!("listener {}: interface {} is back", self.name, self.interface);
                self.said = TieState::Nothing;
            }
            Some(now) => self.restore(pipeline, now),
            None if self.said == TieState::Nothing => {
                self.said = TieState::Gone;
                if let Some(other) = name_of(self.index) {
                    self.said = TieState::Renamed;
                    log::warn!(
                        "listener {}: interface {} is now called {other}; the listener still receives from it, but a \
                         restart would fail: correct the configuration or the name",
                        self.name,
                        self.interface
                    );
                    return;
                }
                let what = if self.bound {
                    "receives nothing until it is back"
                } else {
                    "receives no multicast from it until it is back"
                };
                log::warn!("listener {}: interface {} is gone; the listener {what}", self.name, self.interface);
            }
            None => {}
        }
    }

    /// The interface is there, but not the one that the listener knows.
    fn restore(&mut self, pipeline: &Pipeline, now: u32) {
        let outcome = match self.bound {
            true => pipeline.replace_sockets(self.listener).map_err(|failure| match failure.code {
                ExitCode::Permission => format!("{failure}{}", self.given_up),
                _ => failure.to_string(),
            }),
            false => pipeline.rejoin(self.listener, self.index, now),
        };
        match outcome {
            Ok(()) => {
                let done = if self.bound {
                    "udpd bound its sockets to it again"
                } else {
                    "udpd joined its groups on it again"
                };
                log::info!("listener {}: interface {} is back; {done}", self.name, self.interface);
                (self.index, self.said) = (now, TieState::Nothing);
            }
            Err(why) if self.said != TieState::Failed => {
                self.said = TieState::Failed;
                log::warn!(
                    "listener {}: interface {} is back but unusable: {why}; udpd tries again every second; until \
                     then the listener receives nothing from it",
                    self.name,
                    self.interface
                );
            }
            Err(_) => {}
        }
    }
}

/// The index of an interface, in the network namespace of this process.
fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

/// What the interface with this index is called now.
fn name_of(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?.to_string_lossy().into_owned();
    // nix takes the kernel's "there is none" for an empty name.
    (!name.is_empty()).then_some(name)
}

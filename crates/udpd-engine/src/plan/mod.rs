//! What a configuration means on this machine, worked out before anything is opened: lanes, consumers, cores, memory
//! and buffers. `udpd check` prints it, `udpd run` and the bench build it. All of them ask [`make`], so they see the
//! same numbers.

pub mod advice;
pub mod buffers;
pub mod descriptors;
pub mod engine;
pub mod interfaces;
mod kernel_limits;
mod lane;
mod loss_on_kill;
pub mod machine;
#[cfg(test)]
mod made_up_machines_tests;
pub mod memory;
pub mod memory_limits;
pub mod neighbours;
pub mod pool;
pub mod remarks;
mod seating;
pub mod spread;
#[cfg(test)]
mod testing;
pub mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mmsg::Uring;

use self::engine::EngineChoice;
pub use self::interfaces::Interfaces;
use self::kernel_limits::LockableMemory;
pub use self::lane::{LanePlan, charge_bytes};
pub use self::loss_on_kill::Held;
use self::machine::MachineCores;
use self::memory::MemoryPlan;
use self::memory_limits::MemoryLimits;
use self::pool::PoolPlan;
pub use self::seating::PlacementInput;
use self::seating::{LanePlacement, Placements};
use self::spread::Intake;
use crate::config::feeders::{Feeder, LaneFeeds};
use crate::config::feeds::feeds;
use crate::config::{Config, ListenerConfig, SinkConfig, Spread, overlap};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::sink::settings::SinkTarget;
use udpd_endpoint::control::{NeighbourSearch, Neighbours, default_paths};
use udpd_inspect::deduplicate::FeedPlan;
use udpd_inspect::policy::AccessList;

/// The daemons that run on this host, except the one behind the socket `except`.
pub fn neighbours(except: Option<&Path>) -> Neighbours {
    let usual = default_paths();
    NeighbourSearch { named: &[], usual: &usual, except, proc_root: Path::new("/proc") }.ask()
}

/// Reads the machine and works out what the configuration means on it, beside these daemons.
pub fn make(config: &Config, neighbours: &Neighbours) -> Result<PipelinePlan, Failure> {
    let (MachineCores { topology, allowed, assumed }, queues) = read_machine(config)?;
    let mut interfaces = Interfaces { queues, ..Interfaces::default() };
    if assumed.is_empty() {
        let input = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
        let feeders = input.feeders(config);
        interfaces = Interfaces::read(&config.steer, &feeders, interfaces.queues.clone(), &allowed, neighbours);
    }
    let engines: Vec<EngineChoice> =
        config.listeners.iter().map(|listener| engine::choose(listener, Uring::supported)).collect::<Result<_, _>>()?;
    let limits = MemoryLimits::read(Path::new("/"));
    let input = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
    let mut plan = PipelinePlan::new(config, &input, &engines, limits.automatic_pool_bytes())?;
    plan.fit_locked(&limits.pinned);
    plan.remarks = assumed;
    plan.remarks.append(&mut plan.interfaces.remarks);
    plan.remarks.extend(remarks::lanes_of_cores(config, &input));
    plan.remarks.extend(remarks::queues_not_kept(config, &input));
    plan.remarks.extend(xdp::short_of_absorb(config, &plan.lanes));
    plan.remarks.extend(limits.judge(config, &plan)?);
    refuse_idle_lanes(config, &plan, allowed.len())?;
    Ok(plan)
}

/// How many receivers each interface feeds that a listener is bound to.
pub fn receivers(config: &Config) -> Result<BTreeMap<String, usize>, Failure> {
    let (MachineCores { topology, allowed, .. }, queues) = read_machine(config)?;
    let interfaces = Interfaces { queues, ..Interfaces::default() };
    let input = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
    Ok(interfaces::receivers(&input.feeders(config), &config.steer, &interfaces.queues))
}

/// The machine with the cores that udpd may use, and how many receive queues each interface of a listener has.
fn read_machine(config: &Config) -> Result<(MachineCores, BTreeMap<String, usize>), Failure> {
    let sys_root = Path::new("/sys");
    let mut machine = MachineCores::read(sys_root);
    if let Some(cores) = &config.steer.request.cores {
        machine.allowed.retain(|core| cores.contains(core));
        if machine.allowed.is_empty() {
            let message = format!(
                "[steer] cpus = \"{}\": this process may run on none of them; widen cpus, or the affinity or cpuset \
                 it starts in",
                steer::format_core_list(cores)
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
    }
    let names = config.listeners.iter().filter_map(|listener| listener.interface.clone());
    let queues = names.filter_map(|name| steer::receive_queues(sys_root, &name).map(|queues| (name, queues))).collect();
    Ok((machine, queues))
}

/// A core feeds one lane, so with more lanes than cores some lanes would never receive anything.
fn refuse_idle_lanes(config: &Config, plan: &PipelinePlan, cores: usize) -> Result<(), Failure> {
    let Some(lane) = plan.idle_lanes(config, Spread::Cpu).next() else { return Ok(()) };
    let message = format!(
        "listener {}: spread = \"cpu\" on {cores} cores leaves lane {} without a core: each core feeds one lane of \
         an address; lower lanes to {cores} or less, widen [steer] cpus, or write spread = \"flow\"",
        config.listeners[lane.listener].name, lane.number
    );
    Err(Failure::new(ExitCode::Configuration, message))
}

/// One sink as it will be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkPlan {
    /// How many consumers it has; 0 where no listener names it.
    pub consumers: usize,
    /// Whether it runs on the receivers of the lanes that feed it, without threads and without a queue.
    pub is_inline: bool,
    /// How many threads look up host names for its consumers.
    pub lookup_threads: usize,
    /// The lanes that feed it, in order.
    pub feeders: Vec<Feeder>,
}

impl SinkPlan {
    /// How many threads its consumers have.
    pub fn threads(&self) -> usize {
        let own = if self.is_inline { 0 } else { self.consumers };
        own + self.lookup_threads
    }

    /// Every file that is written where its lanes and consumers fill in `path`, with the codes for the time still in
    /// it.
    pub fn files(&self, listeners: &[ListenerConfig], sink: &str, path: &str) -> BTreeSet<String> {
        self.feeders.iter().map(|lane| lane.file(listeners, sink, path)).collect()
    }
}

/// A configuration worked out for this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelinePlan {
    /// Every lane, in the order of the listeners.
    pub lanes: Vec<LanePlan>,
    /// By index of the sink in the configuration.
    pub sinks: Vec<SinkPlan>,
    /// The memory for datagrams.
    pub pool: PoolPlan,
    /// Where consumers may run.
    pub consumer_cores: Vec<usize>,
    /// The most memory of all sinks, for records and messages under way.
    pub sink_bytes: usize,
    /// The most memory of the thread that compresses files; 0 where there is none.
    pub compression_bytes: usize,
    /// The memory of the lists of networks.
    pub list_bytes: usize,
    /// The memory of the feeds whose copies are dropped.
    pub deduplicate_bytes: usize,
    /// True when receivers share cores.
    pub shared_cores: bool,
    /// The memory node of each core, as far as the machine tells.
    pub node_of_core: BTreeMap<usize, usize>,
    /// The interfaces that it was made for.
    pub interfaces: Interfaces,
    /// Warnings about this plan on this machine.
    pub remarks: Vec<String>,
}

impl PipelinePlan {
    /// `engines` has one for each listener. The pool has `automatic_bytes` unless the configuration says how many.
    pub fn new(
        config: &Config,
        input: &PlacementInput<'_>,
        engines: &[EngineChoice],
        automatic_bytes: usize,
    ) -> Result<Self, Failure> {
        let PlacementInput { topology, interfaces, .. } = *input;
        let feeders = input.feeders(config);
        let Placements { lanes: places, consumer_cores, shared } = seating::seat(config, &feeders, input);
        let mut lanes = Vec::new();
        for (index, places) in places.iter().enumerate() {
            lanes.extend(lanes_of(index, places, config, &feeders, input, &engines[index], automatic_bytes));
        }
        let interfaces = Interfaces { lane_cores: lane_cores(config, interfaces, &lanes), ..interfaces.clone() };
        let node_of_core = topology.node_of_core.clone();
        let sinks = sink_plans(config, &feeders);
        let bytes_of = |(sink, plan)| sink_bytes(&config.listeners, sink, plan);
        let sink_bytes = config.sinks.iter().zip(&sinks).map(bytes_of).sum();
        let pool = pool::lay_out(config, &sinks, &mut lanes, automatic_bytes)?;
        Ok(Self {
            lanes,
            sinks,
            pool,
            consumer_cores,
            sink_bytes,
            compression_bytes: compression_bytes(config),
            list_bytes: list_bytes(config),
            deduplicate_bytes: feeds(&config.listeners).1.iter().map(FeedPlan::bytes).sum(),
            shared_cores: shared,
            node_of_core,
            interfaces,
            remarks: Vec::new(),
        })
    }

    /// Reduces the memory for AF_XDP frames to what may be locked, where the configuration does not ask for it.
    pub(super) fn fit_locked(&mut self, pinned: &LockableMemory) {
        xdp::fit(&mut self.lanes, pinned);
        self.pool.batches_bytes = self.lanes.iter().map(LanePlan::batches_bytes).sum();
    }

    /// The memory that the kernel locks for AF_XDP queues.
    pub fn locked_bytes(&self) -> usize {
        self.lanes.iter().map(LanePlan::locked_bytes).sum()
    }

    /// The cores for a consumer that these lanes feed: those on their memory nodes, if there are any.
    pub fn cores_of_consumer(&self, lanes: &[bool]) -> Vec<usize> {
        let feeds = |node: Option<usize>| {
            self.lanes.iter().zip(lanes).any(|(lane, feeds)| *feeds && (lane.node == node || lane.node.is_none()))
        };
        let near = |core: &usize| feeds(self.node_of_core.get(core).copied());
        let cores: Vec<usize> = self.consumer_cores.iter().copied().filter(near).collect();
        if cores.is_empty() { self.consumer_cores.clone() } else { cores }
    }

    /// The lanes that the spread table of their group never selects, so that they stay idle.
    pub fn idle_lanes<'a>(&'a self, config: &'a Config, spread: Spread) -> impl Iterator<Item = &'a LanePlan> {
        let listed = |lane: &LanePlan| !lane.intake.cores.is_empty() || !lane.intake.queues.is_empty();
        self.lanes.iter().filter(move |lane| config.listeners[lane.listener].spread == spread && !listed(lane))
    }

    pub fn memory(&self) -> MemoryPlan {
        let sum = |part: fn(&LanePlan) -> usize| self.lanes.iter().map(part).sum();
        // A thread for each listener with a `sequence`.
        let followers = self.lanes.iter().filter(|lane| lane.number == 0 && lane.upstream_bytes > 0).count();
        let others = usize::from(self.compression_bytes > 0);
        MemoryPlan {
            batches_bytes: self.pool.batches_bytes,
            waiting_bytes: self.pool.blocks_bytes(),
            asked_bytes: self.pool.asked_bytes,
            places_bytes: self.pool.places_bytes(&self.sinks, &self.lanes),
            sink_bytes: self.sink_bytes,
            compression_bytes: self.compression_bytes,
            policy_bytes: sum(|lane| lane.policy_bytes),
            list_bytes: self.list_bytes,
            deduplicate_bytes: self.deduplicate_bytes,
            upstream_bytes: sum(|lane| lane.upstream_bytes),
            receive_buffer_bytes: sum(|lane| 2 * lane.receive_buffer_bytes),
            threads: self.lanes.len() + self.sinks.iter().map(SinkPlan::threads).sum::<usize>() + followers + others,
        }
    }
}

/// The lanes of a listener: those of its addresses, and then those of its AF_XDP queues.
fn lanes_of(
    index: usize,
    places: &[LanePlacement],
    config: &Config,
    feeders: &LaneFeeds<'_>,
    input: &PlacementInput<'_>,
    engine: &EngineChoice,
    automatic_bytes: usize,
) -> Vec<LanePlan> {
    let listener = &config.listeners[index];
    let count = feeders.lanes_on_address(index);
    let rate = listener.absorb.rate.div_ceil(count as u64);
    let shape = lane::shape(config, listener);
    let absorb = &listener.absorb;
    let is_past_the_stack = listener.is_past_the_stack();
    let of_addresses = count * listener.addresses.len();
    let common = |place: &LanePlacement, number, address, intake| LanePlan {
        listener: index,
        number,
        member: 0,
        address,
        shares: count > 1 || listener.share_port || shares_address(config, index, address),
        core: place.seat.map(|seat| seat.core),
        node: place.seat.and_then(|seat| seat.node),
        cores: place.cores.clone(),
        queues: place.queues.clone(),
        intake,
        receive_buffer_bytes: lane::receive_buffer(listener, rate),
        rate,
        // What an AF_XDP queue takes, no socket has to take.
        queue_rate: if is_past_the_stack { 0 } else { rate.div_ceil(listener.addresses.len() as u64) },
        payload_bytes: listener.absorbed_bytes(),
        shape,
        batches: 0,
        node_place: 0,
        asked_stall: if absorb.is_written { absorb.stall } else { Duration::ZERO },
        engine: if is_past_the_stack { EngineChoice::beside_af_xdp() } else { engine.clone() },
        xdp: None,
        policy_bytes: lane::policy_bytes(listener, number == 0),
        upstream_bytes: lane::upstream_bytes(listener, number == 0),
    };
    let mut lanes = Vec::new();
    for (group, (&address, places)) in listener.addresses.iter().zip(places.chunks(count)).enumerate() {
        let taken_in = seating::intakes(listener, places, input).into_iter().zip(places);
        lanes.extend(taken_in.enumerate().map(|(member, (intake, place))| LanePlan {
            member,
            ..common(place, group * count + member, address, intake)
        }));
    }
    let queues: usize = (0..config.listeners.len()).map(|listener| feeders.lanes_past_the_stack(listener)).sum();
    let room_bytes = xdp::automatic_room(config.daemon.pool_bytes, automatic_bytes) / queues.max(1);
    let of_queues = places.iter().skip(of_addresses).enumerate();
    lanes.extend(of_queues.map(|(queue, place)| {
        let intake = Intake { queue: Some(queue), ..Intake::default() };
        let plan = common(place, of_addresses + queue, xdp::address_shown(listener), intake);
        let rate = listener.absorb.rate.div_ceil(feeders.lanes_past_the_stack(index) as u64);
        xdp::of_queue(LanePlan { engine: engine.clone(), ..plan }, queue, rate, absorb, room_bytes)
    }));
    lanes
}

/// Files are compressed one at a time, so the sink that takes most decides.
fn compression_bytes(config: &Config) -> usize {
    config.sinks.iter().map(|sink| sink.settings.compression_bytes()).max().unwrap_or(0)
}

/// The tables of networks, each once.
fn list_bytes(config: &Config) -> usize {
    let mut lists: Vec<&Arc<AccessList>> = Vec::new();
    for list in config.listeners.iter().filter_map(|listener| listener.access.list.as_ref()) {
        if !lists.iter().any(|known| Arc::ptr_eq(known, list)) {
            lists.push(list);
        }
    }
    lists.into_iter().map(|list| list.bytes()).sum()
}

/// The cores of the lanes that each steered interface feeds.
fn lane_cores(config: &Config, interfaces: &Interfaces, lanes: &[LanePlan]) -> BTreeMap<String, BTreeSet<usize>> {
    let of_interface = |name: &str| {
        let is_fed = |lane: &&LanePlan| {
            let listener = &config.listeners[lane.listener];
            let kept = config.steer.dedicated_to(listener).is_some();
            listener.interface.as_ref().map_or(kept, |own| own == name)
        };
        lanes.iter().filter(is_fed).filter_map(|lane| lane.core).collect()
    };
    interfaces.steered.iter().map(|part| (part.name.clone(), of_interface(&part.name))).collect()
}

fn sink_plans(config: &Config, feeders: &LaneFeeds<'_>) -> Vec<SinkPlan> {
    let plan = |(index, sink): (usize, &SinkConfig)| {
        let consumers = feeders.consumers(index, sink.consumers);
        SinkPlan {
            consumers,
            is_inline: sink.inline,
            lookup_threads: sink.settings.lookup_threads(consumers),
            feeders: feeders.of_sink(index, sink.consumers).collect(),
        }
    };
    config.sinks.iter().enumerate().map(plan).collect()
}

/// Whether another listener of this configuration has the same address for the kernel. One of the two is bound to an
/// interface: that separates their datagrams, but the kernel still binds both to one address.
fn shares_address(config: &Config, listener: usize, address: SocketAddr) -> bool {
    let own = &config.listeners[listener];
    let others = config.listeners.iter().enumerate().filter(|(index, _)| *index != listener);
    let competes = |other: &ListenerConfig| {
        (own.interface.is_none() || other.interface.is_none())
            && other.addresses.iter().any(|taken| overlap(taken, &address))
    };
    others.map(|(_, other)| other).any(competes)
}

/// The memory of a sink.
fn sink_bytes(listeners: &[ListenerConfig], sink: &SinkConfig, plan: &SinkPlan) -> usize {
    let files = match sink.settings.target() {
        SinkTarget::Files(path) => plan.files(listeners, &sink.name, path).len(),
        _ => 0,
    };
    sink.settings.memory_bytes(plan.consumers, files)
}

#[cfg(test)]
mod tests {
    use super::testing::{plan_on, plan_with_queues};
    use super::*;
    use crate::config::EngineKind;

    const TEXT: &str = r#"
        [[listener]]
        name = "a"
        address = ["127.0.0.1:5140", "[::1]:5140"]
        lanes = 2
        absorb = { rate = 300000, stall = "100ms" }
        sinks = ["x", "y"]
        [sink.x]
        type = "null"
        queue_bytes = "320KiB"
        consumers = "per_lane"
        [sink.y]
        type = "null"
        consumers = 3
        [sink.unused]
        type = "null"
    "#;

    fn plan(text: &str) -> PipelinePlan {
        let topology = steer::Topology::flat(&[0, 1]);
        plan_on(text, EngineKind::Recvmmsg, &topology, &Interfaces::default()).expect("a plan").1
    }

    #[test]
    fn each_address_gets_its_lanes_and_each_lane_its_core_and_pool() {
        let plan = plan(TEXT);
        assert_eq!(plan.lanes.len(), 4);
        assert_eq!(plan.lanes.iter().map(|lane| lane.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(plan.lanes.iter().map(|lane| lane.core).collect::<Vec<_>>(), [Some(1), Some(0), Some(1), Some(0)]);
        assert!(plan.shared_cores);
        assert_eq!(plan.lanes[0].batches, 24);
        assert_eq!(plan.sinks.iter().map(|sink| sink.consumers).collect::<Vec<_>>(), [4, 3, 0]);
    }

    #[test]
    fn queues_past_the_stack_have_lanes_of_their_own_behind_those_of_the_addresses() {
        let text = "[[listener]]\nname = \"a\"\naddress = [\"0.0.0.0:5140\", \"[fd00::1]:5140\"]\nengine = \"af_xdp\"\n\
                    interface = \"eth0\"\nabsorb = { rate = 2000000, stall = \"10ms\" }\nsinks = [\"x\"]\n\
                    [sink.x]\ntype = \"null\"\nconsumers = \"per_lane\"\n";
        let (config, plan) = plan_with_queues(text, EngineKind::AfXdp, 3);
        let queues: Vec<Option<u32>> = plan.lanes.iter().map(|lane| Some(lane.xdp.as_ref()?.queue)).collect();
        assert_eq!(queues, [None, None, Some(0), Some(1), Some(2)]);
        let kinds = plan.lanes.iter().map(|lane| lane.engine.kind);
        assert_eq!(
            kinds.filter(|kind| *kind == EngineKind::AfXdp).count(),
            3,
            "more lanes than cores: each has a queue"
        );
        assert_eq!(plan.sinks[0].consumers, 5);
        for lane in &plan.lanes[2..] {
            // 2,000,000 a second on three queues, for 10 ms, and no less.
            assert_eq!((lane.rate, lane.receive_buffer_bytes, lane.has_socket()), (666_667, 0, false));
            assert!(lane.covered(0) >= Duration::from_millis(10) && lane.covered(0) < Duration::from_millis(11));
            assert_eq!(lane.batches(), lane.batches + lane.xdp.as_ref().expect("of a queue").batches);
        }
        assert!(
            plan.lanes[0].covered(2 * plan.lanes[0].receive_buffer_bytes) >= Duration::from_micros(9_900),
            "all of it"
        );
        let held = plan.held_at_most(&config).datagrams;
        assert!(held as usize > plan.lanes.iter().map(|lane| lane.batches() * 64).sum(), "rings are held, too");
        let [line] = remarks::attachments(&config, &plan).try_into().expect("one");
        let line: String = line;
        for words in
            ["listener a", "(native mode)", "eth0", "port 5140", "queues: 3", "nftables", "reverse path filter"]
        {
            assert!(line.contains(words), "{words}: {line}");
        }
    }

    #[test]
    fn an_automatic_buffer_covers_the_stall_it_is_made_for() {
        for lane in &plan(TEXT).lanes {
            assert_eq!(lane.rate, 150_000);
            let covered = lane.covered(2 * lane.receive_buffer_bytes);
            assert!(covered >= Duration::from_micros(99_900) && covered < Duration::from_millis(102), "{covered:?}");
        }
    }

    #[test]
    fn longer_datagrams_need_a_larger_buffer_for_the_same_time() {
        let lane = |size: &str| plan(&TEXT.replace("\"100ms\"", &format!("\"100ms\"{size}"))).lanes[0].clone();
        let (short, long) = (lane(""), lane(", size = 1400"));
        assert_eq!((short.payload_bytes, long.payload_bytes), (512, 1400));
        assert!(long.receive_buffer_bytes > short.receive_buffer_bytes * 3 / 2, "{long:?}");
        let covered = long.covered(2 * long.receive_buffer_bytes);
        assert!(covered >= Duration::from_micros(99_900) && covered < Duration::from_millis(102), "{covered:?}");
        assert!(long.covered(2 * short.receive_buffer_bytes) < Duration::from_millis(60), "what is too small says so");
    }

    #[test]
    fn lanes_come_from_the_rate_unless_they_are_written() {
        let lanes = |absorb: u64| {
            let text = TEXT.replace("lanes = 2", "").replace("300000", &absorb.to_string());
            plan(&text).lanes.len()
        };
        assert_eq!((lanes(200_000), lanes(500_001), lanes(2_000_000)), (2, 4, 8));
    }
}

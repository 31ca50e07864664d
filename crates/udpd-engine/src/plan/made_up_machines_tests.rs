//! What holds of every plan, tried on machines that are made up: offline cores, sibling threads, memory nodes without
//! cores, cores that udpd may not use, cards with any number of queues, limits of memory, and configurations with any
//! listeners and sinks. No plan panics or overflows, none is left without a core while there is one, and what it sums
//! up is what its parts are.

use std::fmt::Write as _;

use seeds::{Chance, Run, Simulation};
use steer::model::{Host, Interface, Interrupt, Kind, Known, Queue, Source};
use steer::plan::{Plan, Target};
use steer::{Topology, ethtool};

use super::interfaces::{Surroundings, receivers};
use super::kernel_limits::AddressSpace;
use super::*;
use crate::config::{EngineKind, HostView, Lanes};

/// A machine, and what udpd may use of it.
struct Machine {
    host: Host,
    allowed: Vec<usize>,
    /// Cores of other daemons.
    taken: Vec<usize>,
    limits: MemoryLimits,
}

fn topology(chance: &mut Chance) -> Topology {
    let nodes = chance.weighted(&[(4, 1), (3, 2), (1, 3), (1, 8)]);
    let threads = 1 + chance.index(2);
    let physical = (1 + chance.index(*chance.clone().pick(&[2, 8, 24]))).max(nodes);
    let tells_all = chance.happens(4, 5);
    // The last node may have memory and no core.
    let with_cores = if nodes > 1 && chance.happens(1, 4) { nodes - 1 } else { nodes };
    let mut topology = Topology { present: (0..physical * threads).collect(), ..Topology::default() };
    for core in 0..physical * threads {
        // Core 0 stays on line, as on most machines, unless it is one of the others.
        if chance.happens(1, 6) && (core > 0 || chance.happens(1, 2)) {
            continue;
        }
        let own = core % physical;
        topology.online.push(core);
        if tells_all || chance.happens(1, 2) {
            topology.node_of_core.insert(core, own * with_cores / physical);
            topology.cache_of_core.insert(core, own * with_cores / physical);
            topology.physical_of_core.insert(core, own);
        }
        if chance.happens(1, 20) {
            topology.isolated.push(core);
        }
    }
    if topology.online.is_empty() {
        topology.online.push(0);
    }
    for (one, other) in (0..nodes).flat_map(|one| (0..nodes).map(move |other| (one, other))) {
        if tells_all || chance.happens(1, 2) {
            let distance = if one == other { 10 } else { chance.within(11..255) as u32 };
            topology.distances.insert((one, other), distance);
        }
    }
    topology
}

fn some_of(chance: &mut Chance, cores: &[usize]) -> Vec<usize> {
    cores.iter().copied().filter(|_| chance.happens(1, 2)).collect()
}

/// A number of which small ones are likely, and which is at least 1.
fn few(chance: &mut Chance, most: u64) -> usize {
    let most = chance.weighted(&[(20, 4.min(most)), (10, 16.min(most)), (1, most)]);
    1 + chance.below(most) as usize
}

fn card(chance: &mut Chance, number: usize, topology: &Topology) -> Interface {
    let queues = few(chance, 128);
    let is_managed = chance.happens(1, 8);
    let shares_one = chance.happens(1, 8);
    let known = |chance: &mut Chance| chance.happens(3, 4);
    let queue = |index: usize, chance: &mut Chance| {
        let interrupt = Interrupt {
            number: u32::try_from(1_000 * number + if shares_one { 0 } else { index }).expect("a small number"),
            name: String::new(),
            requested: topology.online.clone(),
            effective: vec![topology.online[chance.index(topology.online.len())]],
            is_settable: !is_managed,
            source: Source::Netlink,
        };
        let interrupt = if known(chance) { Known::Is(interrupt) } else { Known::Unknown("it does not tell".into()) };
        Queue { index, interrupt, napi: None, rps_cores: Vec::new(), work: Known::NotSupported }
    };
    let most = queues as u32 + chance.below(64) as u32;
    let channels = ethtool::Channels { combined: queues as u32, combined_max: most, ..Default::default() };
    let rings = ethtool::Rings { rx: 256, tx: 256, rx_max: 4_096, tx_max: 4_096 };
    let entries = 1 << chance.below(10);
    let indirection = (0..entries).map(|entry: u32| entry % queues as u32).collect();
    let rules = ethtool::Rules { places: chance.happens(1, 2).then(|| chance.below(8) as u32), ..Default::default() };
    let ntuple = ethtool::Feature { is_on: chance.happens(1, 2), is_changeable: chance.happens(1, 2) };
    Interface {
        name: format!("eth{number}"),
        index: 2 + number as u32,
        kind: if chance.happens(1, 12) { Kind::Veth } else { Kind::Physical },
        members: Vec::new(),
        is_up: chance.happens(9, 10),
        driver: Known::Is("made_up".into()),
        // Also a node without cores, and one that does not exist.
        node: chance.happens(3, 4).then(|| chance.index(4)),
        queues: (0..queues).map(|index| queue(index, chance)).collect(),
        channels: if known(chance) { Known::Is(channels) } else { Known::NotSupported },
        rings: if known(chance) { Known::Is(rings) } else { Known::NotSupported },
        rss: if known(chance) { Known::Is(ethtool::Rss { indirection, key: Vec::new() }) } else { Known::NotSupported },
        flow_hash_v4: Known::Is(ethtool::FlowHash::ADDRESSES),
        flow_hash_v6: Known::NotSupported,
        coalescing: Known::NotSupported,
        sorting: if known(chance) { Known::Is(steer::model::Sorting { ntuple, rules }) } else { Known::NotSupported },
        send_queues: Vec::new(),
    }
}

fn limits(chance: &mut Chance) -> MemoryLimits {
    let bytes = |chance: &mut Chance| {
        let power = chance.within(24..42);
        let (least, any) = (1_u64 << power, chance.next());
        chance.happens(1, 4).then(|| if chance.happens(1, 40) { u64::MAX } else { least + any % least })
    };
    MemoryLimits {
        group: bytes(chance).map(|bytes| (bytes, "memory.max".into())),
        memory_bytes: bytes(chance),
        total_bytes: bytes(chance),
        available_bytes: bytes(chance),
        address_space: bytes(chance).map(|limit_bytes| AddressSpace {
            limit_bytes,
            mapped_bytes: chance.below(1 << 30),
            threads_running: chance.index(8),
            arenas_max: chance.happens(1, 2).then(|| chance.index(100)),
        }),
        locked_bytes: bytes(chance),
        pinned: LockableMemory { bytes: bytes(chance), is_exempt: chance.happens(1, 2) },
    }
}

fn machine(chance: &mut Chance) -> Machine {
    let topology = topology(chance);
    let interfaces = (0..chance.index(4)).map(|number| card(chance, number, &topology)).collect();
    let allowed = match chance.weighted(&[(10, 0), (10, 1), (1, 2)]) {
        0 => topology.online.clone(),
        // A core that goes off line stays in the mask of a process.
        1 => some_of(chance, &topology.present),
        _ => Vec::new(),
    };
    let taken = if chance.happens(1, 3) { some_of(chance, &topology.online) } else { Vec::new() };
    Machine { limits: limits(chance), host: Host { topology, interfaces }, allowed, taken }
}

/// A configuration: each listener and each sink is a step, so that one that fails has only those that matter.
fn configuration(run: &mut Run, cards: usize) -> String {
    let (mut text, mut own, mut number) = (String::new(), Vec::new(), 0);
    let setup = run.setup();
    if setup.happens(1, 3) {
        let _ = writeln!(text, "[daemon]\npool_bytes = \"{}MiB\"", 1 << setup.below(15));
    }
    let steered: Vec<usize> = (0..cards).filter(|_| setup.happens(2, 3)).collect();
    let names: Vec<String> = steered.iter().map(|card| format!("\"eth{card}\"")).collect();
    let mut steer = format!("[steer]\ninterfaces = [{}]\n", names.join(", "));
    if setup.happens(1, 3) {
        let queues = few(setup, 128).to_string();
        let _ = writeln!(steer, "rx_queues = {}", setup.pick(&["\"max\"".to_owned(), "\"keep\"".to_owned(), queues]));
    }
    let _ = writeln!(steer, "placement = \"{}\"", setup.pick(&["adjacent", "same_core", "node"]));
    let _ = writeln!(steer, "indirection = \"{}\"", setup.pick(&["even", "keep"]));
    let sinks = 1 + setup.index(4);
    let dedicates = setup.happens(1, 4);
    for sink in 0..sinks {
        let _ = writeln!(text, "[sink.s{sink}]\ntype = \"null\"");
        match setup.below(5) {
            0 => text.push_str("consumers = \"per_lane\"\n"),
            1 => {
                let _ = writeln!(text, "consumers = {}", few(setup, 1_024));
            }
            2 if sink % 2 == 1 => text.push_str("inline = true\n"),
            _ => {}
        }
        if !text.ends_with("inline = true\n") && setup.happens(1, 4) {
            let _ = writeln!(text, "queue_bytes = \"{}KiB\"", 64 << setup.below(*setup.clone().pick(&[8, 24])));
        }
    }
    let mut past_the_stack = BTreeSet::new();
    while let Some(mut chance) = run.step() {
        let _ = writeln!(text, "[[listener]]\nname = \"l{number}\"");
        let addresses: Vec<String> =
            (0..few(&mut chance, 5)).map(|it| format!("\"127.0.0.{}:{}\"", it + 1, 1_000 + number)).collect();
        let _ = writeln!(text, "address = [{}]", addresses.join(", "));
        let fed: Vec<String> = (0..sinks)
            .filter(|sink| *sink == number % sinks || chance.happens(1, 3))
            .map(|sink| format!("\"s{sink}\""))
            .collect();
        let _ = writeln!(text, "sinks = [{}]", fed.join(", "));
        let is_bound = cards > 0 && chance.happens(2, 3);
        // One that the machine does not have, too.
        let there = cards + usize::from(chance.happens(1, 10));
        let card = chance.index(there);
        if is_bound {
            let _ = writeln!(text, "interface = \"eth{card}\"");
        }
        let is_past_the_stack = is_bound && chance.happens(1, 6) && past_the_stack.insert(card);
        if is_past_the_stack {
            text.push_str("engine = \"af_xdp\"\n");
        } else {
            if chance.happens(1, 2) {
                let _ = writeln!(text, "lanes = {}", few(&mut chance, 256));
            }
            let spreads: &[&str] = if is_bound { &["flow", "cpu", "queue"] } else { &["flow", "cpu"] };
            let _ = writeln!(text, "spread = \"{}\"", chance.pick(spreads));
            let _ = writeln!(text, "gro = \"{}\"", chance.pick(&["auto", "on", "off"]));
        }
        let (slots, longest) = (chance.pick(&[1, 8, 64, 1_024]), *chance.clone().pick(&[1, 100, 2_048, 9_000, 65_535]));
        let longest = if is_past_the_stack { 2_048 } else { longest };
        let _ = writeln!(text, "batch_size = {slots}\nmax_length = {longest}");
        if chance.happens(1, 3) {
            let (rate, stall) =
                (1 + chance.below(1 << chance.clone().below(27)), 1 + chance.below(1 << chance.clone().below(15)));
            let _ = writeln!(
                text,
                "absorb = {{ rate = {rate}, stall = \"{stall}ms\", size = {} }}",
                1 + chance.below(longest)
            );
        }
        if dedicates && is_bound && steered.contains(&card) && !is_past_the_stack && chance.happens(1, 2) {
            own.push(format!("l{number} = 1"));
        }
        number += 1;
    }
    if !own.is_empty() {
        let _ = writeln!(steer, "dedicated_queues = {{ {} }}", own.join(", "));
    }
    text + &steer
}

/// Both plans of a machine: that of its cards, and that of its lanes. An error is a refusal with its words.
fn plan(machine: &Machine, config: &Config) -> Result<PipelinePlan, String> {
    let Machine { host, allowed, taken, limits } = machine;
    let mut allowed = allowed.clone();
    if let Some(cores) = &config.steer.request.cores {
        allowed.retain(|core| cores.contains(core));
    }
    let queues: BTreeMap<String, usize> = host.interfaces.iter().map(|it| (it.name.clone(), it.queues.len())).collect();
    let mut interfaces = Interfaces { queues, taken: taken.clone(), ..Interfaces::default() };
    let input = PlacementInput { topology: &host.topology, allowed: &allowed, interfaces: &interfaces };
    let wanted = receivers(&input.feeders(config), &config.steer, &interfaces.queues);
    let request = steer::plan::Request { receivers: wanted, taken: taken.clone(), ..config.steer.request.clone() };
    let mut known = host.clone();
    known.interfaces.retain(|it| config.steer.interfaces.contains(&it.name));
    match Plan::new(&known, &allowed, &request) {
        Ok(plan) => {
            assert_eq!(Plan::new(&known, &allowed, &request).as_ref(), Ok(&plan), "the same twice");
            check_cards(&plan, &known, &cores_of(&input));
            interfaces.steered = plan.interfaces;
        }
        Err(error) => assert!(!error.cure.is_empty(), "{error}"),
    }
    for it in &host.interfaces {
        let fires_on = it.queues.iter().filter_map(|queue| queue.interrupt.get()).flat_map(|it| it.effective.clone());
        interfaces.around.insert(it.name.clone(), Surroundings { node: it.node, fires_on: fires_on.collect() });
    }
    let engines: Vec<EngineChoice> = config
        .listeners
        .iter()
        .map(|it| EngineChoice { kind: it.engine.unwrap_or(EngineKind::Recvmmsg), why: String::new() })
        .collect();
    let input = PlacementInput { topology: &host.topology, allowed: &allowed, interfaces: &interfaces };
    let make = || {
        let mut plan = PipelinePlan::new(config, &input, &engines, limits.automatic_pool_bytes())?;
        plan.fit_locked(&limits.pinned);
        Ok(plan)
    };
    let plan = make().map_err(|failure: Failure| failure.to_string())?;
    // Of a few hundred lanes the books say as much.
    assert!(plan.lanes.len() > 64 || make().as_ref().ok() == Some(&plan), "the same twice");
    check_lanes(&plan, config, &input);
    check_sinks(&plan, config);
    check_memory(&plan, config, limits)?;
    let refused = refuse_idle_lanes(config, &plan, allowed.len());
    refused.map(|()| plan).map_err(|failure| failure.to_string())
}

/// The cores that are there and that udpd may use.
fn cores_of(input: &PlacementInput<'_>) -> Vec<usize> {
    input.topology.online.iter().copied().filter(|core| input.allowed.contains(core)).collect()
}

fn check_cards(plan: &Plan, host: &Host, usable: &[usize]) {
    for (part, card) in plan.interfaces.iter().zip(&host.interfaces) {
        for seat in part.all_seats() {
            for core in seat.receiver_cores.iter().chain([&seat.receiver_core]) {
                assert!(usable.contains(core), "{}: the receiver of queue {} on core {core}", part.name, seat.queue);
            }
            let online = &host.topology.online;
            assert!(seat.rps_cores.iter().all(|core| online.contains(core)), "RPS to a core that is there");
        }
        let queues = part.seats.len();
        assert!((1..=card.queues.len().max(256)).contains(&queues), "{queues}");
        for wanted in &part.wanted {
            let fits = |queue: usize, cores: &[usize]| {
                queue < queues && cores.iter().all(|core| host.topology.online.contains(core))
            };
            match &wanted.target {
                Target::Indirection(table) => assert!(table.iter().all(|queue| (*queue as usize) < queues)),
                Target::Interrupt { queue, cores } => assert!(fits(*queue, cores) && !cores.is_empty()),
                Target::Rps { queue, cores } => assert!(fits(*queue, cores)),
                Target::Rule(rule) => assert!((rule.queue as usize) < queues),
                _ => {}
            }
        }
    }
}

fn check_lanes(plan: &PipelinePlan, config: &Config, input: &PlacementInput<'_>) {
    let usable = cores_of(input);
    let of = |listener: usize| plan.lanes.iter().filter(move |lane| lane.listener == listener);
    for (index, listener) in config.listeners.iter().enumerate() {
        let lanes: Vec<&LanePlan> = of(index).collect();
        let numbers: Vec<usize> = lanes.iter().map(|lane| lane.number).collect();
        assert_eq!(numbers, (0..lanes.len()).collect::<Vec<_>>(), "{}: numbered without a hole", listener.name);
        let addresses = listener.addresses.len();
        let queues = listener.interface.as_ref().and_then(|name| input.interfaces.queues.get(name));
        let expected = match listener.lanes {
            _ if listener.is_past_the_stack() => Some(addresses + queues.copied().unwrap_or(1)),
            Lanes::Count(count) => Some(count.get() * addresses),
            Lanes::Auto if queues.is_none() && config.steer.dedicated_to(listener).is_none() => {
                let asks = |name: &String| config.steer.interfaces.contains(name);
                let asked = listener.interface.as_ref().is_some_and(asks);
                let of_rate = listener.absorb.rate.div_ceil(500_000).clamp(1, 256) as usize;
                (!asked).then_some(of_rate * addresses)
            }
            // As many as queues, and no more than cores.
            Lanes::Auto => {
                assert!(lanes.len().is_multiple_of(addresses) && !lanes.is_empty());
                None
            }
        };
        assert!(expected.is_none_or(|expected| expected == lanes.len()), "{}: {expected:?} lanes", listener.name);
        check_queues(&lanes, listener, input);
    }
    for lane in &plan.lanes {
        let name = &config.listeners[lane.listener].name;
        assert_eq!(lane.core.is_some(), !usable.is_empty(), "{name}, lane {}: a core where there is one", lane.number);
        for core in lane.cores.iter().chain(&lane.core) {
            assert!(usable.contains(core), "{name}, lane {}: core {core} of {usable:?}", lane.number);
        }
        if let Some(core) = lane.core {
            assert_eq!(lane.node, input.topology.node_of_core.get(&core).copied(), "the node of its core");
        }
        assert!(lane.batches > 0 && lane.rate > 0 && lane.payload_bytes <= lane.shape.slot_bytes);
        assert!(lane.receive_buffer_bytes <= 1 << 30);
    }
    assert_eq!(plan.consumer_cores.is_empty(), usable.is_empty());
    assert!(plan.consumer_cores.iter().all(|core| usable.contains(core)));
    // Two lanes on one core are said.
    let alone =
        plan.lanes.iter().filter(|lane| lane.cores.len() < 2 && !config.listeners[lane.listener].is_past_the_stack());
    let mut cores: Vec<usize> = alone.filter_map(|lane| lane.core).collect();
    cores.sort_unstable();
    let are_shared = cores.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(plan.shared_cores || !are_shared, "lanes share a core, and the plan does not say so: {cores:?}");
}

/// Each receive queue feeds one lane of each address, and no queue is left out.
fn check_queues(lanes: &[&LanePlan], listener: &ListenerConfig, input: &PlacementInput<'_>) {
    let Some(name) = &listener.interface else { return };
    let Some(&queues) = input.interfaces.queues.get(name) else { return };
    if input.interfaces.plan_of(name).is_some() && !listener.is_past_the_stack() {
        return;
    }
    let of_queues = lanes.iter().filter(|lane| lane.xdp.is_some() == listener.is_past_the_stack());
    let mut taken: Vec<usize> = of_queues.flat_map(|lane| lane.queues.clone()).collect();
    taken.sort_unstable();
    let times = if listener.is_past_the_stack() { 1 } else { listener.addresses.len() };
    let expected: Vec<usize> = (0..queues).flat_map(|queue| vec![queue; times]).collect();
    assert_eq!(taken, expected, "{}: every queue feeds one lane of each address", listener.name);
}

fn check_sinks(plan: &PipelinePlan, config: &Config) {
    for (index, (sink, settings)) in plan.sinks.iter().zip(&config.sinks).enumerate() {
        let feeds = |lane: &&LanePlan| config.listeners[lane.listener].sinks.contains(&index);
        assert_eq!(sink.feeders.len(), plan.lanes.iter().filter(feeds).count());
        assert!(sink.consumers <= sink.feeders.len());
        for consumer in 0..sink.consumers {
            assert!(sink.feeders.iter().any(|feeder| feeder.consumer == consumer), "{}: nothing to do", settings.name);
            let queue = &plan.pool.queues[index][consumer];
            let shared: usize = plan.pool.nodes.iter().map(|node| node.shared_blocks).sum();
            assert!(queue.borrowed_max <= shared && queue.own_blocks.len() == plan.pool.nodes.len());
            let lanes = sink.feeders.iter().filter(|feeder| feeder.consumer == consumer);
            let may_wait = |feeder: &Feeder| {
                let place = plan.lanes[feeder.lane].node_place;
                sink.is_inline || queue.own_blocks[place] >= 2
            };
            assert!(lanes.clone().all(may_wait), "{}: one block fills while another is away", settings.name);
        }
        assert!(sink.feeders.iter().all(|feeder| feeder.consumer < sink.consumers.max(1)));
    }
}

/// The sums are those of the parts, added up without a bound, and a plan that is not refused holds every limit.
fn check_memory(plan: &PipelinePlan, config: &Config, limits: &MemoryLimits) -> Result<(), String> {
    let memory = plan.memory();
    let batches: u128 = plan.lanes.iter().map(|lane| lane.batches() as u128 * lane.shape.bytes() as u128).sum();
    let own = plan.pool.queues.iter().flatten().flat_map(|queue| &queue.own_blocks).map(|blocks| *blocks as u128);
    let shared = plan.pool.nodes.iter().map(|node| node.shared_blocks as u128);
    let blocks = own.chain(shared).sum::<u128>() * plan.pool.block_bytes as u128;
    assert_eq!((memory.batches_bytes as u128, memory.waiting_bytes as u128), (batches, blocks));
    let others = [memory.sink_bytes, memory.compression_bytes, memory.policy_bytes, memory.list_bytes];
    let others: u128 = others.iter().map(|part| *part as u128).sum();
    let total = batches + blocks + others + memory.upstream_bytes as u128 + memory.own_bytes() as u128;
    assert_eq!(memory.total_bytes() as u128, total);
    assert!(memory.asked_bytes <= memory.waiting_bytes);
    if let Some(pool_bytes) = config.daemon.pool_bytes {
        // Frames of AF_XDP that are not asked for are beside it.
        let frames: usize = plan.lanes.iter().map(LanePlan::ring_bytes).sum();
        assert!(memory.pool_bytes() - frames <= pool_bytes, "{} of {pool_bytes}", memory.pool_bytes());
    }
    let needed = memory.total_bytes() as u64;
    let verdict = limits.judge(config, plan);
    let may_have = limits.group.as_ref().map(|(bytes, _)| *bytes).into_iter().chain(limits.total_bytes).min();
    let may_map = limits.address_space.as_ref().map(|space| space.limit_bytes);
    let may_lock = limits.pinned.bytes.filter(|_| !limits.pinned.is_exempt);
    if verdict.is_ok() {
        assert!(may_have.into_iter().chain(may_map).all(|limit| needed <= limit), "more memory than there is");
        assert!(may_lock.is_none_or(|limit| plan.locked_bytes() as u64 <= limit), "more than may be locked");
    } else {
        let has_limit = may_have.is_some() || may_map.is_some() || may_lock.is_some() || limits.locked_bytes.is_some();
        assert!(has_limit, "refused without a limit: {verdict:?}");
    }
    verdict.map(|_| ()).map_err(|failure| failure.message)
}

/// What must be the same twice, in fewer words than the plan has.
fn books(plan: &PipelinePlan) -> String {
    let lanes: Vec<_> = plan.lanes.iter().map(|lane| (lane.core, lane.node, lane.batches)).collect();
    format!("{lanes:?} {:?} {:?} {:?}", plan.consumer_cores, plan.memory(), plan.sinks.len())
}

#[test]
fn the_plan_of_any_machine_seats_every_lane_holds_every_limit_and_is_the_same_twice() {
    const NAME: &str = "the_plan_of_any_machine_seats_every_lane_holds_every_limit_and_is_the_same_twice";
    let outcomes = std::sync::Mutex::new([0_usize; 3]);
    let simulation = Simulation::new(NAME, 200, 4).with_corpus(include_str!("made_up_machines.seeds"));
    simulation.check(|run| {
        let machine = machine(run.setup());
        let text = configuration(run, machine.host.interfaces.len());
        run.trace(|| format!("{:?}\nallowed {:?}\n{text}", machine.host.topology, machine.allowed));
        let host = HostView { sys_root: "/nonexistent".into(), ..HostView::default() };
        let (place, books) = match Config::parse(&text, "test", &host) {
            Err(problems) => (0, problems.to_string()),
            Ok(mut config) => {
                // The file may name only cores of this host.
                let mut chance = run.setup().clone();
                let is_limited = chance.happens(1, 6);
                config.steer.request.cores = is_limited.then(|| some_of(&mut chance, &machine.host.topology.present));
                match plan(&machine, &config) {
                    Err(refusal) => (1, refusal),
                    Ok(plan) => (2, books(&plan)),
                }
            }
        };
        outcomes.lock().expect("no panic with it")[place] += 1;
        books
    });
    let [unread, refused, planned] = outcomes.into_inner().expect("no panic with it");
    let all = unread + refused + planned;
    assert!(all < 100 || planned * 3 > all, "{unread} not read, {refused} refused, {planned} planned");
}

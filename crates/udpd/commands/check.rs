//! `udpd check`: validates a configuration and says what it would use, without opening, binding or changing anything.

use std::fs;
use std::io::Write;

use serde::Serialize;

use crate::config::{Config, Spread};
use crate::exit::{ExitCode, Failure};
use crate::os::console;
use crate::plan;
use crate::plan::Budget;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    valid: bool,
    lanes: Vec<LaneReport<'a>>,
    consumers: Vec<ConsumersReport<'a>>,
    pool_bytes: usize,
    policy_bytes: usize,
    sink_bytes: usize,
    receive_buffer_bytes: usize,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LaneReport<'a> {
    listener: &'a str,
    lane: usize,
    address: String,
    cpu: Option<usize>,
    node: Option<usize>,
    /// The receive queue that feeds it.
    queue: Option<usize>,
    /// Where its datagrams should arrive; empty when nobody says.
    arrival_cpus: &'a [usize],
    rate: u64,
    receive_buffer_bytes: usize,
    covers_ms: f64,
    engine: String,
    engine_why: &'a str,
    batches: usize,
    pool_bytes: usize,
}

#[derive(Debug, Serialize)]
struct ConsumersReport<'a> {
    sink: &'a str,
    consumers: usize,
    cpus: String,
}

/// Prints the plan for a configuration that has been loaded.
pub fn execute(config: &Config, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let budget = plan::plan(config)?;
    let report = report(config, &budget);
    let text = match json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => render(&report, &budget),
    };
    console::print(out, &text)
}

fn report<'a>(config: &'a Config, budget: &'a Budget) -> Report<'a> {
    let lane = |plan: &'a crate::plan::LanePlan| LaneReport {
        listener: &config.listeners[plan.listener].name,
        lane: plan.number,
        address: plan.address.to_string(),
        cpu: plan.core,
        node: plan.node,
        queue: plan.steering.queue,
        arrival_cpus: plan.steering.expected_cores(),
        rate: plan.rate,
        receive_buffer_bytes: 2 * plan.receive_buffer_bytes,
        engine: plan.engine.kind.to_string(),
        engine_why: &plan.engine.why,
        covers_ms: plan.covered(2 * plan.receive_buffer_bytes).as_secs_f64() * 1000.0,
        batches: plan.batches(),
        pool_bytes: plan.pool_bytes(),
    };
    let sinks = config.sinks.iter().zip(&budget.sinks);
    let consumers = sinks.map(|(sink, plan)| ConsumersReport {
        sink: &sink.name,
        consumers: plan.consumers,
        cpus: steer::format_core_list(&budget.consumer_cores),
    });
    Report {
        valid: true,
        lanes: budget.lanes.iter().map(lane).collect(),
        consumers: consumers.collect(),
        pool_bytes: budget.pool_bytes(),
        policy_bytes: budget.policy_bytes(),
        sink_bytes: budget.sink_bytes,
        receive_buffer_bytes: budget.receive_buffer_bytes(),
        warnings: warnings(config, budget),
    }
}

fn render(report: &Report<'_>, budget: &Budget) -> String {
    let mut text = String::from("the configuration is valid\n\nlanes\n");
    for lane in &report.lanes {
        let core = lane.cpu.map_or("any core".to_owned(), |core| format!("core {core}"));
        let node = lane.node.map_or(String::new(), |node| format!(", node {node}"));
        let queue = lane.queue.map_or(String::new(), |queue| format!(", from queue {queue}"));
        let arrival = match lane.arrival_cpus {
            [] => String::new(),
            cores => format!(", from cores {}", steer::format_core_list(cores)),
        };
        text += &format!(
            "  {}/{}  {}  {core}{node}{queue}{arrival}  {}  receive buffer {} covers {:.0} ms at {}/s  {} batches, {}\n",
            lane.listener,
            lane.lane,
            lane.address,
            lane.engine,
            bytes(lane.receive_buffer_bytes),
            lane.covers_ms,
            lane.rate,
            lane.batches,
            bytes(lane.pool_bytes)
        );
    }
    text += "\nsinks\n";
    for sink in &report.consumers {
        text += &format!("  {}  consumers {}  cores {}\n", sink.sink, sink.consumers, sink.cpus);
    }
    if let Some(lane) = budget.lanes.first() {
        let own = match lane.engine.own_batches(lane.shape.slots) {
            0 => String::new(),
            own => format!(" + {own} in the ring"),
        };
        text += &format!("\nbatches of the first lane: {}{own}, 1 spare\n", lane.pool);
    }
    text += &format!(
        "memory: {}, up to {} in receive buffers (the kernel's)\n",
        memory(report.pool_bytes, report.sink_bytes, report.policy_bytes),
        bytes(report.receive_buffer_bytes)
    );
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

/// What will degrade on this machine, each with its cure.
fn warnings(config: &Config, budget: &Budget) -> Vec<String> {
    let mut warnings = budget.remarks.clone();
    let largest = budget.lanes.iter().map(|lane| lane.receive_buffer_bytes).max().unwrap_or(0);
    if let Some(limit) = receive_buffer_limit()
        && largest > limit
    {
        warnings.push(format!(
            "a receive buffer of {} is wanted and an unprivileged process gets {}; {}",
            bytes(2 * largest),
            bytes(2 * limit),
            buffer_cure(largest)
        ));
    }
    if let Some(limit) = udp_memory_limit()
        && budget.receive_buffer_bytes() > limit
    {
        warnings.push(format!(
            "the receive buffers together may take {} and net.ipv4.udp_mem lets all UDP sockets have {}; raise its third value",
            bytes(budget.receive_buffer_bytes()),
            bytes(limit)
        ));
    }
    warnings.extend(idle_queue_lanes(config, budget));
    if budget.shared_cores {
        warnings
            .push("there are more lanes than cores: receivers share cores; lower lanes or widen [steer] cpus".into());
    }
    for (sink, plan) in config.sinks.iter().zip(&budget.sinks) {
        if plan.consumers == 0 {
            warnings
                .push(format!("sink {} is fed by no listener; name it in a listener's sinks or remove it", sink.name));
        }
    }
    warnings
}

/// Interfaces change their number of queues, so fewer of them than lanes is not an error.
fn idle_queue_lanes<'a>(config: &'a Config, budget: &'a Budget) -> impl Iterator<Item = String> + use<'a> {
    budget.idle_lanes(config, Spread::Queue).map(|lane| {
        let listener = &config.listeners[lane.listener];
        format!(
            "listener {}: lane {} has no receive queue of {} to itself and stays idle; lower lanes, or give the interface \
             more queues with ethtool -L and restart udpd",
            listener.name,
            lane.number,
            listener.interface.as_deref().unwrap_or("its interface")
        )
    })
}

/// What is taken at the start and never grows.
pub(crate) fn memory(pool_bytes: usize, sink_bytes: usize, policy_bytes: usize) -> String {
    let mut text = format!("{} in batches", bytes(pool_bytes));
    for (bound, taken, what) in [("up to ", sink_bytes, "in sinks"), ("", policy_bytes, "in tables of rate limits")] {
        if taken > 0 {
            text += &format!(", {bound}{} {what}", bytes(taken));
        }
    }
    text
}

/// The start-up lines about the whole: memory, and what degrades.
pub fn say_budget(config: &Config, budget: &Budget) {
    budget.remarks.iter().for_each(|line| log::warn!("{line}"));
    idle_queue_lanes(config, budget).for_each(|line| log::warn!("{line}"));
    let memory = memory(budget.pool_bytes(), budget.sink_bytes, budget.policy_bytes());
    log::info!("memory: {memory}, fixed from now on");
    if budget.shared_cores {
        log::warn!("there are more lanes than cores: receivers share cores; lower lanes or widen [steer] cpus");
    }
}

/// How to get a receive buffer of `asked` bytes.
pub fn buffer_cure(asked: usize) -> String {
    format!("grant CAP_NET_ADMIN (AmbientCapabilities= in the unit file), or: sysctl -w net.core.rmem_max={asked}")
}

fn receive_buffer_limit() -> Option<usize> {
    fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse().ok()
}

fn udp_memory_limit() -> Option<usize> {
    const PAGE_BYTES: usize = 4096;
    let text = fs::read_to_string("/proc/sys/net/ipv4/udp_mem").ok()?;
    text.split_whitespace().nth(2)?.parse::<usize>().ok()?.checked_mul(PAGE_BYTES)
}

/// A number of bytes as people read it.
pub(crate) fn bytes(count: usize) -> String {
    const MEBIBYTE: f64 = 1_048_576.0;
    match count {
        0..=9999 => format!("{count} B"),
        10_000..=1_048_575 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / MEBIBYTE),
    }
}

/// The failure of a configuration that was given neither as a file nor as arguments.
pub fn no_configuration(path: &std::path::Path) -> Failure {
    let message = format!(
        "{}: no such file; write one (see config/udpd.toml), name one with -c, or run without: udpd run --listen 127.0.0.1:5140 --to stdout:",
        path.display()
    );
    Failure::new(ExitCode::Configuration, message)
}

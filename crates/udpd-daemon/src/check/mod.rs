//! `udpd check`: validates a configuration and says what it would use. It changes nothing, and opens only the files
//! that `run` reads as well. Whether a user or a service may do what a start does is tried when that is asked for.

mod rights;
pub(crate) mod unit;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::rights::Rights;
pub use self::rights::{Capability, become_user};
pub use self::unit::execute as execute_unit;
use crate::run;
use crate::run::{DaemonUser, look_ahead};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::os::{console, threads, user};
use udpd_base::text::units::print_size;
use udpd_endpoint::metrics::{self, TokenFile};
use udpd_engine::config::{Config, EngineKind, ListenerConfig, SinkConfig};
use udpd_engine::plan;
use udpd_engine::plan::buffers::Buffers;
use udpd_engine::plan::memory::{Bytes, MemoryPlan};
use udpd_engine::plan::pool::{PoolPlan, Stall};
use udpd_engine::plan::{LanePlan, PipelinePlan, remarks};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct PlanJson<'a> {
    valid: bool,
    /// Who the daemon would be.
    user: String,
    lanes: Vec<LaneJson<'a>>,
    consumers: Vec<SinkJson<'a>>,
    spills: Vec<SpillJson<'a>>,
    uploads: Vec<UploadJson<'a>>,
    lists: Vec<ListJson<'a>>,
    stalls: Vec<StallJson<'a>>,
    pool_bytes: usize,
    #[serde(flatten)]
    memory: MemoryPlan,
    /// Receive buffers: needed, granted, and whether the kernel's limit for all of them is enough.
    receive_buffers: Buffers,
    /// The file with the days of the page; null where only the hour is kept.
    history: Option<HistoryJson>,
    /// What is put at interfaces, and who has no say in it any more.
    attached: Vec<String>,
    /// What was tried with the rights of a user; null where none was named.
    rights: Option<Rights>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LaneJson<'a> {
    listener: &'a str,
    lane: usize,
    address: String,
    cpu: Option<usize>,
    node: Option<usize>,
    /// The receive queue that feeds it.
    queue: Option<usize>,
    /// Where its datagrams should arrive; empty when no plan says.
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
struct SinkJson<'a> {
    sink: &'a str,
    consumers: usize,
    /// They are the receivers of its lanes.
    inline: bool,
    cpus: String,
}

impl SinkJson<'_> {
    fn text(&self) -> String {
        match self.inline {
            true => format!("  {}  inline, on the receivers of {} lanes\n", self.sink, self.consumers),
            false => format!("  {}  consumers {}  cores {}\n", self.sink, self.consumers, self.cpus),
        }
    }
}

/// Where a sink puts what its destination does not take.
#[derive(Debug, Serialize)]
struct SpillJson<'a> {
    sink: &'a str,
    path: &'a Path,
    /// On the disk, of all consumers together.
    disk_bytes: u64,
    memory_bytes: usize,
}

/// Where finished files of a sink go.
#[derive(Debug, Serialize)]
struct UploadJson<'a> {
    sink: &'a str,
    url: String,
}

/// Where the days of the page are.
#[derive(Debug, Serialize)]
struct HistoryJson {
    days: u32,
    path: PathBuf,
    disk_bytes: u64,
}

/// The networks that a listener accepts and refuses.
#[derive(Debug, Serialize)]
struct ListJson<'a> {
    listener: &'a str,
    /// Each once, however often it is written.
    networks: usize,
    files: Vec<&'a Path>,
    /// Listeners with the same lists share this.
    bytes: usize,
}

/// How long a sink may take nothing before a listener loses what is meant for it.
#[derive(Debug, Serialize)]
struct StallJson<'a> {
    listener: &'a str,
    sink: &'a str,
    rate: u64,
    size_bytes: usize,
    /// As long as nothing else waits on the node.
    stall_ms: f64,
    datagrams: u64,
    /// Whatever other sinks do.
    own_stall_ms: f64,
    own_datagrams: u64,
}

/// Prints the plan for a configuration that has been loaded. `tries_rights`: whether this process may do what a start
/// does is tried.
///
/// Root becomes the user that the daemon would become, so that this looks with its eyes. `file` is where the
/// configuration was read from.
pub fn execute(
    config: &Config,
    file: Option<&Path>,
    (json, tries_rights): (bool, bool),
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let daemon_user = DaemonUser::of(config)?.assume(config)?;
    let refused = look_ahead(config, file)?.into_iter().map(|why| format!("a reload will be refused: {why}"));
    let warnings: Vec<String> = daemon_user.warning().into_iter().chain(refused).collect();
    // The daemon of this very configuration is no neighbour: it would be restarted.
    let own_socket = config.daemon.control_socket.value.as_deref();
    let plan = plan::make(config, &user::with_hands_of_root(|| plan::neighbours(own_socket)))?;
    // The daemon would not start without its token either.
    config.daemon.metrics_token_file.as_deref().map(TokenFile::read).transpose()?;
    let rights = tries_rights.then(|| Rights::try_all(config, &plan)).transpose()?;
    let mut shown = PlanJson { rights, ..json_of(config, &plan, daemon_user.words()) };
    shown.warnings.extend(warnings);
    let text = match json {
        true => serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n",
        false => render(config, &shown, &plan),
    };
    console::print(out, &text)
}

fn json_of<'a>(config: &'a Config, plan: &'a PipelinePlan, user: String) -> PlanJson<'a> {
    let lane = |lane: &'a LanePlan| LaneJson {
        listener: &config.listeners[lane.listener].name,
        lane: lane.number,
        address: lane.address.to_string(),
        cpu: lane.core,
        node: lane.node,
        queue: lane.intake.queue,
        arrival_cpus: lane.intake.expected_cores(),
        rate: lane.rate,
        receive_buffer_bytes: 2 * lane.receive_buffer_bytes + lane.ring_bytes(),
        engine: lane.engine.kind.to_string(),
        engine_why: &lane.engine.why,
        covers_ms: lane.covered(2 * lane.receive_buffer_bytes).as_secs_f64() * 1000.0,
        batches: lane.batches(),
        pool_bytes: lane.batches_bytes(),
    };
    let sinks = config.sinks.iter().zip(&plan.sinks);
    let consumers = sinks.map(|(sink, planned)| SinkJson {
        sink: &sink.name,
        consumers: planned.consumers,
        inline: planned.is_inline,
        cpus: steer::format_core_list(&plan.consumer_cores),
    });
    let stall = |stall: Stall| StallJson {
        listener: &config.listeners[stall.listener].name,
        sink: &config.sinks[stall.sink].name,
        rate: stall.rate,
        size_bytes: stall.payload_bytes,
        stall_ms: stall.survived(stall.datagrams).as_secs_f64() * 1000.0,
        datagrams: stall.datagrams,
        own_stall_ms: stall.survived(stall.own_datagrams).as_secs_f64() * 1000.0,
        own_datagrams: stall.own_datagrams,
    };
    let memory = plan.memory();
    PlanJson {
        valid: true,
        user,
        lanes: plan.lanes.iter().map(lane).collect(),
        consumers: consumers.collect(),
        spills: config
            .sinks
            .iter()
            .zip(&plan.sinks)
            .filter_map(|(sink, plan)| spill_json(sink, plan.consumers))
            .collect(),
        uploads: config
            .sinks
            .iter()
            .filter_map(|sink| Some(UploadJson { sink: &sink.name, url: sink.settings.uploads_to()? }))
            .collect(),
        lists: config.listeners.iter().filter_map(list_json).collect(),
        stalls: plan.pool.stalls(config, &plan.sinks, &plan.lanes).into_iter().map(stall).collect(),
        pool_bytes: memory.pool_bytes(),
        memory,
        receive_buffers: Buffers::of(plan),
        history: history_json(config),
        attached: [remarks::attachments(config, plan), remarks::kernel_filters(config)].concat(),
        rights: None,
        warnings: remarks::warnings(config, plan),
    }
}

fn spill_json(sink: &SinkConfig, consumers: usize) -> Option<SpillJson<'_>> {
    let spill = sink.settings.spill()?;
    let memory_bytes = consumers * spill.memory_bytes;
    Some(SpillJson { sink: &sink.name, path: spill.path, disk_bytes: spill.bytes, memory_bytes })
}

fn history_json(config: &Config) -> Option<HistoryJson> {
    let (directory, days) = config.daemon.kept_days()?;
    let path = metrics::file_in(&directory, config.daemon.metrics_address.value?);
    Some(HistoryJson { days, path, disk_bytes: metrics::bytes_on_disk(days) })
}

fn list_json(listener: &ListenerConfig) -> Option<ListJson<'_>> {
    let list = listener.access.list.as_ref()?;
    let (networks, bytes) = (list.networks(), list.bytes());
    Some(ListJson { listener: &listener.name, networks, files: listener.access.files().collect(), bytes })
}

fn render(config: &Config, shown: &PlanJson<'_>, plan: &PipelinePlan) -> String {
    let mut text = format!("the configuration is valid\n\nuser: {}\n\nlanes\n", shown.user);
    for lane in &shown.lanes {
        let core = lane.cpu.map_or("any core".to_owned(), |core| format!("core {core}"));
        let node = lane.node.map_or(String::new(), |node| format!(", node {node}"));
        let queue = lane.queue.map_or(String::new(), |queue| format!(", from queue {queue}"));
        let room = if lane.engine == EngineKind::AfXdp.to_string() { "ring" } else { "receive buffer" };
        let arrival = match lane.arrival_cpus {
            [] => String::new(),
            cores => format!(", from cores {}", steer::format_core_list(cores)),
        };
        text += &format!(
            "  {}/{}  {}  {core}{node}{queue}{arrival}  {}  {room} {} covers {:.0} ms at {}/s  {} batches, \
             {}\n",
            lane.listener,
            lane.lane,
            lane.address,
            lane.engine,
            Bytes(lane.receive_buffer_bytes),
            lane.covers_ms,
            lane.rate,
            lane.batches,
            Bytes(lane.pool_bytes)
        );
    }
    text += "\nsinks\n";
    shown.consumers.iter().for_each(|sink| text += &sink.text());
    shown.spills.iter().for_each(|spill| text += &line_of_spill(spill));
    for UploadJson { sink, url } in &shown.uploads {
        text += &format!("  {sink}  finished files are uploaded to {url}\n");
    }
    for stall in &shown.stalls {
        text += &format!(
            "  {}  may stall for {} before listener {} loses datagrams, at {}/s of {} bytes; {} of that even when \
             everything else waits too\n",
            stall.sink,
            time(stall.stall_ms),
            stall.listener,
            stall.rate,
            stall.size_bytes,
            time(stall.own_stall_ms)
        );
    }
    if !shown.lists.is_empty() {
        text += "\nlists\n";
    }
    for list in &shown.lists {
        let files = list.files.len();
        text += &format!(
            "  {}  {} networks, {} file{}  {}\n",
            list.listener,
            list.networks,
            files,
            if files == 1 { "" } else { "s" },
            Bytes(list.bytes)
        );
    }
    text += &format!("\npool\n{}", sum_of_pool(config, &plan.pool));
    text += &format!(
        "memory: {}, up to {} in receive buffers (the kernel's)\n",
        shown.memory,
        Bytes(shown.memory.receive_buffer_bytes)
    );
    text += &format!("receive buffers: {}\n", shown.receive_buffers.text());
    if let Some(HistoryJson { days, path, disk_bytes }) = &shown.history {
        let a_day = metrics::bytes_on_disk(1);
        text += &format!("history: {days} days in {}, {disk_bytes} bytes, {a_day} a day\n", path.display());
    }
    text += &shown.rights.as_ref().map_or(String::new(), Rights::text);
    for line in &shown.attached {
        text += &format!("attached: {line}\n");
    }
    for warning in &shown.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

fn line_of_spill(spill: &SpillJson<'_>) -> String {
    let SpillJson { sink, path, disk_bytes, memory_bytes } = spill;
    let (disk, memory) = (print_size(*disk_bytes), Bytes(*memory_bytes));
    format!("  {sink}  spill {}  up to {disk} on the disk, {memory} of memory\n", path.display())
}

fn time(milliseconds: f64) -> String {
    match milliseconds {
        short if short < 1000.0 => format!("{short:.0} ms"),
        long => format!("{:.1} s", long / 1000.0),
    }
}

/// The parts of the pool, which add up.
fn sum_of_pool(config: &Config, pool: &PoolPlan) -> String {
    let is_written = config.listeners.iter().any(|listener| listener.absorb.is_written);
    let asked = match (is_written, config.sinks.iter().any(|sink| sink.queue_bytes.is_some())) {
        (true, false) => "that absorb asks for",
        (false, true) => "that queue_bytes asks for",
        _ => "that absorb and queue_bytes ask for",
    };
    let blocks_bytes = pool.blocks_bytes();
    let parts = [
        (pool.batches_bytes, "in batches, which lanes receive into"),
        (pool.asked_bytes, asked),
        (blocks_bytes - pool.asked_bytes, "for whatever else waits: two blocks of each queue, the rest shared"),
    ];
    let line = |(bytes, what): (usize, &str)| format!("  {:>10}  {what}\n", Bytes(bytes).to_string());
    let whole = (pool.batches_bytes + blocks_bytes, "in all, fixed at the start");
    parts.into_iter().filter(|(bytes, _)| *bytes > 0).chain([whole]).map(line).collect()
}

/// Tries to break out of the sandbox that a daemon with this configuration would be in, and prints what came of it.
pub fn try_sandbox(config: &Config, out: &mut dyn Write) -> Result<(), Failure> {
    let plan = plan::make(config, &plan::neighbours(config.daemon.control_socket.value.as_deref()))?;
    let (registry, _events) = ThreadRegistry::new();
    let tried = udpd_sandbox::attempts(run::path_rules(config, &plan, None), &run::roles(config), &registry);
    let (attempts, missing) = tried.map_err(|error| threads::start_failure("udpd-trial", &error))?;
    let mut text = String::new();
    for attempt in &attempts {
        let outcome = match (attempt.is_refused, attempt.is_granted()) {
            (true, _) => "refused",
            (false, true) => "granted",
            (false, false) => "LET THROUGH",
        };
        text += &format!("{:<28}  {:<30}  {outcome}\n", attempt.role, attempt.what);
    }
    missing.iter().for_each(|what| text += &format!("missing: {what}\n"));
    console::print(out, &text)?;
    let through = attempts.iter().filter(|attempt| !attempt.is_refused && !attempt.is_granted()).count();
    match (through, missing.len()) {
        (0, 0) => Ok(()),
        _ => Err(Failure::new(
            ExitCode::Permission,
            format!("{through} of {} attempts were let through; docs/sandbox.md says what that means", attempts.len()),
        )),
    }
}

/// The failure of a configuration that was given neither as a file nor as arguments.
pub fn no_configuration(path: &Path) -> Failure {
    let message = format!(
        "{}: no such file; write one (see config/udpd.toml), name one with -c, or run without: udpd run --listen \
         127.0.0.1:5140 --to stdout:",
        path.display()
    );
    Failure::new(ExitCode::Configuration, message)
}

//! Whether there is as much memory as the plan takes. All of it is touched at the start, so too much is not an error of
//! some later call: the kernel kills this process or another without a message. So the plan is first compared with what
//! the control groups allow, with what the machine has, and with what this process may map and lock. What does not fit
//! is refused with the sum and the keys that lower it.

use std::fs;
use std::path::{Path, PathBuf};

use mmsg::Uring;

use super::PipelinePlan;
use super::kernel_limits::{AddressSpace, LockableMemory, group_limit, locked_limit};
use super::memory::Bytes;
use crate::config::{Absorb, Config, EngineKind, ListenerConfig};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::units::{print_duration, print_size};

/// How full a limit may be without a warning: the kernel counts receive buffers and file pages as well.
const NEAR_PERCENT: u64 = 90;

/// The pool of a machine that has enough.
const POOL_BYTES: usize = 48 << 20;

/// The least, and the share of a small machine's memory.
const POOL_BYTES_MIN: usize = 4 << 20;
const POOL_PART: u64 = 16;

/// What this process may take of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The least that a control group allows, and where that is written.
    pub group: Option<(u64, PathBuf)>,
    /// What the machine has, without swap.
    pub memory_bytes: Option<u64>,
    /// The same with swap.
    pub total_bytes: Option<u64>,
    /// What is available of it now, with swap.
    pub available_bytes: Option<u64>,
    pub address_space: Option<AddressSpace>,
    /// What the rings of this process may take, where that is limited.
    pub locked_bytes: Option<u64>,
    /// What AF_XDP may lock.
    pub pinned: LockableMemory,
}

impl MemoryLimits {
    pub fn read(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let swap = |name: &str| field(name).unwrap_or(0);
        Self {
            group: group_limit(root),
            memory_bytes: field("MemTotal"),
            total_bytes: field("MemTotal").map(|bytes| bytes.saturating_add(swap("SwapTotal"))),
            available_bytes: field("MemAvailable").map(|bytes| bytes.saturating_add(swap("SwapFree"))),
            address_space: AddressSpace::read(root),
            locked_bytes: locked_limit(root),
            pinned: LockableMemory::read(root),
        }
    }

    /// The memory for datagrams where the configuration does not say: a sixteenth of what this process may have, within
    /// bounds.
    pub(super) fn automatic_pool_bytes(&self) -> usize {
        let group = self.group.as_ref().map(|(bytes, _)| *bytes);
        let address_space = self.address_space.as_ref().map(|space| space.limit_bytes);
        let least = [group, address_space, self.memory_bytes].into_iter().flatten().min();
        let part = least.map_or(POOL_BYTES, |bytes| usize::try_from(bytes / POOL_PART).unwrap_or(usize::MAX));
        part.clamp(POOL_BYTES_MIN, POOL_BYTES)
    }

    /// Refuses a plan that can never fit. Returns warnings about one that just fits, or does not fit at this moment.
    pub fn judge(&self, config: &Config, plan: &PipelinePlan) -> Result<Vec<String>, Failure> {
        let needed = needed(plan);
        let mut remarks = Vec::new();
        if let Some((limit, file)) = &self.group {
            let from = format!("the control group allows {} ({})", text(*limit), file.display());
            if needed > *limit {
                let cure = ", or raise the limit (MemoryMax= in the unit file, --memory of a container)";
                return Err(refusal(config, plan, &from, cure));
            }
            if needed > limit / 100 * NEAR_PERCENT {
                remarks.push(format!(
                    "{}, and {from}: that leaves little for receive buffers and file pages; {}",
                    sum(plan),
                    cure(config, plan)
                ));
            }
        }
        if let Some(total) = self.total_bytes.filter(|total| needed > *total) {
            return Err(refusal(config, plan, &format!("this machine has {}", text(total)), ""));
        }
        if let Some(available) = self.available_bytes.filter(|available| needed > *available) {
            remarks.push(format!(
                "{}, and only {} are available now; a start would fail unless another process frees some; {}",
                sum(plan),
                text(available),
                cure(config, plan)
            ));
        }
        remarks.extend(self.judge_address_space(config, plan)?);
        self.judge_rings(config, plan)?;
        remarks.extend(self.judge_pinned(plan)?);
        Ok(remarks)
    }

    /// Checks the memory that AF_XDP locks. A reload makes new engines beside the old ones, and by then the capability
    /// that may have exempted the start is gone.
    fn judge_pinned(&self, plan: &PipelinePlan) -> Result<Option<String>, Failure> {
        let needed = plan.locked_bytes() as u64;
        let Some(limit) = self.pinned.bytes.filter(|limit| 2 * needed > *limit) else { return Ok(None) };
        let takes = format!(
            "engine = \"af_xdp\": its queues take {} of locked memory, and this process may lock {} (RLIMIT_MEMLOCK, \
             ulimit -l)",
            text(needed),
            text(limit)
        );
        let cure = format!("raise the limit to {} (LimitMEMLOCK= in the unit file)", text(2 * needed));
        if needed > limit && !self.pinned.is_exempt {
            let message = format!("{takes}; {cure}, lower absorb, or write engine = \"auto\", which uses recvmmsg");
            return Err(Failure::new(ExitCode::Permission, message));
        }
        Ok(Some(format!(
            "{takes}: that is too little for the engines of before and after together, so a reload is refused, and an \
             interface that comes back or changes its number of queues is received from sockets until a restart; {cure}"
        )))
    }

    /// Checks the address space, where all mappings count: also the stacks of threads and what malloc reserves.
    fn judge_address_space(&self, config: &Config, plan: &PipelinePlan) -> Result<Option<String>, Failure> {
        let Some(space) = &self.address_space else { return Ok(None) };
        let threads = plan.memory().threads;
        let stacks = space.stacks_bytes(threads);
        let slack = plan.pool.mapping_slack_bytes(&plan.lanes) as u64;
        let needed = needed(plan).saturating_add(space.mapped_bytes).saturating_add(stacks).saturating_add(slack);
        let from = format!(
            "the address space of this process is limited to {} (RLIMIT_AS, ulimit -v), of which the program has {} \
             and the stacks of further threads take {}",
            text(space.limit_bytes),
            text(space.mapped_bytes),
            text(stacks)
        );
        if needed > space.limit_bytes {
            let cure = format!(", or raise the limit to {} (LimitAS= in the unit file)", text(needed));
            return Err(refusal(config, plan, &from, &cure));
        }
        let arenas = space.arenas_bytes(threads, plan.node_of_core.len());
        let is_close = needed.saturating_add(arenas) > space.limit_bytes;
        Ok(is_close.then(|| {
            format!(
                "{}, and {from}: that fits, but malloc reserves up to {} for its threads before they need it, and may \
                 leave too little; write Environment=MALLOC_ARENA_MAX=1 in the unit file, or raise the limit to {} \
                 (LimitAS=)",
                sum(plan),
                text(arenas),
                text(needed.saturating_add(arenas))
            )
        }))
    }

    /// Refuses rings that may not lock their memory.
    fn judge_rings(&self, config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
        let rings = || plan.lanes.iter().filter(|lane| lane.engine.kind == EngineKind::IoUring);
        let of_lane = |slots: usize| Uring::locked_bytes(slots) as u64;
        // udpd has tried with a ring whether the kernel permits them, and that one may still exist.
        let needed = of_lane(0) + rings().map(|lane| of_lane(lane.shape.slots)).sum::<u64>();
        let exceeded = self.locked_bytes.filter(|limit| needed > *limit);
        let (Some(limit), Some(largest)) = (exceeded, rings().max_by_key(|lane| lane.shape.slots)) else {
            return Ok(());
        };
        let message = format!(
            "engine = \"io_uring\": the rings take {} of locked memory, {} to try one and {} for each lane of listener \
             {}, and all processes of this user together may lock {} (RLIMIT_MEMLOCK, ulimit -l); lower batch_size \
             ({}) or lanes, write engine = \"auto\", which uses recvmmsg, or raise the limit (LimitMEMLOCK= in the \
             unit file)",
            text(needed),
            text(of_lane(0)),
            text(of_lane(largest.shape.slots)),
            config.listeners[largest.listener].name,
            text(limit),
            largest.shape.slots
        );
        Err(Failure::new(ExitCode::Configuration, message))
    }

    /// Refuses a start for which there is clearly not enough memory at this moment. Trying again later may help.
    pub fn refuse_start(&self, config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
        let clearly = |available: &u64| needed(plan) > available.saturating_add(available / 10);
        match self.available_bytes.filter(clearly) {
            None => Ok(()),
            Some(available) => {
                let what = format!("only {} are available now (MemAvailable and SwapFree)", text(available));
                Err(Failure { code: ExitCode::Failure, ..refusal(config, plan, &what, ", or stop something else") })
            }
        }
    }

    /// Refuses a plan that does not fit beside the one that is running.
    pub fn refuse_beside(&self, plan: &PipelinePlan, before: &PipelinePlan) -> Result<(), Failure> {
        self.refuse_both(plan, needed(before), "restart udpd instead: the service manager keeps the sockets")
    }

    /// Refuses a plan that does not fit beside another process under the same limits, which has so much memory.
    pub fn refuse_beside_process(&self, plan: &PipelinePlan, has_bytes: u64) -> Result<(), Failure> {
        let cure =
            "lower [daemon] pool_bytes, or raise the limit (MemoryMax= in the unit file, --memory of a container)";
        self.refuse_both(plan, has_bytes, cure)
    }

    fn refuse_both(&self, plan: &PipelinePlan, before: u64, cure: &str) -> Result<(), Failure> {
        let both = needed(plan).saturating_add(before);
        let of_group = self.group.as_ref().map(|(limit, _)| (*limit, "the control group allows"));
        let of_machine = self.total_bytes.map(|total| (total, "this machine has"));
        let now = self.available_bytes.map(|left| (left.saturating_add(before), "with what it has it can have"));
        let limits = [of_group, of_machine, now].into_iter().flatten();
        let Some((limit, whose)) = limits.filter(|(limit, _)| both > *limit).min() else { return Ok(()) };
        let message = format!(
            "for a moment the memory of both configurations is needed, {} and {}, and {whose} {}; {cure}",
            text(before),
            text(needed(plan)),
            text(limit)
        );
        Err(Failure::new(ExitCode::Failure, message))
    }
}

fn needed(plan: &PipelinePlan) -> u64 {
    plan.memory().total_bytes() as u64
}

fn sum(plan: &PipelinePlan) -> String {
    let memory = plan.memory();
    let (total, own) = (Bytes(memory.total_bytes()), Bytes(memory.own_bytes()));
    format!("the plan takes {total} of memory ({memory}, {own} for udpd itself)")
}

fn refusal(config: &Config, plan: &PipelinePlan, limit: &str, other_cure: &str) -> Failure {
    let message = format!("{}, and {limit}; {}{other_cure}", sum(plan), cure(config, plan));
    Failure::new(ExitCode::Configuration, message)
}

fn text(bytes: u64) -> Bytes {
    Bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The keys to lower where a plan takes too much memory: those that its largest part follows from, with their values.
fn cure(config: &Config, plan: &PipelinePlan) -> String {
    let memory = plan.memory();
    let shared_bytes = memory.waiting_bytes.saturating_sub(memory.asked_bytes);
    let parts = [memory.asked_bytes, memory.batches_bytes, memory.sink_bytes, shared_bytes];
    match parts.iter().position(|part| Some(part) == parts.iter().max()) {
        Some(0) => cure_for_asked(config),
        Some(1) => cure_for_batches(config, plan),
        Some(2) => "lower consumers of the sinks".to_owned(),
        _ => format!("lower pool_bytes under [daemon] ({})", size(config.daemon.pool_bytes)),
    }
}

/// For what `queue_bytes` and `absorb` ask for.
fn cure_for_asked(config: &Config) -> String {
    let queues = config.sinks.iter().filter(|sink| sink.queue_bytes.is_some());
    let queues: Vec<String> = queues.map(|sink| format!("{} of sink {}", size(sink.queue_bytes), sink.name)).collect();
    let bursts = config.listeners.iter().filter(|listener| listener.absorb.is_written);
    let burst = |listener: &ListenerConfig| {
        let Absorb { rate, stall, .. } = listener.absorb;
        format!("{rate}/s for {} of listener {}", print_duration(stall), listener.name)
    };
    let bursts: Vec<String> = bursts.map(burst).collect();
    let named = [("queue_bytes", queues), ("absorb", bursts)];
    let named = named.iter().filter(|(_, values)| !values.is_empty());
    let named: Vec<String> = named.map(|(key, values)| format!("{key} ({})", shortened(values))).collect();
    format!("lower {}", named.join(" or "))
}

/// The first few of a list.
fn shortened(values: &[String]) -> String {
    const SHOWN_MAX: usize = 4;
    match values.len() {
        0..=SHOWN_MAX => values.join(", "),
        count => format!("{}, and {} more", values[..SHOWN_MAX].join(", "), count - SHOWN_MAX),
    }
}

/// For the batches of the listener whose lanes take the most.
fn cure_for_batches(config: &Config, plan: &PipelinePlan) -> String {
    let lanes = |listener: usize| plan.lanes.iter().filter(move |lane| lane.listener == listener);
    let bytes_of = |listener: usize| lanes(listener).map(|lane| lane.batches_bytes()).sum::<usize>();
    let Some(largest) = (0..config.listeners.len()).max_by_key(|&listener| bytes_of(listener)) else {
        return "name fewer listeners".to_owned();
    };
    let listener = &config.listeners[largest];
    let slots = match listener.gro.is_on() {
        true => "write gro = \"off\", whose batches take 64 KiB for each message".to_owned(),
        false => format!("lower max_length ({} bytes)", listener.max_length_bytes),
    };
    format!(
        "of the batches {} are for listener {}: {slots}, lower batch_size ({}) or lanes ({})",
        Bytes(bytes_of(largest)),
        listener.name,
        listener.batch_size,
        lanes(largest).count()
    )
}

fn size(bytes: Option<usize>) -> String {
    bytes.map_or("auto".to_owned(), |bytes| print_size(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::plan_of;
    use hostloss::testing::root;

    /// One listener and one sink, with these keys more, on a machine of one core that has enough.
    fn planned(listener: &str, sink: &str) -> (Config, PipelinePlan) {
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"x\"]\n{listener}\n\
             [sink.x]\ntype = \"null\"\n{sink}\n"
        );
        plan_of(&text, EngineKind::Recvmmsg)
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        assert_eq!(MemoryLimits::read(root(&[]).path()), MemoryLimits::default());
    }

    #[test]
    fn the_memory_of_the_machine_is_read_with_its_swap() {
        let text = "MemTotal:        1000 kB\nMemAvailable:     400 kB\nSwapTotal: 24 kB\nSwapFree: 20 kB\n";
        let limits = MemoryLimits::read(root(&[("proc/meminfo", text)]).path());
        let read = [limits.memory_bytes, limits.total_bytes, limits.available_bytes];
        assert_eq!(read, [Some(1000 << 10), Some(1024 << 10), Some(420 << 10)]);
    }

    #[test]
    fn a_plan_that_does_not_fit_its_group_is_refused_with_the_sum_and_the_keys() {
        let (config, plan) = planned("", "");
        let limits =
            MemoryLimits { group: Some((16 << 20, "/sys/fs/cgroup/x/memory.max".into())), ..MemoryLimits::default() };
        let failure = limits.judge(&config, &plan).expect_err("too much");
        assert_eq!(failure.code, ExitCode::Configuration);
        for words in [
            "in batches",
            "4.3 MiB for udpd itself",
            "allows 16.0 MiB (/sys/fs/cgroup/x/memory.max)",
            "lower pool_bytes under [daemon] (auto), or raise",
            "MemoryMax=",
        ] {
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
    }

    #[test]
    fn a_limit_is_a_limit_to_the_byte_and_near_it_there_is_one_warning() {
        let (config, plan) = planned("", "");
        let needed = needed(&plan);
        let judge = |bytes: u64| {
            MemoryLimits { group: Some((bytes, PathBuf::new())), ..MemoryLimits::default() }
                .judge(&config, &plan)
                .map(|said| said.len())
        };
        assert!(judge(needed - 1).is_err());
        assert_eq!((judge(needed).expect("fits"), judge(2 * needed).expect("fits")), (1, 0));
    }

    #[test]
    fn a_machine_that_is_too_small_is_refused_and_one_that_is_full_now_only_at_the_start() {
        let (config, plan) = planned("", "");
        let needed = needed(&plan);
        let small = MemoryLimits { total_bytes: Some(needed - 1), ..MemoryLimits::default() };
        assert!(small.judge(&config, &plan).expect_err("too small").message.contains("this machine has"));
        let full = MemoryLimits {
            total_bytes: Some(2 * needed),
            available_bytes: Some(needed - 1),
            ..MemoryLimits::default()
        };
        assert_eq!(full.judge(&config, &plan).expect("valid").len(), 1);
        assert!(full.refuse_start(&config, &plan).is_ok(), "an estimate is not taken for more than that");
        let fuller = MemoryLimits { available_bytes: Some(needed / 2), ..full.clone() };
        let failure = fuller.refuse_start(&config, &plan).expect_err("no room");
        assert_eq!(failure.code, ExitCode::Failure, "trying again may help, which 78 would say it does not");
        assert!(MemoryLimits::default().refuse_start(&config, &plan).is_ok());
    }

    #[test]
    fn a_process_that_takes_over_has_to_fit_beside_the_one_that_runs() {
        let (_, plan) = planned("", "");
        let (needed, other) = (needed(&plan), 5 << 20);
        let group = |limit| MemoryLimits { group: Some((limit, PathBuf::new())), ..MemoryLimits::default() };
        assert!(group(needed + other).refuse_beside_process(&plan, other).is_ok());
        let failure = group(needed + other - 1).refuse_beside_process(&plan, other).expect_err("a byte too much");
        assert!(failure.message.contains("5.0 MiB and") && failure.message.contains("pool_bytes"), "{failure}");
    }

    fn space(limit_bytes: u64, arenas_max: Option<usize>) -> MemoryLimits {
        let space = AddressSpace { limit_bytes, mapped_bytes: 20 << 20, threads_running: 1, arenas_max };
        MemoryLimits { address_space: Some(space), ..MemoryLimits::default() }
    }

    #[test]
    fn a_plan_that_does_not_fit_the_address_space_is_refused_with_the_sum_and_the_keys() {
        let (config, plan) = planned("", "");
        // A receiver, a consumer and five others; the ends of mappings for huge pages, of the lane and of the node.
        let needed = needed(&plan) + (20 << 20) + 2 * (512 << 10) + 5 * (2 << 20) + 2 * (4 << 20);
        let failure = space(needed - 1, Some(1)).judge(&config, &plan).expect_err("too much");
        assert_eq!(failure.code, ExitCode::Configuration);
        for words in [
            "in batches",
            "the address space of this process is limited to",
            "of which the program has 20.0 MiB and the stacks of further threads take 11.0 MiB",
            "lower pool_bytes under [daemon] (auto), or raise",
            "LimitAS= in the unit file",
        ] {
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
        assert_eq!(space(needed, Some(1)).judge(&config, &plan).expect("it fits"), Vec::<String>::new());
    }

    #[test]
    #[cfg_attr(not(target_env = "gnu"), ignore = "this malloc reserves nothing")]
    fn address_space_that_malloc_may_take_away_is_one_warning() {
        let (config, plan) = planned("", "");
        let said = |limit: u64| space(limit, None).judge(&config, &plan).expect("it fits");
        let needed = needed(&plan) + (20 << 20) + 2 * (512 << 10) + 5 * (2 << 20) + 2 * (4 << 20);
        let [line] = said(needed).try_into().expect("one");
        assert!(line.contains("MALLOC_ARENA_MAX=1") && line.contains("up to 448.0 MiB for its threads"), "{line}");
        assert_eq!(said(needed + (448 << 20)), Vec::<String>::new());
    }

    #[test]
    fn rings_that_may_not_lock_their_memory_are_refused_with_the_sum_and_the_keys() {
        let (mut config, mut plan) = planned("", "");
        let limits = |bytes| MemoryLimits { locked_bytes: Some(bytes), ..MemoryLimits::default() };
        assert!(limits(0).judge(&config, &plan).is_ok(), "recvmmsg locks nothing");
        config.listeners[0].engine = Some(EngineKind::IoUring);
        plan.lanes[0].engine.kind = EngineKind::IoUring;
        let failure = limits((28 << 10) - 1).judge(&config, &plan).expect_err("too much");
        assert_eq!(failure.code, ExitCode::Configuration);
        for words in ["the rings take 28.0 KiB", "may lock 28.0 KiB", "batch_size (64)", "LimitMEMLOCK="] {
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
        assert!(limits(28 << 10).judge(&config, &plan).is_ok());
    }

    fn cured(listener: &str, sink: &str) -> String {
        let (config, plan) = planned(listener, sink);
        cure(&config, &plan)
    }

    #[test]
    fn the_keys_behind_the_largest_part_are_named_with_their_values() {
        assert_eq!(cured("", ""), "lower pool_bytes under [daemon] (auto)");
        assert_eq!(cured("", "queue_bytes = \"64MiB\""), "lower queue_bytes (64MiB of sink x)");
        assert_eq!(
            cured("absorb = { rate = 100000, stall = \"2s\" }", ""),
            "lower absorb (100000/s for 2s of listener in)"
        );
        assert_eq!(
            cured("absorb.stall = \"1s\"", "queue_bytes = \"64MiB\""),
            "lower queue_bytes (64MiB of sink x) or absorb (200000/s for 1s of listener in)"
        );
        assert_eq!(
            cured("max_length = 65535\nbatch_size = 1024", ""),
            "of the batches 256.6 MiB are for listener in: lower max_length (65535 bytes), lower batch_size (1024) or \
             lanes (1)"
        );
        assert!(cured("gro = \"on\"\nbatch_size = 1024\nlanes = 64", "").contains("write gro = \"off\""));
    }

    const MEBIBYTE: u64 = 1 << 20;

    fn pool_on(memory: u64, group: Option<u64>, address_space: Option<u64>) -> usize {
        let space = |limit_bytes| AddressSpace { limit_bytes, mapped_bytes: 0, threads_running: 1, arenas_max: None };
        let limits = MemoryLimits {
            memory_bytes: Some(memory * MEBIBYTE),
            group: group.map(|bytes| (bytes * MEBIBYTE, "memory.max".into())),
            address_space: address_space.map(|bytes| space(bytes * MEBIBYTE)),
            ..MemoryLimits::default()
        };
        limits.automatic_pool_bytes() >> 20
    }

    #[test]
    fn a_small_machine_gets_a_sixteenth_and_a_large_one_what_suffices() {
        let given = [16, 64, 128, 512, 767, 768, 4096, 1 << 20].map(|memory| pool_on(memory, None, None));
        assert_eq!(given, [4, 4, 8, 32, 47, 48, 48, 48]);
    }

    #[test]
    fn the_least_of_machine_group_and_address_space_counts() {
        assert_eq!(pool_on(65_536, Some(256), None), 16);
        assert_eq!(pool_on(256, Some(65_536), None), 16);
        assert_eq!(pool_on(65_536, Some(512), Some(256)), 16);
        assert_eq!(pool_on(65_536, Some(16), None), 4, "whether that fits is for the limits to say");
    }

    #[test]
    fn a_machine_that_tells_nothing_is_taken_for_a_large_one() {
        assert_eq!(MemoryLimits::default().automatic_pool_bytes(), 48 << 20);
    }
}

//! `[sink.NAME]`: the keys that every sink has. The others belong to its type.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;

use udpd_base::handover::route::FullPolicy;
use udpd_base::settings::kinds::{ByteSize, Flag, OneOf, Or, WholeNumber};
use udpd_base::settings::{Field, Findings, ValueKind, ValuePlace, settings};
use udpd_base::sink::{AnySettings, SinkSettings};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units::print_size;

/// `[sink.NAME]`.
#[derive(Debug, Clone)]
pub struct SinkConfig {
    /// Unique, `[A-Za-z0-9_.-]{1,64}`. A relay to several destinations becomes a sink for each, `NAME@ADDRESS:PORT`.
    pub name: String,
    /// The settings of its type.
    pub settings: AnySettings,
    pub consumers: ConsumerCount,
    /// Whether it runs on the threads of the receivers that feed it.
    pub inline: bool,
    /// What may wait for each consumer, in bytes of the pool; `None` leaves it to the plan.
    pub queue_bytes: Option<usize>,
    /// What happens when no more may wait.
    pub when_full: FullPolicy,
}

impl SinkConfig {
    /// A sink with defaults for all but its name and the settings of its type.
    pub fn new(name: impl Into<String>, settings: impl SinkSettings) -> Self {
        Self::with(name, Arc::new(settings), CommonKeys::default())
    }

    pub fn with(name: impl Into<String>, settings: AnySettings, common: CommonKeys) -> Self {
        let CommonKeys { consumers, inline, queue_bytes, when_full } = common;
        Self { name: name.into(), settings, consumers, inline, queue_bytes, when_full }
    }
}

settings! {
    /// The keys that every sink has.
    #[derive(Debug, Clone)]
    pub struct CommonKeys {
        /// How many consumer threads: so many, or one for each lane that feeds the sink.
        consumers: ConsumerCount = 1,
            Or(&[("per_lane", ConsumerCount::PerLane)], WholeNumber(1..=1024), ConsumerCount::of),
            elsewhere "threads workers";
        /// Run the sink on the threads of its receivers, without a queue, a consumer and a second wake-up. For sinks
        /// that never wait: null, udp, and unix with datagrams; what is not taken at once counts as sink_error.
        inline: bool = false, Flag, elsewhere "run_to_completion";
        /// How much may wait for each consumer, as memory of the pool.
        queue_bytes: Option<usize> = "auto", QueueBytes, elsewhere "queue_size queue_length", formerly "queue_batches";
        /// What happens to a datagram when no more may wait.
        when_full: FullPolicy = "drop_newest", OneOf(POLICIES), elsewhere "overflow";
    }
}

/// How many consumers a sink has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerCount {
    /// This many; lane i feeds consumer i mod N.
    Count(NonZeroUsize),
    /// One for each lane that feeds the sink.
    PerLane,
}

impl ConsumerCount {
    fn of(count: usize) -> Self {
        Self::Count(NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN))
    }
}

/// A size, or `"auto"`. The older spelling counted batches.
struct QueueBytes;

/// With less than two of the smallest blocks nothing could be handed over while one is filled.
const QUEUE: RangeInclusive<u64> = 64 << 10..=1024 << 30;

/// A batch of the older spelling: 64 datagrams of 512 bytes.
const BATCH_BYTES: u64 = 32 << 10;
const BATCHES: RangeInclusive<u64> = 1..=65_536;

impl QueueBytes {
    const SIZE: Or<usize, Option<usize>, ByteSize> = Or(&[("auto", None)], ByteSize(QUEUE), Some);
}

impl ValueKind<Option<usize>> for QueueBytes {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Option<usize>> {
        Self::SIZE.read(field, findings)
    }

    fn read_older(&self, field: &Field<'_>, older: &ValuePlace, findings: &mut Findings<'_>) -> Option<Option<usize>> {
        let batches: u64 = WholeNumber(0..=u64::MAX).read(field, findings)?;
        if !BATCHES.contains(&batches) {
            let what = format!("{batches} is outside {} to {}", BATCHES.start(), BATCHES.end());
            findings.say(&field.place(), what, "write what may wait in bytes: queue_bytes = \"8MiB\", for example");
            return None;
        }
        let bytes = (batches * BATCH_BYTES).max(*QUEUE.start());
        let size = print_size(bytes);
        let what = format!("is the older spelling of queue_bytes; udpd reads {batches} batches as {size}");
        findings.warn(older, ValueAdvice::new(what, format!("write queue_bytes = \"{size}\" instead")));
        Some(usize::try_from(bytes).ok())
    }

    fn bounds(&self) -> String {
        Self::SIZE.bounds()
    }
}

const POLICIES: &[(&str, FullPolicy)] =
    &[("drop_newest", FullPolicy::DropNewest), ("drop_oldest", FullPolicy::DropOldest), ("block", FullPolicy::Block)];

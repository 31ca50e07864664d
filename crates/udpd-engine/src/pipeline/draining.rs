//! What remains of a pipeline when its replacement receives: consumers that finish, consumers that have yet to move to
//! the replacement, and its ledger, which is closed when there are none of either.
//!
//! A consumer that finishes still owns what it writes. A file, a spill and standard output have one writer at any time,
//! so a new sink that writes the same waits for it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::start_gate::{EndSignal, has_ended};
use super::{
    consumer_handoff::ConsumerHandoff, cumulative_ledger::CumulativeLedger, inherited_sockets::TAKES_A_RESTART,
    pipeline_ledger::PipelineLedger,
};
use crate::config::feeders::Feeder;
use crate::config::{Config, SinkConfig};
use crate::plan::PipelinePlan;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::{self, ThreadHandle};
use udpd_base::seams::clock;
use udpd_base::sink::AnySettings;
use udpd_base::sink::settings::SinkTarget;

const CHECK_EVERY: Duration = Duration::from_micros(200);

/// A pipeline hangs that hands on nothing for so long while a reload waits for it.
const PROGRESS_WITHIN: Duration = Duration::from_millis(100);

/// For so many replacements a draining pipeline may keep its memory beside theirs. Then it is abandoned.
const REPLACEMENTS_MAX: usize = 2;

/// So many consumers may hang in a call that nothing ends, a write to a disk that stands still, after they were given
/// up. Each of them keeps the memory of a pipeline.
const HANGING_MAX: usize = 16;

/// A pipeline whose replacement receives, and which has yet to hand on what it holds.
#[derive(Debug)]
pub(super) struct DrainingPipeline {
    pub(super) ledger: Arc<PipelineLedger>,
    /// Of sinks that the replacement does not retain.
    pub(super) finishing: Vec<FinishingConsumer>,
    pub(super) followers: Vec<JoinHandle<()>>,
    /// Of sinks that the replacement retains, until the consumer has moved to it.
    pub(super) moving: Vec<MovingConsumer>,
    pub(super) receivers_ended_well: bool,
    /// How many replacements have come since, with the one that took its place.
    pub(super) replacements: usize,
}

#[derive(Debug)]
pub(super) struct FinishingConsumer {
    pub(super) sink: String,
    /// What it was opened with.
    pub(super) settings: AnySettings,
    pub(super) outputs: ExclusiveOutputs,
    /// Disconnected when its sink is closed.
    pub(super) ended: EndSignal,
    pub(super) handle: ThreadHandle,
    /// Where it still finds what it was to go on with in a later pipeline.
    pub(super) handoff: Arc<ConsumerHandoff>,
    pub(super) thread: JoinHandle<()>,
}

#[derive(Debug, Clone)]
pub(super) struct MovingConsumer {
    pub(super) sink: String,
    pub(super) handoff: Arc<ConsumerHandoff>,
    pub(super) ended: EndSignal,
    pub(super) handle: ThreadHandle,
}

/// A finishing consumer, for those who wait for what it writes.
#[derive(Debug)]
pub(super) struct UnfinishedConsumer {
    pub(super) sink: String,
    pub(super) settings: AnySettings,
    pub(super) outputs: ExclusiveOutputs,
    pub(super) is_given_up: bool,
}

/// What a sink writes and no other may write meanwhile.
#[derive(Debug, Clone, Default)]
pub(super) struct ExclusiveOutputs {
    files: BTreeSet<String>,
    standard_output: bool,
    spill: Option<PathBuf>,
}

impl ExclusiveOutputs {
    /// Of a sink of this plan.
    pub(super) fn of(config: &Config, plan: &PipelinePlan, sink: usize) -> Self {
        let files = files_by_consumer(config, plan, sink).into_iter().map(|(_, file)| file).collect();
        let settings = &config.sinks[sink].settings;
        let spill = settings.spill().map(|spill| spill.path.to_owned());
        Self { files, standard_output: settings.target() == SinkTarget::Stdout, spill }
    }

    pub(super) fn overlap(&self, other: &Self) -> bool {
        self.standard_output && other.standard_output
            || self.spill.is_some() && self.spill == other.spill
            || !self.files.is_disjoint(&other.files)
    }
}

pub(super) fn files_by_consumer(config: &Config, plan: &PipelinePlan, sink: usize) -> BTreeSet<(usize, String)> {
    let SinkConfig { name, settings, .. } = &config.sinks[sink];
    let SinkTarget::Files(path) = settings.target() else { return BTreeSet::new() };
    let file = |feeder: &Feeder| (feeder.consumer, feeder.file(&config.listeners, name, path));
    plan.sinks[sink].feeders.iter().map(file).collect()
}

impl MovingConsumer {
    fn has_yet_to_move(&self) -> bool {
        self.handoff.is_pending() && !has_ended(&self.ended)
    }
}

impl FinishingConsumer {
    fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl DrainingPipeline {
    /// The threads that end with it.
    pub(super) fn threads(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.finishing.iter().map(|consumer| &consumer.thread).chain(&self.followers)
    }

    /// A consumer that has moved belongs to a later pipeline.
    pub(super) fn forget_moved_consumers(&mut self) {
        self.moving.retain(MovingConsumer::has_yet_to_move);
    }

    fn still_moving(&self) -> impl Iterator<Item = &MovingConsumer> {
        self.moving.iter().filter(|moving| moving.has_yet_to_move())
    }

    fn still_finishing(&self) -> impl Iterator<Item = &FinishingConsumer> {
        self.finishing.iter().filter(|consumer| consumer.is_running())
    }

    /// The sinks that have yet to hand on what they took here.
    pub(super) fn sinks(&self) -> impl Iterator<Item = &str> {
        self.still_moving().map(|moving| &*moving.sink).chain(self.still_finishing().map(|consumer| &*consumer.sink))
    }

    /// The consumers that have yet to finish.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = UnfinishedConsumer> {
        self.still_finishing().map(|consumer| UnfinishedConsumer {
            sink: consumer.sink.clone(),
            settings: Arc::clone(&consumer.settings),
            outputs: consumer.outputs.clone(),
            is_given_up: consumer.handle.is_given_up(),
        })
    }

    /// Whether it keeps its memory for a consumer that was not given up.
    fn is_worth_waiting_for(&self) -> bool {
        let moving = self.still_moving().map(|moving| &moving.handle);
        moving.chain(self.still_finishing().map(|consumer| &consumer.handle)).any(|handle| !handle.is_given_up())
    }

    /// Lets its consumers know that nothing waits for them any more.
    pub(super) fn give_up(&self) {
        self.finishing.iter().for_each(|consumer| consumer.handle.give_up());
    }

    pub(super) fn is_drained(&self) -> bool {
        self.threads().all(JoinHandle::is_finished) && self.still_moving().next().is_none()
    }

    pub(super) fn close(self, cumulative: &CumulativeLedger) {
        let all_have_moved = self.still_moving().next().is_none();
        let mut threads = self.finishing.into_iter().map(|consumer| consumer.thread).chain(self.followers);
        let all_ended_well = threads.all(has_ended_well) && self.receivers_ended_well && all_have_moved;
        cumulative.close(&self.ledger, all_ended_well);
    }
}

/// The draining pipeline that the next reload abandons, unless it has finished by then.
#[derive(Debug)]
pub(super) struct OldestDraining {
    ledger: Arc<PipelineLedger>,
    finishing: Vec<EndSignal>,
    moving: Vec<MovingConsumer>,
}

impl OldestDraining {
    pub(super) fn of(draining: &[DrainingPipeline]) -> Option<Self> {
        let is_due = |one: &&DrainingPipeline| one.replacements >= REPLACEMENTS_MAX && one.is_worth_waiting_for();
        let oldest = draining.iter().find(is_due)?;
        let finishing = oldest.finishing.iter().map(|consumer| consumer.ended.clone()).collect();
        Some(Self { ledger: Arc::clone(&oldest.ledger), finishing, moving: oldest.moving.clone() })
    }

    /// Waits until it has finished, for as long as it holds less at each check: what is slow does not hang.
    pub(super) fn wait_while_it_progresses(&self, limit: Duration) {
        let deadline = clock::now() + limit;
        let has_finished =
            || self.finishing.iter().all(has_ended) && !self.moving.iter().any(MovingConsumer::has_yet_to_move);
        let mut decided = None;
        while decided != Some(self.ledger.decided()) && clock::now() < deadline {
            decided = Some(self.ledger.decided());
            let check = clock::now() + PROGRESS_WITHIN;
            while !has_finished() && clock::now() < check {
                threads::blocking(|| clock::sleep(CHECK_EVERY));
            }
        }
    }
}

/// Abandons the pipelines that have drained for too long: what waits there counts as failed, and a consumer that waits
/// for its peer ends. A consumer that hangs inside a call keeps what it is handling, which is in flight until that call
/// returns. Returns the names of the sinks.
pub(super) fn abandon_old(draining: &[DrainingPipeline]) -> BTreeSet<String> {
    let mut sinks = BTreeSet::new();
    let is_old = |one: &&DrainingPipeline| one.replacements > REPLACEMENTS_MAX && one.is_worth_waiting_for();
    for oldest in draining.iter().filter(is_old) {
        sinks.extend(oldest.sinks().map(str::to_owned));
        let moving: Vec<&MovingConsumer> = oldest.still_moving().collect();
        for pipeline in draining {
            let is_its_own = |consumer: &&FinishingConsumer| {
                std::ptr::eq(pipeline, oldest) || moving.iter().any(|own| Arc::ptr_eq(&own.handoff, &consumer.handoff))
            };
            for consumer in pipeline.still_finishing().filter(is_its_own) {
                consumer.handle.give_up();
                drop(consumer.handoff.take());
                pipeline.ledger.give_up_waiting(&consumer.sink);
            }
        }
        for consumer in moving {
            consumer.handle.give_up();
            oldest.ledger.give_up_waiting(&consumer.sink);
        }
    }
    sinks
}

/// Refuses where too many consumers hang that were given up.
pub(super) fn refuse_hanging(unfinished: &[UnfinishedConsumer]) -> Result<(), Failure> {
    let hanging = || unfinished.iter().filter(|consumer| consumer.is_given_up);
    if hanging().count() < HANGING_MAX {
        return Ok(());
    }
    let sinks: BTreeSet<&str> = hanging().map(|consumer| consumer.sink.as_str()).collect();
    let message = format!(
        "{} consumers that earlier reloads took away hang in a call to a disk that does not answer, and keep their \
         memory (sinks: {}); see to that disk and try again{TAKES_A_RESTART}",
        hanging().count(),
        sinks.into_iter().collect::<Vec<_>>().join(", ")
    );
    Err(Failure::new(ExitCode::Failure, message))
}

/// Waits until these have moved, at most so long.
pub(super) fn wait_for(moving: &[MovingConsumer], limit: Duration) {
    let deadline = clock::now() + limit;
    while moving.iter().any(MovingConsumer::has_yet_to_move) && clock::now() < deadline {
        threads::blocking(|| clock::sleep(CHECK_EVERY));
    }
}

/// Whether a thread has ended, and not by a panic.
pub(super) fn has_ended_well(thread: JoinHandle<()>) -> bool {
    thread.is_finished() && thread.join().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sinks_overlap_in_a_file_only_when_both_write_it() {
        let outputs = |file: &str| ExclusiveOutputs { files: [file.to_owned()].into(), ..ExclusiveOutputs::default() };
        assert!(outputs("/a.log").overlap(&outputs("/a.log")));
        assert!(!outputs("/a.log").overlap(&outputs("/b.log")));
    }

    #[test]
    fn two_sinks_overlap_in_standard_output_without_a_file() {
        let standard = ExclusiveOutputs { standard_output: true, ..ExclusiveOutputs::default() };
        assert!(standard.overlap(&standard));
        let nothing = ExclusiveOutputs::default;
        assert!(!standard.overlap(&nothing()) && !nothing().overlap(&nothing()));
    }
}

//! What the builder of a replacement has to know of the pipeline that runs, and which sinks and sockets it keeps.
//!
//! The main thread takes this context and keeps the pipeline; another thread builds the replacement meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use mmsg::Socket;

use super::draining::{self, ExclusiveOutputs, MovingConsumer, OldestDraining, UnfinishedConsumer, files_by_consumer};
use super::inherited_sockets::{InheritedSockets, SocketAssignment, TAKES_A_RESTART};
use super::running::{ConsumerThread, Lane, Pipeline};
use super::wiring::{self, RetainedConsumer};
use super::{
    adopt_sockets, cumulative_ledger::CumulativeLedger, pipeline_ledger::PipelineLedger, sink_files::SinkFiles,
    start_gate::has_ended, xdp_programs,
};
use crate::config::{Config, SinkConfig};
use crate::plan::PipelinePlan;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::sink::Differs;
use udpd_inspect::deduplicate::Feed;

/// Everything that is needed to build a replacement while the current pipeline keeps running.
#[derive(Debug)]
pub struct ReloadContext {
    pub(super) config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) own_ledger: Arc<PipelineLedger>,
    pub(super) cumulative_ledger: Arc<CumulativeLedger>,
    pub(super) files: SinkFiles,
    /// By lane, the name of its socket, and the socket where it has one.
    sockets: Vec<(String, Option<Arc<Socket>>)>,
    /// What its lanes remember of their feeds.
    pub(super) feeds: Vec<Arc<Feed>>,
    /// Why a receiver cannot be woken.
    cannot_wake: Option<String>,
    consumers: Vec<RetainedConsumer>,
    /// Consumers that have yet to move to this pipeline.
    moving: Vec<MovingConsumer>,
    /// Consumers of earlier pipelines that have yet to finish.
    unfinished: Vec<UnfinishedConsumer>,
    /// The earlier pipeline that the next reload abandons.
    oldest: Option<OldestDraining>,
    pub(super) commit_flag: CommitFlag,
}

/// Decides a race: the builder commits a reload (and binds addresses), or the main thread, which no longer waits for
/// it, cancels it.
///
/// Datagrams may arrive in bound sockets, so a replacement that has committed always takes over.
#[derive(Debug, Clone, Default)]
pub struct CommitFlag(Arc<AtomicU8>);

const OPEN: u8 = 0;
const COMMITTED: u8 = 1;
const CANCELLED: u8 = 2;

impl CommitFlag {
    /// Cancels the reload. `false` when it has committed: the replacement will be there in a moment.
    pub fn cancel(&self) -> bool {
        self.change(CANCELLED)
    }

    /// Refuses to go on with a reload that is cancelled.
    pub fn check(&self) -> Result<(), Failure> {
        Self::unless_cancelled(self.0.load(Ordering::Acquire) != CANCELLED)
    }

    pub(super) fn commit(&self) -> Result<(), Failure> {
        Self::unless_cancelled(self.change(COMMITTED))
    }

    fn unless_cancelled(is_wanted: bool) -> Result<(), Failure> {
        let cancelled =
            || Failure::new(ExitCode::Failure, "this reload was given up, because its client waits no longer");
        is_wanted.then_some(()).ok_or_else(cancelled)
    }

    fn change(&self, to: u8) -> bool {
        let before = self.0.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == to, |_| true)
    }
}

/// Which sinks a replacement retains.
#[derive(Debug)]
pub(super) struct Retention {
    /// By sink, the one of the current pipeline that it goes on with.
    pub(super) sinks: Vec<Option<usize>>,
    /// By sink, whether it takes the place of one that has yet to move to the current pipeline.
    pub(super) follows_itself: Vec<bool>,
    /// By sink, whether another one has to finish before it may begin.
    pub(super) waits: Vec<bool>,
}

impl Retention {
    pub(super) fn nothing(sinks: usize) -> Self {
        Self { sinks: vec![None; sinks], follows_itself: vec![false; sinks], waits: vec![false; sinks] }
    }
}

impl Pipeline {
    /// What is needed to build a replacement for it.
    pub fn reload_context(&self) -> ReloadContext {
        let is_running = |lane: &&Lane| !lane.receiver.is_finished();
        let cannot_wake = |lane: &Lane| lane.waker.as_ref().err().map(|why| format!("{}: {why}", lane.setup));
        let consumer = |consumer: &ConsumerThread| RetainedConsumer {
            sink: consumer.sink,
            caller: consumer.caller.clone(),
            handoff: Arc::clone(&consumer.handoff),
            ended: consumer.ended.clone(),
        };
        let feed = |lane: &Lane| lane.setup.deduplicator.as_ref().map(|own| Arc::clone(&own.feed));
        ReloadContext {
            config: Arc::clone(&self.config),
            plan: self.plan(),
            own_ledger: Arc::clone(&self.own_ledger),
            cumulative_ledger: self.ledger(),
            files: self.files(),
            sockets: self.lanes.iter().map(|lane| (lane.socket_name(), lane.socket())).collect(),
            feeds: self.lanes.iter().filter_map(feed).collect(),
            cannot_wake: self.lanes.iter().filter(is_running).find_map(cannot_wake),
            consumers: self.consumers.iter().map(consumer).collect(),
            moving: self.moving_consumers(),
            unfinished: self.draining.iter().flat_map(|earlier| earlier.unfinished()).collect(),
            oldest: OldestDraining::of(&self.draining),
            commit_flag: CommitFlag::default(),
        }
    }
}

impl ReloadContext {
    pub fn commit_flag(&self) -> CommitFlag {
        self.commit_flag.clone()
    }

    pub fn plan(&self) -> Arc<PipelinePlan> {
        Arc::clone(&self.plan)
    }

    /// Waits at most `limit` until every retained consumer counts in the ledger of the current pipeline, and at most
    /// `slow_limit` for what the next reload would abandon, as long as that makes progress. Refuses where too many
    /// consumers hang.
    pub fn wait_for_earlier_pipelines(&self, limit: Duration, slow_limit: Duration) -> Result<(), Failure> {
        draining::refuse_hanging(&self.unfinished)?;
        self.oldest.iter().for_each(|oldest| oldest.wait_while_it_progresses(slow_limit));
        draining::wait_for(&self.moving, limit);
        Ok(())
    }

    /// Assigns the sockets of this pipeline to the lanes of a plan.
    pub(super) fn assign_sockets(&self, config: &Config, plan: &PipelinePlan) -> Result<SocketAssignment, Failure> {
        let own = self.sockets.iter().filter_map(|(name, socket)| Some((name.clone(), socket.clone()?)));
        let mut assignment = InheritedSockets::of(own)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot ask a socket what it is: {error}")))?
            .assign_for_reload(config, plan)?;
        let sockets: Vec<Option<Arc<Socket>>> = self.sockets.iter().map(|(_, socket)| socket.clone()).collect();
        assignment.group_spreads = adopt_sockets::group_spreads(&self.config, &self.plan, &sockets, &assignment);
        Ok(assignment)
    }

    /// Refuses what a running pipeline cannot be replaced by.
    pub(super) fn refuse_impossible(&self, config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
        if let Some(why) = &self.cannot_wake {
            let message = format!("nothing can wake a receiver without closing its socket: {why}{TAKES_A_RESTART}");
            return Err(Failure::new(ExitCode::Failure, message));
        }
        self.refuse_other_xdp_programs(config)?;
        xdp_programs::refuse_locked_memory(plan, &self.plan)
    }

    /// To attach a program to another interface takes a right that the process has given up.
    fn refuse_other_xdp_programs(&self, config: &Config) -> Result<(), Failure> {
        let own = || self.config.listeners.iter().filter(|listener| listener.is_past_the_stack());
        let mut next = config.listeners.iter().filter(|listener| listener.is_past_the_stack());
        let new = next.find(|next| !own().any(|own| xdp_programs::wanted(own) == xdp_programs::wanted(next)));
        new.map_or(Ok(()), |listener| {
            let name = &listener.name;
            let message = format!(
                "listener {name}: udpd has given up the rights to put another XDP program at an interface, for another \
                 interface, port or xdp_mode{TAKES_A_RESTART}"
            );
            Err(Failure::new(ExitCode::Configuration, message))
        })
    }

    /// Which sinks of this pipeline another configuration retains.
    pub(super) fn retention(&self, config: &Config, plan: &PipelinePlan) -> Retention {
        let mut sinks: Vec<Option<usize>> =
            (0..config.sinks.len()).map(|sink| self.retained_sink(config, plan, sink)).collect();
        // A consumer that hangs in what it took before has not even begun to count in the ledger of this pipeline. A
        // new sink takes its place and begins when it has ended, so that the order stays.
        let hangs = |own: usize| self.consumers_of(own).any(|consumer| consumer.handoff.is_pending());
        // The same is true of a sink that comes back while its consumer of before is not done.
        let is_same = |sink: usize, before: &UnfinishedConsumer| {
            let SinkConfig { name, settings, .. } = &config.sinks[sink];
            let differs = Differs { lanes: false, listeners: false };
            !before.is_given_up && before.sink == *name && settings.goes_on(&*before.settings, differs)
        };
        let comes_back = |sink: usize| self.unfinished.iter().any(|before| is_same(sink, before));
        let follows = |(sink, own): (usize, &Option<usize>)| own.map_or_else(|| comes_back(sink), hangs);
        let follows_itself: Vec<bool> = sinks.iter().enumerate().map(follows).collect();
        for (own, follows_itself) in sinks.iter_mut().zip(&follows_itself) {
            *own = own.filter(|_| !follows_itself);
        }
        // What writes the same file, in this pipeline or in an earlier one, has to close it first.
        let leaving = (0..self.config.sinks.len()).filter(|own| !sinks.contains(&Some(*own)));
        let leaving = leaving.map(|own| ExclusiveOutputs::of(&self.config, &self.plan, own));
        let in_the_way: Vec<ExclusiveOutputs> =
            leaving.chain(self.unfinished.iter().map(|consumer| consumer.outputs.clone())).collect();
        let waits = sinks.iter().zip(&follows_itself).enumerate().map(|(sink, (own, follows_itself))| {
            let wanted = ExclusiveOutputs::of(config, plan, sink);
            *follows_itself || own.is_none() && in_the_way.iter().any(|other| other.overlap(&wanted))
        });
        Retention { waits: waits.collect(), follows_itself, sinks }
    }

    /// The sink of this pipeline that a sink of another configuration can retain.
    fn retained_sink(&self, config: &Config, plan: &PipelinePlan, sink: usize) -> Option<usize> {
        let wanted = &config.sinks[sink];
        let own = self.config.sinks.iter().position(|own| own.name == wanted.name)?;
        let (planned, planned_before) = (&plan.sinks[sink], &self.plan.sinks[own]);
        let listeners = |config: &Config| config.listeners.iter().map(|own| own.name.clone()).collect::<Vec<_>>();
        let differs = Differs {
            lanes: wiring::scenes(config, plan) != wiring::scenes(&self.config, &self.plan)
                || planned.feeders != planned_before.feeders,
            listeners: listeners(config) != listeners(&self.config),
        };
        // One that runs inline ends with its receivers.
        let is_same = !wanted.inline
            && !self.config.sinks[own].inline
            && planned.consumers == planned_before.consumers
            && files_by_consumer(config, plan, sink) == files_by_consumer(&self.config, &self.plan, own)
            && wanted.settings.goes_on(&*self.config.sinks[own].settings, differs);
        // A consumer that only lanes without an engine fed has ended with them, and takes nothing any more.
        (is_same && self.consumers_of(own).all(|consumer| !has_ended(&consumer.ended))).then_some(own)
    }

    pub(super) fn consumers_of(&self, sink: usize) -> impl Iterator<Item = &RetainedConsumer> {
        self.consumers.iter().filter(move |consumer| consumer.sink == sink)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Instant;

    use udpd_base::os::threads::ThreadRegistry;

    use super::*;

    #[test]
    fn a_reload_is_committed_or_cancelled_whichever_comes_first_and_never_both() {
        // From each state: whether a check, a commit and a cancel succeed, and the state after the latter two.
        let table = [
            (OPEN, true, (true, COMMITTED), (true, CANCELLED)),
            (COMMITTED, true, (true, COMMITTED), (false, COMMITTED)),
            (CANCELLED, false, (false, CANCELLED), (true, CANCELLED)),
        ];
        for (state, is_wanted, commit, cancel) in table {
            let flag = || CommitFlag(Arc::new(AtomicU8::new(state)));
            let after = |flag: &CommitFlag| flag.0.load(Ordering::Acquire);
            let (checked, committed, cancelled) = (flag(), flag(), flag());
            assert_eq!((checked.check().is_ok(), after(&checked)), (is_wanted, state), "check from {state}");
            assert_eq!((committed.commit().is_ok(), after(&committed)), commit, "commit from {state}");
            assert_eq!((cancelled.cancel(), after(&cancelled)), cancel, "cancel from {state}");
        }
    }

    #[test]
    fn a_sink_goes_on_unless_one_of_its_consumers_has_ended_because_nothing_fed_it_any_more() {
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"{free}\"\nsinks = [\"out\"]\nlanes = 1\n\
             [sink.out]\ntype = \"null\"\n"
        );
        let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
        let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
        let (registry, _events) = ThreadRegistry::new();
        let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry).expect("it starts");
        assert_eq!(pipeline.reload_context().retained_sink(&config, &plan, 0), Some(0));
        pipeline.own_ledger.end_channels();
        assert!(pipeline.consumers[0].ended.recv().is_err(), "it has ended");
        assert_eq!(pipeline.reload_context().retained_sink(&config, &plan, 0), None);
        let ledger = pipeline.stop(Duration::from_secs(5), |_| false);
        assert_eq!(ledger.listeners[0].residual, Some(0));
    }
}

//! The threads that follow the sequence numbers of streams, one for each listener with a `sequence`, on the cores of
//! consumers. Such a thread is no consumer: it gets notes and no datagrams, and a receiver never waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::lane::{LaneThread, thread_name};
use super::running::Pinned;
use crate::plan::PipelinePlan;
use udpd_base::exit::Failure;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_inspect::upstream::UpstreamMonitor;

#[derive(Debug)]
pub(super) struct SequenceFollower {
    upstream: UpstreamMonitor,
    pub(super) thread: JoinHandle<()>,
}

impl SequenceFollower {
    /// Lets it take the notes that the receivers have left, and end.
    pub(super) fn end(&self) {
        self.upstream.end();
    }
}

/// Starts those of all listeners. Where one cannot start, those that did end.
pub(super) fn spawn_all(
    lanes: &[LaneThread],
    plan: &PipelinePlan,
    pinned: &mut Vec<Pinned>,
    registry: &ThreadRegistry,
) -> Result<Vec<SequenceFollower>, Failure> {
    let mut followers: Vec<SequenceFollower> = Vec::new();
    for first in lanes.iter().filter(|lane| lane.setup.is_first()) {
        match spawn(first, plan, pinned, registry) {
            Ok(follower) => followers.extend(follower),
            Err(failure) => {
                followers.iter().for_each(SequenceFollower::end);
                return Err(failure);
            }
        }
    }
    Ok(followers)
}

fn spawn(
    first: &LaneThread,
    plan: &PipelinePlan,
    pinned: &mut Vec<Pinned>,
    registry: &ThreadRegistry,
) -> Result<Option<SequenceFollower>, Failure> {
    let Some(upstream) = first.setup.upstream.clone() else { return Ok(None) };
    let listener = first.setup.plan.listener;
    let own: Vec<bool> = plan.lanes.iter().map(|lane| lane.listener == listener).collect();
    let cores = plan.cores_of_consumer(&own);
    let name = thread_name("seq", 0, &first.setup.listener.name);
    let is_pinned = Arc::new(AtomicBool::new(false));
    let (own_cores, own_is_pinned, own_upstream) = (cores.clone(), Arc::clone(&is_pinned), upstream.clone());
    let starting = registry
        .spawn_one_of_many(name.clone(), ThreadRole::SequenceFollower, move || {
            if !own_cores.is_empty() && steer::confine_current_thread(&own_cores).is_ok() {
                own_is_pinned.store(true, Ordering::Relaxed);
            }
            threads::enter_sandbox();
            own_upstream.run();
        })
        .map_err(|error| threads::start_failure(&format!("the thread {name}"), &error))?;
    let name = format!("the thread {name}, which follows sequence numbers");
    pinned.push(Pinned { name, thread: starting.handle(), cores, is_pinned, lane: None });
    Ok(Some(SequenceFollower { upstream, thread: starting.wait() }))
}

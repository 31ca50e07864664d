//! Starts the threads that follow sequence numbers, one for each listener that has them, where consumers run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::follower::Follower;
use super::lane::{LaneThread, thread_name};
use super::running::Pinned;
use crate::plan::PipelinePlan;
use udpd_base::exit::Failure;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;

/// Starts those of all listeners, on the cores of consumers. Where one cannot start, those that did end.
pub(super) fn spawn_all(
    lanes: &[LaneThread],
    plan: &PipelinePlan,
    pinned: &mut Vec<Pinned>,
    registry: &ThreadRegistry,
) -> Result<Vec<Follower>, Failure> {
    let mut followers = Vec::new();
    let outcome = spawn_each(lanes, plan, pinned, registry, &mut followers);
    if outcome.is_err() {
        followers.iter().for_each(Follower::end);
    }
    outcome.map(|()| followers)
}

fn spawn_each(
    lanes: &[LaneThread],
    plan: &PipelinePlan,
    pinned: &mut Vec<Pinned>,
    registry: &ThreadRegistry,
    followers: &mut Vec<Follower>,
) -> Result<(), Failure> {
    for first in lanes.iter().filter(|lane| lane.setup.is_first()) {
        let Some(upstream) = first.setup.upstream.clone() else { continue };
        let listener = first.setup.plan.listener;
        let own: Vec<bool> = plan.lanes.iter().map(|lane| lane.listener == listener).collect();
        let cores = plan.cores_of_consumer(&own);
        let name = thread_name("seq", 0, &first.setup.listener.name);
        let is_put = Arc::new(AtomicBool::new(false));
        let (own_cores, put, own_upstream) = (cores.clone(), Arc::clone(&is_put), upstream.clone());
        let starting = registry
            .spawn_one_of_many(name.clone(), ThreadRole::SequenceFollower, move || {
                if !own_cores.is_empty() && steer::confine_current_thread(&own_cores).is_ok() {
                    put.store(true, Ordering::Relaxed);
                }
                threads::enter_sandbox();
                own_upstream.run();
            })
            .map_err(|error| threads::start_failure(&format!("the thread {name}"), &error))?;
        let who = format!("the thread {name}, which follows sequence numbers");
        pinned.push(Pinned { who, thread: starting.handle(), cores, is_put, lane: None });
        followers.push(Follower { upstream, thread: starting.wait() });
    }
    Ok(())
}

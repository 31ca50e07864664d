//! What a configuration means on this machine, worked out before anything is opened: lanes, consumers, cores, memory
//! and buffers. `udpd check` prints it, `udpd run` and the bench build it; all ask [`make`], so they see the same
//! numbers.

pub mod advice;
mod defaults;
pub mod descriptors;
pub mod engine;
pub mod interfaces;
mod lane;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod pool;
mod sink;
pub mod spread;
mod whole;
pub mod words;

use std::path::Path;

use mmsg::Uring;

use self::engine::Choice;
pub use self::lane::LanePlan;
use self::limits::Limits;
use self::machine::Machine;
pub use self::sink::SinkPlan;
pub use self::whole::Plan;
use crate::config::{Config, Spread};
use crate::exit::{ExitCode, Failure};

/// Reads the machine and works out what the configuration means on it.
pub fn make(config: &Config) -> Result<Plan, Failure> {
    let sys_root = Path::new("/sys");
    let Machine { topology, mut allowed, assumed } = Machine::read(sys_root);
    if let Some(cores) = &config.steer.request.cores {
        allowed.retain(|core| cores.contains(core));
        if allowed.is_empty() {
            let message = format!(
                "[steer] cpus = \"{}\": this process may run on none of them; widen cpus, or the affinity or cpuset \
                 it starts in",
                steer::format_core_list(cores)
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
    }
    let queues = |interface: &str| steer::receive_queues(sys_root, interface);
    let planned = |interface: &str| interfaces::seats(&config.steer, &allowed, interface);
    let engines: Vec<Choice> =
        config.listeners.iter().map(|listener| engine::choose(listener, Uring::supported)).collect::<Result<_, _>>()?;
    let limits = Limits::read(Path::new("/"));
    let automatic_bytes = defaults::pool_bytes(&limits);
    let mut plan = Plan::new(config, &topology, &allowed, queues, planned, &engines, automatic_bytes)?;
    plan.remarks = assumed;
    plan.remarks.extend(limits.judge(config, &plan)?);
    refuse_idle_lanes(config, &plan, allowed.len())?;
    Ok(plan)
}

/// A core feeds one lane, so with more lanes than cores some would never receive anything.
fn refuse_idle_lanes(config: &Config, plan: &Plan, cores: usize) -> Result<(), Failure> {
    let Some(lane) = plan.idle_lanes(config, Spread::Cpu).next() else { return Ok(()) };
    let message = format!(
        "listener {}: spread = \"cpu\" on {cores} cores leaves lane {} without a core: each core feeds one lane of \
         an address; lower lanes to {cores} or less, widen [steer] cpus, or write spread = \"flow\"",
        config.listeners[lane.listener].name, lane.number
    );
    Err(Failure::new(ExitCode::Configuration, message))
}

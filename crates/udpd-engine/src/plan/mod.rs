//! What a configuration means on this machine, worked out before anything is opened: lanes, consumers, cores, memory
//! and buffers. `udpd check` prints it, `udpd run` and the bench build it; all ask [`make`], so they see the same
//! numbers.

pub mod advice;
pub mod buffers;
mod defaults;
pub mod descriptors;
pub mod engine;
mod held;
pub mod interfaces;
mod lane;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod neighbours;
pub mod pool;
pub mod published;
mod seating;
mod sink;
pub mod spread;
mod whole;
pub mod words;
pub mod xdp;

use std::collections::BTreeMap;
use std::path::Path;

use mmsg::Uring;

use self::engine::Choice;
pub use self::held::Held;
pub use self::interfaces::Interfaces;
pub use self::lane::{LanePlan, charge_bytes};
use self::limits::MemoryLimits;
use self::machine::MachineCores;
pub use self::seating::PlacementInput;
pub use self::sink::SinkPlan;
pub use self::whole::PipelinePlan;
use crate::config::{Config, Spread};
use udpd_base::exit::{ExitCode, Failure};
use udpd_endpoint::control::{Neighbours, Search, default_paths};

/// The daemons that run on this host, but for the one behind the socket `except`.
pub fn neighbours(except: Option<&Path>) -> Neighbours {
    let usual = default_paths();
    Search { named: &[], usual: &usual, except, proc_root: Path::new("/proc") }.ask()
}

/// Reads the machine and works out what the configuration means on it, beside these daemons.
pub fn make(config: &Config, neighbours: &Neighbours) -> Result<PipelinePlan, Failure> {
    let (MachineCores { topology, allowed, assumed }, queues) = site(config)?;
    let mut interfaces = Interfaces { queues, ..Interfaces::default() };
    if assumed.is_empty() {
        let ground = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
        let feeders = ground.feeders(config);
        interfaces = Interfaces::read(&config.steer, &feeders, interfaces.queues.clone(), &allowed, neighbours);
    }
    let engines: Vec<Choice> =
        config.listeners.iter().map(|listener| engine::choose(listener, Uring::supported)).collect::<Result<_, _>>()?;
    let limits = MemoryLimits::read(Path::new("/"));
    let automatic_bytes = defaults::pool_bytes(&limits);
    let ground = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
    let mut plan = PipelinePlan::new(config, &ground, &engines, automatic_bytes)?;
    plan.fit_locked(&limits.pinned);
    plan.remarks = assumed;
    plan.remarks.append(&mut plan.interfaces.remarks);
    plan.remarks.extend(words::lanes_of_cores(config, &ground));
    plan.remarks.extend(words::queues_not_kept(config, &ground));
    plan.remarks.extend(xdp::short_of_absorb(config, &plan.lanes));
    plan.remarks.extend(limits.judge(config, &plan)?);
    refuse_idle_lanes(config, &plan, allowed.len())?;
    Ok(plan)
}

/// How many receivers each interface feeds that a listener is bound to.
pub fn receivers(config: &Config) -> Result<BTreeMap<String, usize>, Failure> {
    let (MachineCores { topology, allowed, .. }, queues) = site(config)?;
    let interfaces = Interfaces { queues, ..Interfaces::default() };
    let ground = PlacementInput { topology: &topology, allowed: &allowed, interfaces: &interfaces };
    Ok(interfaces::receivers(&ground.feeders(config), &config.steer, &interfaces.queues))
}

/// The machine with the cores that udpd may use of it, and how many receive queues its listeners' interfaces have.
fn site(config: &Config) -> Result<(MachineCores, BTreeMap<String, usize>), Failure> {
    let sys_root = Path::new("/sys");
    let mut machine = MachineCores::read(sys_root);
    if let Some(cores) = &config.steer.request.cores {
        machine.allowed.retain(|core| cores.contains(core));
        if machine.allowed.is_empty() {
            let message = format!(
                "[steer] cpus = \"{}\": this process may run on none of them; widen cpus, or the affinity or cpuset \
                 it starts in",
                steer::format_core_list(cores)
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
    }
    let names = config.listeners.iter().filter_map(|listener| listener.interface.clone());
    let queues = names.filter_map(|name| steer::receive_queues(sys_root, &name).map(|queues| (name, queues))).collect();
    Ok((machine, queues))
}

/// A core feeds one lane, so with more lanes than cores some would never receive anything.
fn refuse_idle_lanes(config: &Config, plan: &PipelinePlan, cores: usize) -> Result<(), Failure> {
    let Some(lane) = plan.idle_lanes(config, Spread::Cpu).next() else { return Ok(()) };
    let message = format!(
        "listener {}: spread = \"cpu\" on {cores} cores leaves lane {} without a core: each core feeds one lane of \
         an address; lower lanes to {cores} or less, widen [steer] cpus, or write spread = \"flow\"",
        config.listeners[lane.listener].name, lane.number
    );
    Err(Failure::new(ExitCode::Configuration, message))
}

//! Plans for tests: of a configuration in TOML, on a machine that the test describes.

use steer::Topology;

use super::engine::EngineChoice;
use super::{Interfaces, PipelinePlan, PlacementInput};
use crate::config::{Config, EngineKind, HostView};
use udpd_base::exit::Failure;

/// The plan of a configuration whose listeners all have this engine, with 48 MiB for datagrams unless it says
/// otherwise.
pub(super) fn plan_on(
    text: &str,
    kind: EngineKind,
    topology: &Topology,
    interfaces: &Interfaces,
) -> Result<(Config, PipelinePlan), Failure> {
    // A host without /sys misses none of the interfaces that a test names.
    let host = HostView { sys_root: "/nonexistent".into(), ..HostView::default() };
    let config = Config::parse(text, "test", &host).unwrap_or_else(|problems| panic!("{problems}"));
    let engines = vec![EngineChoice { kind, why: String::new() }; config.listeners.len()];
    let input = PlacementInput { topology, allowed: &topology.online, interfaces };
    let plan = PipelinePlan::new(&config, &input, &engines, 48 << 20)?;
    Ok((config, plan))
}

/// The same on one core, without interfaces.
pub(super) fn plan_of(text: &str, kind: EngineKind) -> (Config, PipelinePlan) {
    plan_on(text, kind, &Topology::flat(&[0]), &Interfaces::default()).expect("a plan")
}

/// The same on two cores, with so many receive queues at eth0.
pub(super) fn plan_with_queues(text: &str, kind: EngineKind, queues: usize) -> (Config, PipelinePlan) {
    let interfaces = Interfaces { queues: [("eth0".to_owned(), queues)].into(), ..Interfaces::default() };
    plan_on(text, kind, &Topology::flat(&[0, 1]), &interfaces).expect("a plan")
}

//! Made-up plans for the tests of limits.

use steer::Topology;

use crate::config::{Config, EngineKind, HostView};
use crate::plan::engine::Choice;
use crate::plan::{Interfaces, PipelinePlan, PlacementInput};

/// One listener and one sink, with these keys more, on a machine of one core that has enough.
pub(super) fn planned(listener: &str, sink: &str) -> (Config, PipelinePlan) {
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"x\"]\n{listener}\n\
         [sink.x]\ntype = \"null\"\n{sink}\n"
    );
    let config = Config::parse(&text, "test", &HostView::default()).expect("a valid configuration");
    let engines = [Choice { kind: EngineKind::Recvmmsg, why: String::new() }];
    let (topology, interfaces) = (Topology::flat(&[0]), Interfaces::default());
    let ground = PlacementInput { topology: &topology, allowed: &[0], interfaces: &interfaces };
    let plan = PipelinePlan::new(&config, &ground, &engines, 48 << 20);
    (config, plan.expect("a plan"))
}

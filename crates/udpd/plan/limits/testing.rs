//! Made-up plans for the tests of limits.

use steer::Topology;

use crate::config::{Config, EngineKind, Host};
use crate::plan::Plan;
use crate::plan::engine::Choice;

/// One listener and one sink, with these keys more, on a machine of one core that has enough.
pub(super) fn planned(listener: &str, sink: &str) -> (Config, Plan) {
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"x\"]\n{listener}\n\
         [sink.x]\ntype = \"null\"\n{sink}\n"
    );
    let config = Config::parse(&text, "test", &Host::default()).expect("a valid configuration");
    let engines = [Choice { kind: EngineKind::Recvmmsg, why: String::new() }];
    let plan = Plan::new(&config, &Topology::flat(&[0]), &[0], |_| None, |_| None, &engines, 48 << 20);
    (config, plan.expect("a plan"))
}

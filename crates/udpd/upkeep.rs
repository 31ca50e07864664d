//! What the main thread does for the listeners once a second: it says who exceeds a rate limit.

use std::sync::Arc;

use crate::config::Config;
use crate::pipeline::{Lane, Pipeline};
use crate::policy::{OffenceReport, Offences};

/// Remembers what was seen and said.
#[derive(Debug)]
pub struct Upkeep {
    limits: Vec<(Arc<Offences>, OffenceReport)>,
}

impl Upkeep {
    /// For a pipeline that has just been started.
    pub fn new(config: &Config, pipeline: &Pipeline) -> Self {
        let limits = pipeline.lanes().iter().filter_map(|lane| {
            let offences = lane.offences.clone()?;
            Some((offences, OffenceReport::new(subject(lane), limit_of(config, lane)?)))
        });
        Self { limits: limits.collect() }
    }

    /// Once a second.
    pub fn look(&mut self) {
        for (offences, report) in &mut self.limits {
            report.look(offences).iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// When the receivers have ended.
    pub fn end(&mut self) {
        for (offences, report) in &mut self.limits {
            report.end(offences).iter().for_each(|line| log::warn!("{line}"));
        }
    }
}

fn subject(lane: &Lane) -> String {
    format!("listener {}, lane {}", lane.listener, lane.plan.number)
}

fn limit_of(config: &Config, lane: &Lane) -> Option<String> {
    let limit = config.listeners[lane.plan.listener].rate_limit?;
    Some(format!("rate_limit ({} datagrams/s, burst {})", limit.per_source, limit.burst))
}

//! `udpd bench max`: the highest rate that a whole pipeline takes without loss, with the user's own sinks and disk.
//!
//! Each trial starts a pipeline of its own and closes its books, so a trial owes nothing to the one before. The sender
//! runs in the same process, on cores that no lane has; where it cannot offer more, the answer is what it did send, and
//! not a limit.

#[cfg(feature = "kafka")]
mod cluster;
mod command;
mod files;
mod peer;
mod real;
mod scratch;
mod search;
mod show;
mod signals;
mod stage;
mod subject;
mod trial;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

pub use command::{Arguments, execute};
pub use search::Limit;
pub use trial::{Lost, Trial};

use super::sizes::Sizes;
use crate::exit::Failure;
use search::{Bounds, search};
use stage::Stage;

/// How to search.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Order {
    bounds: Bounds,
    /// How long a trial lasts.
    duration: Duration,
    /// How much may be lost, in percent.
    loss_percent: f64,
    sizes: Sizes,
    flows: usize,
    gso: Option<NonZeroUsize>,
    threads: usize,
    /// The sender's cores; `None`: those that no lane has.
    cpus: Option<Vec<usize>>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The listener.
    pub listener: String,
    /// What differs from the configuration.
    pub changed: Vec<String>,
    /// Datagrams a second; 0 when even the lowest rate lost some.
    pub rate: u64,
    /// What ended the search.
    pub limit: Limit,
    /// How often the rate was kept in a row at the end.
    pub repetitions: usize,
    /// The most that the sender reached in any trial.
    pub highest_sent: u64,
    /// All trials, in order.
    pub trials: Vec<Trial>,
}

/// Searches until it is done or `stop` is raised; `tell` hears of each trial.
fn run(
    order: &Order,
    stage: &Stage,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(usize, &Trial),
) -> Result<Report, Failure> {
    let mut trials: Vec<Trial> = Vec::new();
    let found = search(order.bounds, |rate| {
        let trial = trial::run(order, stage, rate, stop)?;
        tell(trials.len() + 1, &trial);
        let verdict = trial.verdict(stop);
        trials.push(trial);
        Ok::<_, Failure>(verdict)
    })?;
    Ok(Report {
        listener: stage.config().listeners[0].name.clone(),
        changed: stage.notes().to_vec(),
        rate: found.rate,
        limit: found.limit,
        repetitions: found.repetitions,
        highest_sent: trials.iter().map(|trial| trial.sent_per_second as u64).max().unwrap_or(0),
        trials,
    })
}

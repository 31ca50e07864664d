//! The search with real trials: each starts a pipeline of its own and closes its books, so a trial owes nothing to the
//! one before.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::search::{Limit, search};
use super::stage::Stage;
use super::task::Task;
use super::trial::{self, Trial};
use udpd_base::exit::Failure;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub listener: String,
    /// What differs from the configuration.
    pub changed: Vec<String>,
    /// Datagrams a second; 0 when even the lowest rate lost some.
    pub rate: u64,
    pub limit: Limit,
    /// How often the rate was kept in a row at the end.
    pub repetitions: usize,
    /// The most that the sender reached in any trial.
    pub highest_sent: u64,
    /// All trials, in order.
    pub trials: Vec<Trial>,
}

/// Searches until it is done or `stop` is raised; `tell` hears of each trial.
pub(super) fn run(
    task: &Task,
    stage: &Stage,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(usize, &Trial),
) -> Result<Report, Failure> {
    let mut trials: Vec<Trial> = Vec::new();
    let found = search(task.bounds, |rate| {
        let trial = trial::run(task, stage, rate, stop)?;
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

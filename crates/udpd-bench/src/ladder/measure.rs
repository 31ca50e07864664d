//! The steps of the ladder taken in turn.
//!
//! The steps take turns, round by round and every second round backwards, so that a machine that changes its pace
//! changes it for all of them; one step is there twice, and its difference to itself is the noise of the others.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mmsg::Uring;
use serde::Serialize;
use steer::Topology;

use super::advice::{self, Advice};
use super::ground::{Cores, Ground, Offer};
use super::placements::{Distance, PlacementRow};
use super::row::Row;
use super::sizes::{self, Line, SizeRow};
use super::step::{Reach, Step, Way};
use super::trial::{self, RECEIVE_BUFFER_BYTES, Trial};
use crate::rate::Rate;
use udpd_base::exit::Failure;

/// What the story is about, where the sender can offer it.
const MILLION: u64 = 1_000_000;

/// Otherwise so much of what the sender can do: it has to keep its rate in every step.
const OF_SENDERS_LIMIT: f64 = 0.8;

/// How long the sender's limit is looked for.
const CALIBRATION: Duration = Duration::from_millis(300);

/// What is to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Which steps, in order.
    pub steps: Vec<Step>,
    pub rounds: usize,
    pub duration: Duration,
    /// Datagrams a second; `None`: a million, or what the sender can keep.
    pub rate: Option<u64>,
    pub size: usize,
    pub train: usize,
    /// Repeat the last step over sizes.
    pub sizes: bool,
    /// Repeat the last step over placements.
    pub placements: bool,
    /// Where all of it happens.
    pub ground: Ground,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Datagrams a second that were asked for in each step.
    pub rate: u64,
    /// What the sender can do when nobody receives.
    pub senders_limit: f64,
    pub sender_core: usize,
    pub receiver_cores: Vec<usize>,
    /// By how much a step differs from itself; null when it was not taken twice in two rounds.
    pub noise: Option<f64>,
    pub steps: Vec<Row>,
    pub advice: Vec<Advice>,
    pub sizes: Vec<SizeRow>,
    /// The cost of a datagram and that of its bytes.
    pub line: Option<Line>,
    pub placements: Vec<PlacementRow>,
    /// Somebody ended it before everything was measured.
    pub interrupted: bool,
}

/// Measures until it is done or `stop` is raised. `progress` hears of each trial before it begins: its number, how many
/// there are, and its name.
pub fn run(
    task: &Task,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report, Failure> {
    let allowed = allowed_cores();
    let cores = Cores::of(&allowed);
    let probe = Offer { rate: Rate::Max, duration: CALIBRATION, size: task.size, train: task.train };
    let senders_limit = trial::senders_limit(&probe, &cores, &task.ground, stop)?;
    let kept = ((senders_limit * OF_SENDERS_LIMIT) as u64 / 10_000 * 10_000).max(1_000);
    let rate = task.rate.unwrap_or_else(|| kept.min(MILLION));
    let offer = Offer { rate: Rate::Steady(rate), duration: task.duration, ..probe };
    let mut ladder = Ladder { task, cores: &cores, stop, progress, done: 0, clamped_bytes: None };
    let steps = ladder.steps(&offer)?;
    let last = steps.iter().rev().find(|row| row.received > 0).map_or(Step::Recvmmsg, |row| row.step);
    let way = last.way(1, task.ground.queues());
    let sizes = if task.sizes { ladder.sizes(last, &way)? } else { Vec::new() };
    let points: Vec<(usize, f64)> = sizes.iter().filter_map(|size| Some((size.bytes, size.row.receiver_ns?))).collect();
    let placements = if task.placements { ladder.placements(last, &way, &offer, &allowed)? } else { Vec::new() };
    Ok(Report {
        rate,
        senders_limit,
        sender_core: cores.sender,
        receiver_cores: cores.receivers.clone(),
        noise: advice::noise(&steps),
        advice: advice::advise(&steps, ladder.clamped_bytes, RECEIVE_BUFFER_BYTES),
        steps,
        sizes,
        line: sizes::line(&points),
        placements,
        interrupted: stop.load(Ordering::Relaxed),
    })
}

fn allowed_cores() -> Vec<usize> {
    steer::allowed_cores().unwrap_or_else(|_| vec![0])
}

/// A run under way.
struct Ladder<'a> {
    task: &'a Task,
    cores: &'a Cores,
    stop: &'a Arc<AtomicBool>,
    progress: &'a mut dyn FnMut(usize, usize, &str),
    done: usize,
    clamped_bytes: Option<usize>,
}

impl Ladder<'_> {
    /// How many trials there will be, as far as is known before.
    fn trials(&self) -> usize {
        let sizes = if self.task.sizes { sizes::SIZES.len() } else { 0 };
        let placements = if self.task.placements { Distance::ALL.len() } else { 0 };
        (self.task.steps.len() + sizes + placements) * self.task.rounds
    }

    /// One trial, unless somebody wants an end.
    fn trial(&mut self, name: &str, way: &Way, offer: &Offer, cores: &Cores) -> Result<Option<Trial>, Failure> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.done += 1;
        let all = self.trials();
        (self.progress)(self.done, all, name);
        let trial = trial::run(way, offer, cores, &self.task.ground, self.stop)?;
        self.clamped_bytes = self.clamped_bytes.or(trial.clamped_bytes);
        Ok(Some(trial))
    }

    fn steps(&mut self, offer: &Offer) -> Result<Vec<Row>, Failure> {
        let (io_uring, ground) = (Uring::supported(), &self.task.ground);
        let wants_cable = self.task.steps.iter().any(|step| step.wants_cable());
        let no_af_xdp = wants_cable.then(|| ground.obstacle()).flatten();
        let reach = Reach { io_uring: &io_uring, no_af_xdp: no_af_xdp.as_deref(), train: offer.train };
        let steps: Vec<(Step, Option<String>)> =
            self.task.steps.iter().map(|&step| (step, step.obstacle(reach))).collect();
        let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); steps.len()];
        for round in 0..self.task.rounds {
            let mut places: Vec<usize> = (0..steps.len()).filter(|&place| steps[place].1.is_none()).collect();
            if round % 2 == 1 {
                places.reverse();
            }
            for place in places {
                let step = steps[place].0;
                let way = step.way(self.cores.several(), self.task.ground.queues());
                trials[place].extend(self.trial(step.name(), &way, offer, self.cores)?);
            }
        }
        let row = |((step, obstacle), trials): (&(Step, Option<String>), &Vec<Trial>)| match obstacle {
            Some(obstacle) => Row::without(*step, obstacle.clone()),
            None if trials.is_empty() => Row::without(*step, "interrupted".to_owned()),
            None => Row::of(*step, trials),
        };
        Ok(steps.iter().zip(&trials).map(row).collect())
    }

    fn sizes(&mut self, step: Step, way: &Way) -> Result<Vec<SizeRow>, Failure> {
        let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); sizes::SIZES.len()];
        for _ in 0..self.task.rounds {
            for (place, &size) in sizes::SIZES.iter().enumerate() {
                let offer = Offer { rate: Rate::Steady(sizes::RATE), duration: self.task.duration, size, train: 1 };
                trials[place].extend(self.trial(&format!("{size} bytes"), way, &offer, self.cores)?);
            }
        }
        let row = |(&bytes, trials): (&usize, &Vec<Trial>)| SizeRow { bytes, row: Row::of(step, trials) };
        Ok(sizes::SIZES.iter().zip(&trials).map(row).collect())
    }

    fn placements(
        &mut self,
        step: Step,
        way: &Way,
        offer: &Offer,
        allowed: &[usize],
    ) -> Result<Vec<PlacementRow>, Failure> {
        let topology = Topology::read(Path::new("/sys")).unwrap_or_default();
        let found = Distance::ALL.map(|distance| distance.cores(allowed, &topology));
        let mut trials: [Vec<Trial>; Distance::ALL.len()] = Default::default();
        for _ in 0..self.task.rounds {
            for (place, cores) in found.iter().enumerate() {
                if let Ok(cores) = cores {
                    trials[place].extend(self.trial(Distance::ALL[place].name(), way, offer, cores)?);
                }
            }
        }
        let rows = Distance::ALL.into_iter().zip(found).zip(trials);
        Ok(rows
            .map(|((distance, cores), trials)| match cores {
                Ok(cores) => {
                    let pair = (cores.sender, cores.receivers[0]);
                    PlacementRow { distance, cores: Some(pair), row: Row::of(step, &trials) }
                }
                Err(obstacle) => PlacementRow { distance, cores: None, row: Row::without(step, obstacle) },
            })
            .collect())
    }
}

//! Measures the steps of the ladder and makes a row of figures for each.
//!
//! The steps take turns, round by round and every second round backwards, so that a machine that changes its pace
//! changes it for all of them; one step is there twice, and its difference to itself is the noise of the others.
//!
//! Counts of a row are sums over its rounds, so that they still add up; costs are medians, so that one bad round does
//! not decide.
//!
//! `--sizes` repeats the last step over payloads of every size. The rate is low and the same for all, because the cost
//! is asked for and not the limit; a straight line through the costs then tells what a datagram costs from what its
//! bytes cost. `--placements` repeats it with receiver and interrupt at every distance that the machine has: one core,
//! two threads of a core, two cores of a memory node, two nodes. On loopback the interrupt runs where the sender runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mmsg::Uring;
use serde::Serialize;
use steer::Topology;

use super::advice::{self, LadderAdvice};
use super::step::{LadderStep, OfferedLoad, ReceiveMethod, StepSupport, TestPath, TrialCores};
use super::trial::{self, LadderTrial, RECEIVE_BUFFER_BYTES};
use crate::pacer::Rate;
use udpd_base::exit::Failure;

/// The rate of the ladder, where the sender can offer it.
const MILLION: u64 = 1_000_000;

/// Otherwise this share of what the sender reaches: it has to keep its rate in every step.
const OF_SENDERS_LIMIT: f64 = 0.8;

/// How long to search for the sender's limit.
const CALIBRATION: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, PartialEq)]
pub struct LadderTask {
    pub steps: Vec<LadderStep>,
    pub rounds: usize,
    pub duration: Duration,
    /// Datagrams a second; `None`: a million, or what the sender can keep.
    pub rate: Option<u64>,
    pub size: usize,
    pub train: usize,
    pub sizes: bool,
    pub placements: bool,
    pub ground: TestPath,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LadderReport {
    /// Datagrams a second that were asked for in each step.
    pub rate: u64,
    /// What the sender reaches when no receiver runs.
    pub senders_limit: f64,
    pub sender_core: usize,
    pub receiver_cores: Vec<usize>,
    /// By how much a step differs from itself; null when it was not taken twice in two rounds.
    pub noise: Option<f64>,
    pub steps: Vec<StepRow>,
    pub advice: Vec<LadderAdvice>,
    pub sizes: Vec<SizeRow>,
    /// The cost of a datagram and that of its bytes.
    pub line: Option<CostLine>,
    pub placements: Vec<PlacementRow>,
    /// A signal ended it before everything was measured.
    pub interrupted: bool,
}

/// Measures until it is done or `stop` is raised. `progress` hears of each trial before it begins: its number, how many
/// there are, and its name.
pub(super) fn run(
    task: &LadderTask,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<LadderReport, Failure> {
    let allowed = allowed_cores();
    let cores = TrialCores::of(&allowed);
    let probe = OfferedLoad { rate: Rate::Max, duration: CALIBRATION, size: task.size, train: task.train };
    let senders_limit = trial::senders_limit(&probe, &cores, &task.ground, stop)?;
    let kept = ((senders_limit * OF_SENDERS_LIMIT) as u64 / 10_000 * 10_000).max(1_000);
    let rate = task.rate.unwrap_or_else(|| kept.min(MILLION));
    let offer = OfferedLoad { rate: Rate::Steady(rate), duration: task.duration, ..probe };
    let mut ladder = Ladder { task, cores: &cores, stop, progress, done: 0, clamped_bytes: None };
    let steps = ladder.steps(&offer)?;
    let last = steps.iter().rev().find(|row| row.received > 0).map_or(LadderStep::Recvmmsg, |row| row.step);
    let way = last.way(1, task.ground.queues());
    let sizes = if task.sizes { ladder.sizes(last, &way)? } else { Vec::new() };
    let points: Vec<(usize, f64)> = sizes.iter().filter_map(|size| Some((size.bytes, size.row.receiver_ns?))).collect();
    let placements = if task.placements { ladder.placements(last, &way, &offer, &allowed)? } else { Vec::new() };
    Ok(LadderReport {
        rate,
        senders_limit,
        sender_core: cores.sender,
        receiver_cores: cores.receivers.clone(),
        noise: advice::noise(&steps),
        advice: advice::advise(&steps, ladder.clamped_bytes, RECEIVE_BUFFER_BYTES),
        steps,
        sizes,
        line: line(&points),
        placements,
        interrupted: stop.load(Ordering::Relaxed),
    })
}

fn allowed_cores() -> Vec<usize> {
    steer::allowed_cores().unwrap_or_else(|_| vec![0])
}

struct Ladder<'a> {
    task: &'a LadderTask,
    cores: &'a TrialCores,
    stop: &'a Arc<AtomicBool>,
    progress: &'a mut dyn FnMut(usize, usize, &str),
    done: usize,
    clamped_bytes: Option<usize>,
}

impl Ladder<'_> {
    /// How many trials there will be, as far as is known before.
    fn trials(&self) -> usize {
        let sizes = if self.task.sizes { SIZES.len() } else { 0 };
        let placements = if self.task.placements { Distance::ALL.len() } else { 0 };
        (self.task.steps.len() + sizes + placements) * self.task.rounds
    }

    /// One trial, or `None` after a signal.
    fn trial(
        &mut self,
        name: &str,
        way: &ReceiveMethod,
        offer: &OfferedLoad,
        cores: &TrialCores,
    ) -> Result<Option<LadderTrial>, Failure> {
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

    fn steps(&mut self, offer: &OfferedLoad) -> Result<Vec<StepRow>, Failure> {
        let (io_uring, ground) = (Uring::supported(), &self.task.ground);
        let wants_cable = self.task.steps.iter().any(|step| step.wants_cable());
        let no_af_xdp = wants_cable.then(|| ground.obstacle()).flatten();
        let reach = StepSupport { io_uring: &io_uring, no_af_xdp: no_af_xdp.as_deref(), train: offer.train };
        let steps: Vec<(LadderStep, Option<String>)> =
            self.task.steps.iter().map(|&step| (step, step.obstacle(reach))).collect();
        let mut trials: Vec<Vec<LadderTrial>> = vec![Vec::new(); steps.len()];
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
        let row = |((step, obstacle), trials): (&(LadderStep, Option<String>), &Vec<LadderTrial>)| match obstacle {
            Some(obstacle) => StepRow::without(*step, obstacle.clone()),
            None if trials.is_empty() => StepRow::without(*step, "interrupted".to_owned()),
            None => StepRow::of(*step, trials),
        };
        Ok(steps.iter().zip(&trials).map(row).collect())
    }

    fn sizes(&mut self, step: LadderStep, way: &ReceiveMethod) -> Result<Vec<SizeRow>, Failure> {
        let mut trials: Vec<Vec<LadderTrial>> = vec![Vec::new(); SIZES.len()];
        for _ in 0..self.task.rounds {
            for (place, &size) in SIZES.iter().enumerate() {
                let offer = OfferedLoad { rate: Rate::Steady(RATE), duration: self.task.duration, size, train: 1 };
                trials[place].extend(self.trial(&format!("{size} bytes"), way, &offer, self.cores)?);
            }
        }
        let row = |(&bytes, trials): (&usize, &Vec<LadderTrial>)| SizeRow { bytes, row: StepRow::of(step, trials) };
        Ok(SIZES.iter().zip(&trials).map(row).collect())
    }

    fn placements(
        &mut self,
        step: LadderStep,
        way: &ReceiveMethod,
        offer: &OfferedLoad,
        allowed: &[usize],
    ) -> Result<Vec<PlacementRow>, Failure> {
        let topology = Topology::read(Path::new("/sys")).unwrap_or_default();
        let found = Distance::ALL.map(|distance| distance.cores(allowed, &topology));
        let mut trials: [Vec<LadderTrial>; Distance::ALL.len()] = Default::default();
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
                    PlacementRow { distance, cores: Some(pair), row: StepRow::of(step, &trials) }
                }
                Err(obstacle) => PlacementRow { distance, cores: None, row: StepRow::without(step, obstacle) },
            })
            .collect())
    }
}

/// Datagrams that were sent and not received, by where they were lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct RowLoss {
    pub receive_buffer: u64,
    /// Before the sockets, such as in the backlog of a core.
    pub before_the_socket: u64,
}

impl RowLoss {
    pub(super) fn total(self) -> u64 {
        self.receive_buffer + self.before_the_socket
    }

    /// With GRO the sockets count trains: once they have dropped one, all missing datagrams count as theirs.
    fn of(trial: &LadderTrial, counts_trains: bool) -> Self {
        let lost = trial.sent.saturating_sub(trial.received());
        let receive_buffer = if counts_trains && trial.dropped > 0 { lost } else { trial.dropped.min(lost) };
        Self { receive_buffer, before_the_socket: lost - receive_buffer }
    }
}

/// One measurement of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Round {
    /// CPU time of the receivers for each datagram received.
    pub receiver_ns: Option<f64>,
    pub loss_percent: f64,
}

impl Round {
    fn of(trial: &LadderTrial) -> Self {
        let received = trial.received();
        Self {
            receiver_ns: (received > 0).then(|| trial.receiver_ns as f64 / received as f64),
            loss_percent: percent(trial.sent.saturating_sub(received), trial.sent),
        }
    }
}

fn percent(lost: u64, offered: u64) -> f64 {
    if offered == 0 { 0.0 } else { lost as f64 * 100.0 / offered as f64 }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct StepRow {
    pub step: LadderStep,
    pub what: &'static str,
    /// Why it was not measured; all figures are then 0 or null.
    pub obstacle: Option<String>,
    pub rounds: usize,
    pub offered_per_second: f64,
    pub offered: u64,
    pub received: u64,
    /// `offered` = `received` + these.
    pub lost: RowLoss,
    pub calls: u64,
    pub datagrams_per_call: Option<f64>,
    /// CPU time of the receivers for each datagram received.
    pub receiver_ns: Option<f64>,
    /// CPU time of the machine for each datagram received, sender and interrupts included.
    pub machine_ns: Option<f64>,
    /// Received by each thread.
    pub lanes: Vec<u64>,
    /// What the busiest thread received, as a multiple of the mean: 1 is even.
    pub imbalance: Option<f64>,
    pub each_round: Vec<Round>,
}

impl StepRow {
    /// The row of a step that was not measured.
    pub(super) fn without(step: LadderStep, obstacle: String) -> Self {
        Self { obstacle: Some(obstacle), ..Self::of(step, &[]) }
    }

    /// The row of the trials of one step.
    pub(super) fn of(step: LadderStep, trials: &[LadderTrial]) -> Self {
        let sum = |count: fn(&LadderTrial) -> u64| trials.iter().map(count).sum::<u64>();
        let counts_trains = step == LadderStep::Gro;
        let lost =
            trials.iter().map(|trial| RowLoss::of(trial, counts_trains)).fold(RowLoss::default(), |all, one| RowLoss {
                receive_buffer: all.receive_buffer + one.receive_buffer,
                before_the_socket: all.before_the_socket + one.before_the_socket,
            });
        let (received, calls) = (sum(LadderTrial::received), sum(|trial| trial.calls));
        let each = |cost: fn(&LadderTrial) -> Option<u64>| {
            let costs = trials.iter().filter(|trial| trial.received() > 0);
            median(costs.filter_map(|trial| Some(cost(trial)? as f64 / trial.received() as f64)).collect())
        };
        let mut lanes = vec![0; trials.iter().map(|trial| trial.lanes.len()).max().unwrap_or(0)];
        for (lane, count) in trials.iter().flat_map(|trial| trial.lanes.iter().enumerate()) {
            lanes[lane] += count;
        }
        Self {
            step,
            what: step.what(),
            obstacle: None,
            rounds: trials.len(),
            offered_per_second: median(trials.iter().map(|trial| trial.rate).collect()).unwrap_or(0.0),
            offered: sum(|trial| trial.sent),
            received,
            lost,
            calls,
            datagrams_per_call: (calls > 0).then(|| received as f64 / calls as f64),
            receiver_ns: each(|trial| Some(trial.receiver_ns)),
            machine_ns: each(|trial| trial.machine_ns),
            imbalance: imbalance(&lanes),
            lanes,
            each_round: trials.iter().map(Round::of).collect(),
        }
    }

    pub(super) fn loss_percent(&self) -> f64 {
        percent(self.lost.total(), self.offered)
    }

    pub(super) fn in_buffers_percent(&self) -> f64 {
        percent(self.lost.receive_buffer, self.offered)
    }

    /// What came of each second's datagrams.
    pub(super) fn received_per_second(&self) -> f64 {
        self.offered_per_second * percent(self.received, self.offered) / 100.0
    }
}

fn imbalance(lanes: &[u64]) -> Option<f64> {
    let sum: u64 = lanes.iter().sum();
    let most = *lanes.iter().max()?;
    (sum > 0 && lanes.len() > 1).then(|| most as f64 * lanes.len() as f64 / sum as f64)
}

/// The middle one, or the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Payload bytes, around the sizes where something changes: cache lines, an Ethernet frame and one byte more, a jumbo
/// frame, the longest there is.
pub(super) const SIZES: [usize; 14] =
    [32, 64, 128, 256, 512, 1024, 1400, 1472, 1473, 4096, 8972, 16_384, 32_768, 65_507];

/// Datagrams a second at every size.
pub(super) const RATE: u64 = 10_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SizeRow {
    pub bytes: usize,
    #[serde(flatten)]
    pub row: StepRow,
}

/// A straight line through costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CostLine {
    /// For each datagram, whatever its size.
    pub ns_per_datagram: f64,
    /// For each 1,024 bytes of payload.
    pub ns_per_kib: f64,
    /// How much of the difference between sizes the line explains, 0 to 1.
    pub fit: f64,
}

/// The line of least squares; `None` with fewer than two sizes.
pub(super) fn line(points: &[(usize, f64)]) -> Option<CostLine> {
    let count = points.len() as f64;
    let mean = |value: fn(&(usize, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (mean_bytes, mean_ns) = (mean(|point| point.0 as f64), mean(|point| point.1));
    let deviation = |(bytes, ns): &(usize, f64)| (*bytes as f64 - mean_bytes, ns - mean_ns);
    let width: f64 = points.iter().map(|point| deviation(point).0.powi(2)).sum();
    if points.len() < 2 || width == 0.0 {
        return None;
    }
    let slope = points.iter().map(deviation).map(|(bytes, ns)| bytes * ns).sum::<f64>() / width;
    let height: f64 = points.iter().map(|point| deviation(point).1.powi(2)).sum();
    let left: f64 = points.iter().map(deviation).map(|(bytes, ns)| (ns - slope * bytes).powi(2)).sum();
    Some(CostLine {
        ns_per_datagram: mean_ns - slope * mean_bytes,
        ns_per_kib: slope * 1024.0,
        fit: if height == 0.0 { 1.0 } else { 1.0 - left / height },
    })
}

/// How far receiver and interrupt are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Distance {
    SameCore,
    /// Two threads of one physical core.
    SiblingThreads,
    /// Two cores of one memory node.
    SameNode,
    OtherNode,
}

impl Distance {
    /// From near to far.
    pub(super) const ALL: [Distance; 4] =
        [Distance::SameCore, Distance::SiblingThreads, Distance::SameNode, Distance::OtherNode];

    pub(super) fn name(self) -> &'static str {
        match self {
            Distance::SameCore => "same core",
            Distance::SiblingThreads => "sibling threads",
            Distance::SameNode => "another core of the node",
            Distance::OtherNode => "another node",
        }
    }

    /// The first two of the allowed cores that are this far from each other.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn cores(self, allowed: &[usize], topology: &Topology) -> Result<TrialCores, String> {
        let matches = |one: usize, other: usize| {
            let nodes = (topology.node_of_core.get(&one), topology.node_of_core.get(&other));
            let siblings = topology.are_siblings(one, other);
            match self {
                Distance::SameCore => one == other,
                Distance::SiblingThreads => one != other && siblings,
                // A machine that tells of no nodes has one.
                Distance::SameNode => !siblings && nodes.0 == nodes.1,
                Distance::OtherNode => matches!(nodes, (Some(own), Some(far)) if own != far),
            }
        };
        let pairs = allowed.iter().flat_map(|&one| allowed.iter().map(move |&other| (one, other)));
        pairs
            .filter(|&(one, other)| matches(one, other))
            .map(|(sender, receiver)| TrialCores { sender, receivers: vec![receiver] })
            .next()
            .ok_or_else(|| format!("no two of the cores {} are placed like that", steer::format_core_list(allowed)))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PlacementRow {
    pub distance: Distance,
    /// The cores of sender (and interrupt) and receiver.
    pub cores: Option<(usize, usize)>,
    #[serde(flatten)]
    pub row: StepRow,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(sent: u64, lanes: &[u64], dropped: u64, receiver_ns: u64) -> LadderTrial {
        LadderTrial {
            sent,
            lanes: lanes.to_vec(),
            dropped,
            receiver_ns,
            calls: 2,
            rate: sent as f64,
            ..LadderTrial::default()
        }
    }

    #[test]
    fn what_is_offered_is_received_or_lost_in_a_named_layer() {
        let row = StepRow::of(LadderStep::Threads, &[trial(100, &[60, 20], 15, 800), trial(100, &[50, 50], 0, 300)]);
        assert_eq!((row.offered, row.received), (200, 180));
        assert_eq!(row.lost, RowLoss { receive_buffer: 15, before_the_socket: 5 });
        assert_eq!((row.lanes.as_slice(), row.imbalance), (&[110, 70][..], Some(110.0 * 2.0 / 180.0)));
        assert_eq!((row.receiver_ns, row.datagrams_per_call), (Some(6.5), Some(45.0)));
        assert_eq!((row.machine_ns, row.loss_percent()), (None, 10.0));
        let rounds: Vec<_> = row.each_round.iter().map(|round| (round.receiver_ns, round.loss_percent)).collect();
        assert_eq!(rounds, [(Some(10.0), 20.0), (Some(3.0), 0.0)]);
    }

    #[test]
    fn a_socket_that_counts_trains_answers_for_all_that_is_missing() {
        let row = StepRow::of(LadderStep::Gro, &[trial(100, &[60], 2, 1)]);
        assert_eq!(row.lost, RowLoss { receive_buffer: 40, before_the_socket: 0 });
        let row = StepRow::of(LadderStep::Gro, &[trial(100, &[60], 0, 1)]);
        assert_eq!(row.lost, RowLoss { receive_buffer: 0, before_the_socket: 40 });
    }

    #[test]
    fn a_step_that_was_not_taken_has_a_reason_and_no_figures() {
        let row = StepRow::without(LadderStep::IoUring, "refused".to_owned());
        assert_eq!((row.obstacle.as_deref(), row.rounds, row.offered, row.receiver_ns), (Some("refused"), 0, 0, None));
    }

    #[test]
    fn a_line_tells_the_cost_of_a_datagram_from_that_of_its_bytes() {
        let points: Vec<(usize, f64)> = SIZES.iter().map(|&bytes| (bytes, 500.0 + 0.25 * bytes as f64)).collect();
        let line = line(&points).expect("a line");
        assert!((line.ns_per_datagram - 500.0).abs() < 1e-6 && (line.ns_per_kib - 256.0).abs() < 1e-6, "{line:?}");
        assert!((line.fit - 1.0).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn one_size_makes_no_line() {
        assert_eq!(line(&[(64, 500.0)]), None);
        assert_eq!(line(&[(64, 500.0), (64, 700.0)]), None);
    }

    #[test]
    fn what_no_line_explains_fits_badly() {
        let line = line(&[(0, 1.0), (1, 9.0), (2, 1.0)]).expect("a line");
        assert!(line.fit.abs() < 1e-9, "{line:?}");
    }

    /// Two nodes of two physical cores with two threads each: 0 and 4, 1 and 5 on node 0.
    fn machine() -> Topology {
        Topology {
            online: (0..8).collect(),
            node_of_core: (0..8).map(|core| (core, core % 4 / 2)).collect(),
            physical_of_core: (0..8).map(|core| (core, core % 4)).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn every_distance_of_a_large_machine_is_found() {
        let allowed: Vec<usize> = (0..8).collect();
        let found = Distance::ALL.map(|distance| distance.cores(&allowed, &machine()).expect("there are such cores"));
        assert_eq!(found.map(|cores| (cores.sender, cores.receivers[0])), [(0, 0), (0, 4), (0, 1), (0, 2)]);
    }

    #[test]
    fn a_distance_that_a_machine_lacks_has_a_reason() {
        assert!(Distance::SiblingThreads.cores(&[0, 1], &machine()).expect_err("no siblings").contains("0-1"));
        assert!(Distance::OtherNode.cores(&[0, 1], &Topology::default()).is_err());
        assert_eq!(Distance::SameNode.cores(&[0, 1], &Topology::default()).map(|cores| cores.receivers), Ok(vec![1]));
    }
}

//! Trials of one step over all rounds, boiled down to the figures of a line.
//!
//! Counts are sums, so that they still add up; costs are medians, so that one bad round does not speak for the others.

use serde::Serialize;

use super::step::Step;
use super::trial::Trial;

/// Datagrams that were sent and not received, by where they were lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// In the receive buffers of the sockets.
    pub receive_buffer: u64,
    /// Before the sockets, such as in the backlog of a core.
    pub before_the_socket: u64,
}

impl Lost {
    pub fn total(self) -> u64 {
        self.receive_buffer + self.before_the_socket
    }

    /// With GRO the sockets count trains: as soon as they have dropped one, all that is missing is laid at their door.
    fn of(trial: &Trial, counts_trains: bool) -> Self {
        let lost = trial.sent.saturating_sub(trial.received());
        let receive_buffer = if counts_trains && trial.dropped > 0 { lost } else { trial.dropped.min(lost) };
        Self { receive_buffer, before_the_socket: lost - receive_buffer }
    }
}

/// One measurement of a step, to see how far they are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Round {
    /// CPU time of the receivers for each datagram received.
    pub receiver_ns: Option<f64>,
    /// The share of what was offered that is missing, in percent.
    pub loss_percent: f64,
}

impl Round {
    fn of(trial: &Trial) -> Self {
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

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub step: Step,
    pub what: &'static str,
    /// Why it could not be taken; all figures are then 0 or null.
    pub obstacle: Option<String>,
    pub rounds: usize,
    /// Datagrams a second, as really sent.
    pub offered_per_second: f64,
    pub offered: u64,
    pub received: u64,
    /// What is missing: `offered` = `received` + these.
    pub lost: Lost,
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
    /// Each round by itself.
    pub each_round: Vec<Round>,
}

impl Row {
    /// A step that could not be taken.
    pub(super) fn without(step: Step, obstacle: String) -> Self {
        Self { obstacle: Some(obstacle), ..Self::of(step, &[]) }
    }

    /// The line of these trials of one step.
    pub(super) fn of(step: Step, trials: &[Trial]) -> Self {
        let sum = |count: fn(&Trial) -> u64| trials.iter().map(count).sum::<u64>();
        let counts_trains = step == Step::Gro;
        let lost = trials.iter().map(|trial| Lost::of(trial, counts_trains)).fold(Lost::default(), |all, one| Lost {
            receive_buffer: all.receive_buffer + one.receive_buffer,
            before_the_socket: all.before_the_socket + one.before_the_socket,
        });
        let (received, calls) = (sum(Trial::received), sum(|trial| trial.calls));
        let each = |cost: fn(&Trial) -> Option<u64>| {
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

    /// The share of what was offered that is missing, in percent.
    pub fn loss_percent(&self) -> f64 {
        percent(self.lost.total(), self.offered)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(sent: u64, lanes: &[u64], dropped: u64, receiver_ns: u64) -> Trial {
        Trial { sent, lanes: lanes.to_vec(), dropped, receiver_ns, calls: 2, rate: sent as f64, ..Trial::default() }
    }

    #[test]
    fn what_is_offered_is_received_or_lost_in_a_named_layer() {
        let row = Row::of(Step::Threads, &[trial(100, &[60, 20], 15, 800), trial(100, &[50, 50], 0, 300)]);
        assert_eq!((row.offered, row.received), (200, 180));
        assert_eq!(row.lost, Lost { receive_buffer: 15, before_the_socket: 5 });
        assert_eq!((row.lanes.as_slice(), row.imbalance), (&[110, 70][..], Some(110.0 * 2.0 / 180.0)));
        assert_eq!((row.receiver_ns, row.datagrams_per_call), (Some(6.5), Some(45.0)));
        assert_eq!((row.machine_ns, row.loss_percent()), (None, 10.0));
        let rounds: Vec<_> = row.each_round.iter().map(|round| (round.receiver_ns, round.loss_percent)).collect();
        assert_eq!(rounds, [(Some(10.0), 20.0), (Some(3.0), 0.0)]);
    }

    #[test]
    fn a_socket_that_counts_trains_answers_for_all_that_is_missing() {
        let row = Row::of(Step::Gro, &[trial(100, &[60], 2, 1)]);
        assert_eq!(row.lost, Lost { receive_buffer: 40, before_the_socket: 0 });
        let row = Row::of(Step::Gro, &[trial(100, &[60], 0, 1)]);
        assert_eq!(row.lost, Lost { receive_buffer: 0, before_the_socket: 40 });
    }

    #[test]
    fn a_step_that_was_not_taken_has_a_reason_and_no_figures() {
        let row = Row::without(Step::IoUring, "refused".to_owned());
        assert_eq!((row.obstacle.as_deref(), row.rounds, row.offered, row.receiver_ns), (Some("refused"), 0, 0, None));
    }
}

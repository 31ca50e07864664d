//! How unevenly a hash spreads a few flows over receivers. Four exporters on four receivers do not give each one: flows
//! are thrown at receivers like balls into bins, and whoever sizes them by the average is surprised by the fullest.

/// The share of all flows that the busiest of `receivers` is expected to get of `flows` equal flows.
pub(super) fn busiest_share(flows: usize, receivers: usize) -> f64 {
    if flows == 0 || receivers == 0 {
        return 0.0;
    }
    // The expectation of a count is the sum over m of the chance that it is above m.
    let expected: f64 = (0..flows).map(|most| 1.0 - chance_of_at_most(most, flows, receivers)).sum();
    expected / flows as f64
}

/// A share in thousandths.
pub(super) fn thousandths(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

/// The chance that no receiver gets more than `most` flows. Receiver by receiver: given how many
/// flows are left, the share of the next one is binomial.
fn chance_of_at_most(most: usize, flows: usize, receivers: usize) -> f64 {
    let mut left = vec![0.0; flows + 1];
    left[flows] = 1.0;
    for receiver in 0..receivers {
        let chance = 1.0 / (receivers - receiver) as f64;
        let mut next = vec![0.0; flows + 1];
        for (remaining, weight) in left.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            // The binomial chances of 0, 1, 2 and so on, each from the one before.
            let mut hits = (1.0 - chance).powi(i32::try_from(remaining).unwrap_or(i32::MAX));
            if chance >= 1.0 {
                next[0] += if remaining <= most { *weight } else { 0.0 };
                continue;
            }
            for taken in 0..=most.min(remaining) {
                next[remaining - taken] += weight * hits;
                hits *= (remaining - taken) as f64 / (taken + 1) as f64 * chance / (1.0 - chance);
            }
        }
        left = next;
    }
    left[0].min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_receiver_gets_everything_and_one_flow_is_all_of_one_receiver() {
        assert!((busiest_share(64, 1) - 1.0).abs() < 1e-9);
        assert!((busiest_share(1, 8) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn two_flows_on_two_receivers_meet_every_second_time() {
        // Together (a share of 1) or apart (a half), each with a chance of a half.
        assert!((busiest_share(2, 2) - 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_figure_agrees_with_throwing_balls() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let rounds = 20_000;
        let mut sum = 0;
        for _ in 0..rounds {
            let mut bins = [0_u32; 4];
            for _ in 0..8 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bins[(state >> 33) as usize % 4] += 1;
            }
            sum += bins.iter().max().expect("bins");
        }
        let thrown = f64::from(sum) / f64::from(rounds) / 8.0;
        assert!((busiest_share(8, 4) - thrown).abs() < 0.01, "{} and {thrown}", busiest_share(8, 4));
    }
}

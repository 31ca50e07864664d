//! The card had no free buffer in its receive ring.

use super::steering::lost_at;
use crate::explain::evidence::Evidence;
use crate::explain::finding::{Cure, Finding, quote};
use crate::explain::sums::time;
use udpd_base::text::tables::grouped;

pub fn ring_too_small(evidence: &Evidence) -> Vec<Finding> {
    let losing = evidence.interfaces.iter().filter(|interface| interface.missed.unwrap_or(0) > 0);
    let told = losing.map(|interface| {
        let (name, word) = (&interface.name, quote(&interface.name));
        let queues = interface.queue_cores.len().max(1) as f64;
        let rate = interface.packets.unwrap_or(0).saturating_add(interface.missed.unwrap_or(0)) as f64;
        let rate = (rate / evidence.seconds.max(0.001) / queues).max(1.0);
        let finding = lost_at("ring_too_small", interface);
        let cause = format!("the receive ring of {name} was full: the kernel took packets out too late or too slowly");
        match interface.ring {
            Some((now, max)) if now < max => {
                let arithmetic = format!(
                    "{} buffers a queue are {} at {}/s; {} are {}",
                    grouped(now.into()),
                    time(f64::from(now) / rate),
                    grouped(rate as u64),
                    grouped(max.into()),
                    time(f64::from(max) / rate)
                );
                let note = format!(
                    "the driver can go up to {max}; most reset the link for it; for good: ring = \"max\" in [steer]"
                );
                let cure = Cure::command(format!("ethtool -G {word} rx {max}"), note);
                finding.because(cause).with(arithmetic).cured_by([cure])
            }
            Some((now, _)) => {
                let arithmetic = format!(
                    "{} buffers a queue are {}, and the driver has no more",
                    grouped(now.into()),
                    time(f64::from(now) / rate)
                );
                let note = "spreads the receive queues over cores of their own, and the receivers beside them";
                let cure = Cure::command(evidence.steer_apply(Some(name)), note);
                finding.because(cause).with(arithmetic).cured_by([cure])
            }
            None => {
                let note = "the driver does not tell how long its ring is, so whether it can be longer is not known";
                finding.because(cause).cured_by([Cure::command(format!("ethtool -g {word}"), note)])
            }
        }
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::told;
    use crate::explain::evidence::{Evidence, Interface};

    /// Recorded counters: no virtual card of this machine counts what its ring had no room for.
    fn missing(ring: Option<(u32, u32)>) -> Evidence {
        let interface = Interface {
            name: "eth0".into(),
            packets: Some(900_000),
            missed: Some(5000),
            ring,
            queue_cores: vec![Some(0), Some(1)],
            ..Interface::default()
        };
        Evidence { seconds: 5.0, interfaces: vec![interface], ..Evidence::default() }
    }

    #[test]
    fn a_ring_that_can_be_longer_is_named_with_its_maximum() {
        let command = "ethtool -G eth0 rx 4096".to_owned();
        assert_eq!(told(&missing(Some((512, 4096)))), ("ring_too_small", 5000, command));
    }

    #[test]
    fn a_ring_at_its_maximum_leaves_steering() {
        assert_eq!(told(&missing(Some((4096, 4096)))).2, "udpd steer apply eth0");
        assert_eq!(told(&missing(None)).2, "ethtool -g eth0");
    }
}

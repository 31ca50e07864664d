//! Stage two for `[steer]`: which interfaces, and what is wished of them. Whether a device can do it is only known when
//! it is asked, so that is for `udpd steer`, not for here.

use steer::plan::{Amount, Placement, Request};

use super::accept;
use crate::config::Steer;
use crate::config::file::raw::RawSteer;
use crate::config::file::reader::{Located, Report, Setting};
use crate::config::file::values::WordOr;
use crate::config::host::Host;
use crate::text::advice::Advice;
use crate::text::units;

/// More queues or descriptors than any device has.
const AMOUNT_MAX: u64 = 65_536;

/// What is wished of the host.
pub(crate) fn validate(raw: &RawSteer, host: &Host, report: &mut Report<'_>) -> Steer {
    let mut interfaces: Vec<String> = Vec::new();
    for interface in raw.interfaces.get().into_iter().flat_map(|list| &list.value) {
        accept(host.check_interface(&interface.value), &interface.place, report);
        if interfaces.contains(&interface.value) {
            let what = format!("names {:?} twice", interface.value);
            report.say(&interface.place, what, "name each interface once");
        }
        interfaces.push(interface.value.clone());
    }
    let request = Request {
        rx_queues: amount(&raw.rx_queues, report),
        ring: amount(&raw.ring, report),
        flow_hash_udp: raw.flow_hash_udp.or(None),
        placement: raw.placement.or(Placement::default()),
        cores: cores(&raw.cpus, host, report),
        receivers: None,
    };
    Steer { interfaces, request, ban_irqbalance: raw.ban_irqbalance.or(false) }
}

fn amount(raw: &Setting<WordOr<u64>>, report: &mut Report<'_>) -> Amount {
    match raw.get() {
        Some(Located { value: WordOr::Word("max"), .. }) => Amount::Max,
        Some(Located { value: WordOr::Amount(count), place }) => {
            if !(1..=AMOUNT_MAX).contains(count) {
                let cure = format!("write a number from 1 to {AMOUNT_MAX}, \"keep\" or \"max\"");
                report.say(place, format!("{count} is outside 1 to {AMOUNT_MAX}"), cure);
            }
            u32::try_from(*count).map_or(Amount::Keep, Amount::Number)
        }
        _ => Amount::Keep,
    }
}

fn cores(raw: &Setting<String>, host: &Host, report: &mut Report<'_>) -> Option<Vec<usize>> {
    let written = raw.get().filter(|cpus| cpus.value != "auto")?;
    let parsed = units::parse_cpus(&written.value).and_then(|cpus| host.check_cpus(&cpus).map(|()| cpus));
    let parsed = parsed.map_err(|advice| Advice::new(advice.what, format!("{}, or \"auto\" for all", advice.cure)));
    accept(parsed, &written.place, report)
}

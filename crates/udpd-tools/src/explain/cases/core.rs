//! The reader is fast enough and gets no core: others run on it, the hypervisor takes it, or the kernel's own work of
//! receiving does.

use super::ports::of_ports;
use crate::explain::evidence::{Evidence, Port, Reader};
use crate::explain::finding::{Cure, Finding};
use crate::explain::sums::percent;

/// A thread that waits so much of the time for a core explains drops.
const WAITED: f64 = 0.25;

/// A hypervisor that takes so much of a core explains drops.
const STOLEN: f64 = 0.2;

/// The softirq is a neighbour from here on.
const SOFTIRQ: f64 = 0.3;

/// A core whose softirq and reader together take as much has nothing left.
const FULL: f64 = 0.85;

pub fn starved(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let reader = port.reader.as_ref()?;
        let stolen = stolen(evidence, reader).filter(|stolen| *stolen >= STOLEN);
        let waited = reader.waited.filter(|waited| *waited >= WAITED && Some(*waited) > reader.ran);
        if let Some(stolen) = stolen {
            let cause = format!(
                "the hypervisor took {} of the time of the cores that the reader runs on (steal)",
                percent(stolen)
            );
            let note = "ask for cores of its own for this guest, or move it to a host with less on it";
            return Some(finding.because(cause).cured_by([Cure::elsewhere(note)]));
        }
        let waited = waited?;
        let cause = format!(
            "the thread that reads was ready to run and had no core for {} of the time: other programs run on core {}",
            percent(waited),
            steer::format_core_list(&reader.cores)
        );
        let arithmetic = reader.ran.map_or(String::new(), |ran| {
            format!("it ran {} of the time and would have run {}", percent(ran), percent(ran + waited))
        });
        let note = "puts it before all others; for good write CPUSchedulingPolicy=rr in its unit, or keep other \
                    programs off its core (CPUAffinity=, isolcpus=)";
        let command = format!("chrt --all-tasks --rr --pid 10 {}", reader.pid);
        Some(finding.because(cause).with(arithmetic).cured_by([Cure::command(command, note)]))
    };
    of_ports(evidence, case, "reader_starved")
}

/// The mean over its cores.
fn stolen(evidence: &Evidence, reader: &Reader) -> Option<f64> {
    let steals: Option<Vec<f64>> = reader.cores.iter().map(|core| evidence.cores.get(core)?.steal).collect();
    let steals = steals.filter(|steals| !steals.is_empty())?;
    Some(steals.iter().sum::<f64>() / steals.len() as f64)
}

pub fn shared_with_the_softirq(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let reader = port.reader.as_ref()?;
        let [core] = reader.cores.as_slice() else { return None };
        let softirq = evidence.cores.get(core)?.softirq.filter(|softirq| *softirq >= SOFTIRQ)?;
        let ran = reader.ran.filter(|ran| ran + softirq >= FULL)?;
        let quiet = |(other, softirq): (&usize, Option<f64>)| {
            softirq.filter(|softirq| other != core && *softirq < SOFTIRQ).map(|_| *other)
        };
        let other = evidence.cores.iter().find_map(|(other, seen)| quiet((other, seen.softirq)));
        let cause = format!(
            "core {core} does two things at once: the kernel receives packets there (softirq), and the thread that \
             reads may run nowhere else"
        );
        let arithmetic =
            format!("softirq {} and reader {} of the core's time: nothing is left", percent(softirq), percent(ran));
        let mut cures = Vec::new();
        if let Some(listener) = evidence.listener_on(port.port) {
            let note = "with `[steer] placement = \"adjacent\"` the lanes sit beside the interrupts and not on them; \
                        then restart udpd";
            cures.push(Cure::command(evidence.steer_apply(None), note));
            if let Some(other) = other {
                let text = format!("or write [steer] cpus = \"{other}\" and restart udpd: listener {}", listener.name);
                cures.push(Cure::elsewhere(text));
            }
        } else if let Some(other) = other {
            let note = "until it is started again: CPUAffinity= in its unit";
            cures.push(Cure::command(format!("taskset --all-tasks --cpu-list --pid {other} {}", reader.pid), note));
        } else {
            cures.push(Cure::elsewhere("every core is as busy with the softirq: give the machine more cores"));
        }
        Some(finding.because(cause).with(arithmetic).cured_by(cures))
    };
    of_ports(evidence, case, "core_shared_with_softirq")
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::{first, losing, told};
    use crate::explain::evidence::Core;

    #[test]
    fn a_reader_that_waits_for_its_core_is_put_before_the_others() {
        let mut evidence = losing();
        let reader = evidence.ports[0].reader.as_mut().expect("a reader");
        (reader.ran, reader.waited) = (Some(0.2), Some(0.6));
        assert_eq!(told(&evidence), ("reader_starved", 1000, "chrt --all-tasks --rr --pid 10 812".to_owned()));
        assert!(first(&evidence).arithmetic.contains("ran 20 % of the time and would have run 80 %"));
    }

    #[test]
    fn a_hypervisor_that_takes_the_core_is_named() {
        let mut evidence = losing();
        for core in [0, 1] {
            evidence.cores.insert(core, Core { steal: Some(0.4), ..Core::default() });
        }
        assert!(first(&evidence).cause.contains("the hypervisor took 40 %"));
    }

    #[test]
    fn a_reader_on_the_core_of_the_softirq_is_moved() {
        let mut evidence = losing();
        evidence.cores.insert(0, Core { softirq: Some(0.6), ..Core::default() });
        evidence.cores.insert(1, Core { softirq: Some(0.0), ..Core::default() });
        let reader = evidence.ports[0].reader.as_mut().expect("a reader");
        (reader.cores, reader.ran) = (vec![0], Some(0.39));
        let command = "taskset --all-tasks --cpu-list --pid 1 812".to_owned();
        assert_eq!(told(&evidence), ("core_shared_with_softirq", 1000, command));
    }
}

//! The reader does not read, gets no core, or reads as fast as one core can; or one socket of several gets what all
//! should.

use std::collections::BTreeMap;

use super::of_ports;
use super::shares::{Part, STOLEN, moments};
use crate::explain::evidence::{Evidence, ListenerEvidence, Moment, Port, ReaderEvidence};
use crate::explain::finding::{Cure, Finding};
use crate::explain::sysctl_dropin::percent;
use udpd_base::text::tables::grouped;

fn of_readers(
    evidence: &Evidence,
    part: Part,
    name: &'static str,
    case: impl Fn(&Port, &ReaderEvidence, Finding) -> Option<Finding>,
) -> Vec<Finding> {
    of_ports(evidence, part, |port, finding| case(port, port.reader.as_ref()?, finding), name)
}

pub(super) fn stopped(evidence: &Evidence) -> Vec<Finding> {
    of_readers(evidence, Part::Stopped, "reader_stopped", |_, reader, finding| {
        let cause = "the process that reads was stopped by a signal (SIGSTOP, a debugger) when they came, so nothing \
                     was read";
        Some(finding.because(cause).cured_by([Cure::command(format!("kill -CONT {}", reader.pid), "")]))
    })
}

pub(super) fn throttled(evidence: &Evidence) -> Vec<Finding> {
    of_readers(evidence, Part::Throttled, "container_throttled", |_, reader, finding| {
        let throttled = reader.throttled.as_ref()?;
        let limit = throttled.cores.map_or(String::new(), |cores| format!(" of {cores:.2} cores"));
        let cause = format!(
            "the control group of the process that reads (a container's or a unit's limit of CPU time) stopped it in \
             {} of the periods",
            percent(throttled.share)
        );
        let arithmetic = format!(
            "the limit{limit} is used up early in each period of usually 100 ms, and for the rest of it nothing is read"
        );
        let note = "until the container or the unit is started again: raise its limit there as well (--cpus of a \
                    container, CPUQuota= of a unit)";
        Some(finding.because(cause).with(arithmetic).cured_by([Cure::command(&throttled.command, note)]))
    })
}

/// One socket of several loses, and gets more than its part.
pub(super) fn hot_sender(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let (sockets, worst) = (port.sharing(), port.worst()?);
        let same = evidence.ports.iter().filter(|it| it.port == port.port).flat_map(|it| it.beside(worst));
        let dropped: u64 = same.map(|socket| socket.dropped).sum();
        if sockets < 2 || worst.dropped * 5 < dropped * 4 {
            return None;
        }
        if let Some(listener) = evidence.listener_on(port.port) {
            return hot_lane(evidence, listener, finding);
        }
        let cause = format!(
            "of {sockets} sockets on {} one dropped {} of {}, and its reader came to the end of its buffer: it got \
             more than fits, because the kernel chooses the socket by the sender's address and port",
            worst.address,
            grouped(worst.dropped),
            grouped(dropped)
        );
        let note = "give that socket a larger buffer, or let the senders use more source ports";
        Some(finding.because(cause).cured_by([Cure::elsewhere(note)]))
    };
    let busy = |port: &Port, finding: Finding| match evidence.listener_on(port.port) {
        Some(_) => case(port, finding),
        None => None,
    };
    let mut found = of_ports(evidence, Part::Burst, case, "hot_sender");
    found.extend(of_ports(evidence, Part::Busy, busy, "hot_sender"));
    found
}

fn hot_lane(evidence: &Evidence, listener: &ListenerEvidence, finding: Finding) -> Option<Finding> {
    let arrived = |lane: &crate::explain::evidence::LaneEvidence| lane.arrived.unwrap_or(0);
    let total: u64 = listener.lanes.iter().map(arrived).sum();
    let lane = listener.lanes.iter().max_by_key(|lane| arrived(lane))?;
    let lanes = listener.lanes.len() as f64;
    let share = arrived(lane) as f64 / total.max(1) as f64;
    let is_hot = lanes > 1.0 && share * lanes >= 1.5 && lane.dropped.unwrap_or(0) > 0;
    let spread = listener.spread.as_deref();
    if !is_hot || spread == Some("random") {
        return None;
    }
    let senders = match (lane.senders, lane.busiest) {
        (Some(1), Some((address, _))) => format!(", from one sender ({address})"),
        (count, Some((address, share))) => {
            let of = count.map_or("many senders".to_owned(), |count| format!("{count} senders"));
            format!(", from {of}, {} of it from {address}", percent(share))
        }
        (_, None) => String::new(),
    };
    let cause = format!(
        "lane {} got {} of what arrived{senders} and lost it, while {} lanes share the port: spread = \"{}\" gives all \
         of a sender to one lane",
        lane.lane,
        percent(share),
        listener.lanes.len(),
        spread.unwrap_or("flow")
    );
    let rate = total as f64 / evidence.seconds.max(0.001);
    let arithmetic = format!(
        "{}/s arrived, {}/s of them at lane {}; at random each lane gets {}/s",
        grouped(rate as u64),
        grouped((rate * share) as u64),
        lane.lane,
        grouped((rate / lanes) as u64)
    );
    let note =
        "its cost: the datagrams of one sender come out in no order, and rate_limit counts by lane; restart udpd";
    let cure = Cure::listener(&listener.name, "spread", "\"random\"", note);
    Some(finding.because(cause).with(arithmetic).cured_by([cure]))
}

pub(super) fn at_its_limit(evidence: &Evidence) -> Vec<Finding> {
    of_readers(evidence, Part::Busy, "reader_at_its_limit", |port, reader, finding| {
        let in_loss = mean(moments(evidence, port, Part::Busy).filter_map(|moment| moment.ran));
        let ran = in_loss.or(reader.ran)?.max(0.01);
        let cause = format!(
            "the thread that reads used {} of a core while they were lost: it takes what one core can take, and more \
             arrived",
            percent(ran)
        );
        let rate = evidence.rate(port);
        let (sockets, lost) = (port.sharing(), port.dropped() as f64 / evidence.seconds.max(0.001));
        let taken = ((rate - lost) / ran / sockets as f64).max(1.0);
        let wanted = ((rate / (taken * 0.6)).ceil() as usize).max(sockets + 1);
        let arithmetic = format!(
            "{}/s came and {}/s were lost; one thread takes about {}/s, and planned at 60 % of a core {} of them are \
             needed",
            grouped(rate as u64),
            grouped(lost as u64),
            grouped(taken as u64),
            wanted
        );
        // Lanes that share a core take no more than one.
        let lanes = if evidence.cores.is_empty() { wanted } else { wanted.min(evidence.cores.len()) };
        let cures = match evidence.listener_on(port.port) {
            Some(listener) if lanes > sockets => {
                let note = "with a core for each; restart udpd; a slow sink that is inline counts as reading";
                vec![Cure::listener(&listener.name, "lanes", lanes.to_string(), note)]
            }
            Some(_) => {
                let note = "every core has a lane already: let frames gather (gather = \"1ms\"), take a faster sink, \
                            or divide the senders among more hosts";
                vec![Cure::elsewhere(note)]
            }
            None => {
                let note = "let it read with several threads or processes, each with a socket of its own on the port \
                            (SO_REUSEPORT), or do less for each datagram";
                vec![Cure::elsewhere(note)]
            }
        };
        Some(finding.because(cause).with(arithmetic).cured_by(cures))
    })
}

pub(super) fn silent(evidence: &Evidence) -> Vec<Finding> {
    of_readers(evidence, Part::Waits, "reader_does_not_read", |port, reader, finding| {
        let worst = port.worst()?;
        let moments: Vec<&Moment> = moments(evidence, port, Part::Waits).collect();
        let ran = mean(moments.iter().filter_map(|moment| moment.ran)).or(reader.ran);
        let ran = ran.map_or("an unknown part".to_owned(), percent);
        let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
        moments.iter().filter_map(|moment| moment.call).for_each(|call| *calls.entry(call).or_default() += 1);
        let call = calls.into_iter().max_by_key(|(_, count)| *count).map_or(String::new(), |(call, count)| {
            format!("; at {count} of {} looks it was in the call {call}", moments.len())
        });
        let others = port.sharing();
        let group = if others > 1 {
            format!(" (one of {others} sockets on {}, among which the kernel deals out the senders)", worst.address)
        } else {
            String::new()
        };
        let cause = format!(
            "{} (pid {}) did not read its socket{group}, or too seldom: its buffer stayed full while they were lost, \
             and its thread ran {ran} of that time, so it waits for something else{call}",
            reader.command, reader.pid
        );
        let command = format!("cat /proc/{0}/task/*/wchan /proc/{0}/task/*/stack", reader.pid);
        let note = "says what it waits for: a disk, a full pipe, its own pauses; no buffer is large enough for it";
        Some(finding.because(cause).cured_by([Cure::look(command, note)]))
    })
}

/// The buffer stayed full, and what the reader did is not known.
pub(super) fn unknown_reader(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let cause = "their receive buffer stayed full while they were lost, so a larger one does not help: its reader \
                     is too slow, has no core, or waits for something else";
        let (why, look) = match &port.reader {
            Some(reader) => (
                "the times of its threads could not be read, or there are too many of them",
                Cure::look(format!("top -H -p {}", reader.pid), "shows what each of its threads does"),
            ),
            None => {
                let command = format!("sudo udpd explain --port {}", port.port);
                ("only root may see which", Cure::look(command, "sees what the reader's threads do"))
            }
        };
        Some(finding.because(format!("{cause}; {why}")).cured_by([look]))
    };
    of_ports(evidence, Part::Unknown, case, "reader_unknown")
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// From this share on the softirq competes with the reader.
const SOFTIRQ: f64 = 0.3;

/// A core whose softirq and reader together take as much has nothing left.
const FULL: f64 = 0.85;

pub(super) fn starved(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let reader = port.reader.as_ref()?;
        let stolen = stolen(evidence, reader).filter(|stolen| *stolen >= STOLEN);
        let in_loss = || moments(evidence, port, Part::Starved);
        let waited = mean(in_loss().filter_map(|moment| moment.waited)).or(reader.waited);
        let ran = mean(in_loss().filter_map(|moment| moment.ran)).or(reader.ran);
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
            "the thread that reads was ready to run and had no core for {} of that time: other programs run on core {}",
            percent(waited),
            steer::format_core_list(&reader.cores)
        );
        let arithmetic = ran.map_or(String::new(), |ran| {
            format!(
                "it ran {} of the time in which they were lost and would have run {}",
                percent(ran),
                percent(ran + waited)
            )
        });
        let note = "puts it before all others; for good write CPUSchedulingPolicy=rr in its unit, or keep other \
                    programs off its core (CPUAffinity=, isolcpus=)";
        let command = format!("chrt --all-tasks --rr --pid 10 {}", reader.pid);
        Some(finding.because(cause).with(arithmetic).cured_by([Cure::command(command, note)]))
    };
    of_ports(evidence, Part::Starved, case, "reader_starved")
}

pub(super) fn stolen(evidence: &Evidence, reader: &ReaderEvidence) -> Option<f64> {
    let steals: Option<Vec<f64>> = reader.cores.iter().map(|core| evidence.cores.get(core)?.steal).collect();
    let steals = steals.filter(|steals| !steals.is_empty())?;
    Some(steals.iter().sum::<f64>() / steals.len() as f64)
}

/// The core that a port's reader shares with the softirq, and what both took of it, where nothing is left.
pub(super) fn is_shared(evidence: &Evidence, port: &Port) -> Option<(usize, f64, f64)> {
    let reader = port.reader.as_ref()?;
    let [core] = reader.cores.as_slice() else { return None };
    let softirq = evidence.cores.get(core)?.softirq.filter(|softirq| *softirq >= SOFTIRQ)?;
    Some((*core, softirq, reader.ran.filter(|ran| ran + softirq >= FULL)?))
}

pub(super) fn shared_with_the_softirq(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let reader = port.reader.as_ref()?;
        let (core, softirq, ran) = is_shared(evidence, port)?;
        let quiet = |(other, softirq): (&usize, Option<f64>)| {
            softirq.filter(|softirq| *other != core && *softirq < SOFTIRQ).map(|_| *other)
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
    of_ports(evidence, Part::Busy, case, "core_shared_with_softirq")
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{assert_told, first, losing, losing_listener, reader, told};
    use crate::explain::evidence::{CoreEvidence, LaneEvidence, Moment, SocketEvidence, Throttled};

    #[test]
    fn a_stopped_reader_is_continued() {
        let mut evidence = losing();
        reader(&mut evidence).is_stopped = true;
        assert_told(&evidence, "reader_stopped", 1000, "kill -CONT 812");
    }

    #[test]
    fn a_limit_of_a_container_is_named_with_what_lifts_it() {
        let (mut evidence, command) = (losing(), "echo max > /sys/fs/cgroup/x/cpu.max");
        let throttled = Throttled { share: 0.3, command: command.to_owned(), cores: Some(0.1) };
        reader(&mut evidence).throttled = Some(throttled);
        assert_told(&evidence, "container_throttled", 1000, command);
    }

    #[test]
    fn one_lane_that_gets_all_is_cured_by_spread_and_its_cost_is_said() {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets.push(SocketEvidence { address: "0.0.0.0:514".into(), ..SocketEvidence::default() });
        let idle = LaneEvidence { lane: 1, arrived: Some(0), dropped: Some(0), ..LaneEvidence::default() };
        evidence.listeners[0].lanes.push(idle);
        evidence.listeners[0].lanes[0].senders = Some(1);
        evidence.listeners[0].lanes[0].busiest = Some(([10, 0, 0, 9].into(), 1.0));
        assert_told(&evidence, "hot_sender", 1000, "listener.syslog.spread = \"random\"");
        let finding = first(&evidence);
        assert!(
            finding.cause.starts_with("lane 0 got 100 % of what arrived, from one sender (10.0.0.9)"),
            "{}",
            finding.cause
        );
        assert!(finding.arithmetic.contains("at random each lane gets 1,100/s"), "{}", finding.arithmetic);
        assert!(finding.also[0].contains("receive buffer was full"), "{finding:?}");
        evidence.listeners[0].spread = Some("random".into());
        assert_eq!(told(&evidence).0, "buffer_too_small", "it is spread already");
    }

    #[test]
    fn sockets_of_other_addresses_on_the_port_are_no_group() {
        let mut evidence = losing();
        evidence.ports[0].sockets.push(SocketEvidence { address: "[::]:514".into(), ..SocketEvidence::default() });
        assert_eq!(told(&evidence).0, "buffer_too_small");
        evidence.ports[0].sockets[1].address = "0.0.0.0:514".into();
        assert_eq!(told(&evidence).0, "hot_sender");
    }

    #[test]
    fn a_reader_with_a_whole_core_gets_more_lanes() {
        let mut evidence = losing_listener();
        reader(&mut evidence).ran = Some(0.99);
        evidence.cores.insert(0, CoreEvidence::default());
        assert!(told(&evidence).2.starts_with("every core has a lane"), "{:?}", told(&evidence));
        evidence.cores.extend((0..4).map(|core| (core, CoreEvidence::default())));
        assert_told(&evidence, "reader_at_its_limit", 1000, "listener.syslog.lanes = 2");
        evidence.listeners[0].arrived = Some(110_000);
        evidence.ports[0].sockets[0].dropped = 100_000;
        assert_told(&evidence, "reader_at_its_limit", 100_000, "listener.syslog.lanes = 4");
    }

    #[test]
    fn a_reader_that_sleeps_before_a_full_buffer_waits_for_something_else() {
        let mut evidence = losing();
        reader(&mut evidence).ran = Some(0.0);
        evidence.ports[0].sockets[0].full = 0.9;
        assert_told(&evidence, "reader_does_not_read", 1000, "cat /proc/812/task/*/wchan /proc/812/task/*/stack");
        reader(&mut evidence).ran = Some(0.4);
        assert_eq!(told(&evidence).0, "reader_does_not_read", "no buffer would do");
        evidence.ports[0].sockets[0].full = 0.6;
        assert_eq!(told(&evidence).0, "buffer_too_small");
    }

    #[test]
    fn a_reader_that_is_slow_for_a_part_of_the_watch_has_its_part_of_the_loss() {
        let mut evidence = losing();
        let slow = Moment { lost: 70, is_behind: true, ran: Some(0.01), call: Some("nanosleep"), ..Moment::default() };
        let burst = Moment { lost: 30, look: 20, receives: true, ran: Some(0.2), ..Moment::default() };
        evidence.ports[0].sockets[0].moments = vec![slow, burst];
        let told: Vec<_> = diagnose(&evidence).iter().map(|finding| (finding.case, finding.lost)).collect();
        assert_eq!(told, [("reader_does_not_read", 700), ("buffer_too_small", 300)]);
        assert!(first(&evidence).cause.contains("at 1 of 1 looks it was in the call nanosleep"));
        let noise = Moment { lost: 3, ..burst };
        evidence.ports[0].sockets[0].moments = vec![slow, noise];
        assert_eq!(diagnose(&evidence).len(), 1, "a small part is noise");
    }

    #[test]
    fn a_reader_that_only_root_may_see_is_no_reason_for_a_larger_buffer() {
        let mut evidence = losing();
        evidence.ports[0].reader = None;
        evidence.ports[0].sockets[0].full = 1.0;
        assert_told(&evidence, "reader_unknown", 1000, "sudo udpd explain --port 514");
        let mut evidence = losing();
        evidence.ports[0].sockets[0].full = 1.0;
        (reader(&mut evidence).ran, reader(&mut evidence).waited) = (None, None);
        assert_told(&evidence, "reader_unknown", 1000, "top -H -p 812");
    }

    #[test]
    fn of_a_reader_that_is_known_it_is_not_said_that_only_root_may_see_it() {
        let mut evidence = losing();
        reader(&mut evidence).ran = Some(0.99);
        assert!(first(&evidence).also.is_empty(), "{:?}", first(&evidence));
    }

    #[test]
    fn a_limit_of_another_process_that_has_the_socket_takes_no_loss_away() {
        let mut evidence = losing();
        let moment = Moment { lost: 9, is_throttled: true, ran: Some(0.1), receives: true, ..Moment::default() };
        evidence.ports[0].sockets[0].moments = vec![moment];
        assert_eq!((told(&evidence).0, told(&evidence).1), ("buffer_too_small", 1000));
    }

    #[test]
    fn a_reader_that_waits_for_its_core_is_put_before_the_others() {
        let mut evidence = losing();
        let reader = reader(&mut evidence);
        (reader.ran, reader.waited) = (Some(0.2), Some(0.6));
        assert_told(&evidence, "reader_starved", 1000, "chrt --all-tasks --rr --pid 10 812");
        assert!(
            first(&evidence)
                .arithmetic
                .contains("ran 20 % of the time in which they were lost and would have run 80 %")
        );
    }

    #[test]
    fn a_hypervisor_that_takes_the_core_is_named() {
        let mut evidence = losing();
        for core in [0, 1] {
            evidence.cores.insert(core, CoreEvidence { steal: Some(0.4), ..CoreEvidence::default() });
        }
        assert!(first(&evidence).cause.contains("the hypervisor took 40 %"));
    }

    #[test]
    fn a_reader_on_the_core_of_the_softirq_is_moved() {
        let mut evidence = losing();
        evidence.cores.insert(0, CoreEvidence { softirq: Some(0.6), ..CoreEvidence::default() });
        evidence.cores.insert(1, CoreEvidence { softirq: Some(0.0), ..CoreEvidence::default() });
        let reader = reader(&mut evidence);
        (reader.cores, reader.ran) = (vec![0], Some(0.39));
        assert_told(&evidence, "core_shared_with_softirq", 1000, "taskset --all-tasks --cpu-list --pid 1 812");
    }
}

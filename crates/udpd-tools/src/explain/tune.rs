//! `udpd explain --tune`: what fits this host and a rate, as commands and keys to paste, each with its reason and the
//! value now and then. It changes nothing.
//!
//! The plan of a configuration is the plan that `udpd run` would make of it, so buffers, lanes and memory are computed
//! where they always are. Of the card only what its driver tells is advised.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::cases::card::hash_ports;
use super::evidence::{Evidence, InterfaceEvidence};
use super::finding::{push_below, quote};
use super::sysctl_dropin::{of_lanes, percent, time};
use udpd_base::text::tables::grouped;
use udpd_engine::plan::PipelinePlan;

/// What one receiver takes of short datagrams at 60 % of a core on the machine of docs/tuning.md.
const LANE_RATE: u64 = 300_000;

/// What is assumed where no rate is named and little came.
const RATE_MIN: u64 = 10_000;

/// From this rate on datagrams come often enough to gather.
const GATHERS: u64 = 50_000;

/// How long a receive ring and a backlog should hold what comes before a core looks at it.
const RING_SECONDS: f64 = 0.01;
const BACKLOG_SECONDS: f64 = 0.02;

/// What a card may wait, where its ring holds ten times as much.
const COALESCE_MICROSECONDS: u64 = 50;

/// What is to be tuned for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    pub rate: u64,
    pub address: SocketAddr,
    pub payload_bytes: u64,
}

/// One line to paste.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Advice {
    line: String,
    why: String,
}

impl Goal {
    /// The rate that was named, or twice what came while it was watched.
    pub(super) fn new(rate: Option<u64>, address: Option<SocketAddr>, evidence: &Evidence) -> Self {
        let address = address.or_else(|| {
            let port = evidence.asked_port.or_else(|| evidence.listeners.first()?.ports.first().copied());
            port.map(|port| ([0, 0, 0, 0], port).into())
        });
        let address = address.unwrap_or_else(|| ([0, 0, 0, 0], 514).into());
        let seen = evidence.stack.received.unwrap_or(0) as f64 / evidence.seconds.max(0.001);
        let rate = rate.unwrap_or((2.0 * seen) as u64).max(if rate.is_some() { 1 } else { RATE_MIN });
        let payload = evidence.payload_bytes(address.port()).filter(|_| seen >= 1.0);
        Self { rate, address, payload_bytes: payload.unwrap_or(512).clamp(1, 9000) }
    }

    fn lanes(&self, cores: usize) -> u64 {
        self.rate.div_ceil(LANE_RATE).clamp(1, cores.max(1) as u64)
    }

    /// The listener that fits, as TOML.
    pub(super) fn toml(&self, cores: usize, interface: Option<&InterfaceEvidence>) -> String {
        let Self { rate, address, payload_bytes } = self;
        let mut text = format!(
            "[[listener]]\nname = \"tuned\"\naddress = \"{address}\"\nlanes = {}\nabsorb = {{ rate = {rate}, stall = \
             \"250ms\", size = \"{payload_bytes}B\" }}\n",
            self.lanes(cores)
        );
        if *rate >= GATHERS {
            text += "gather = \"1ms\"\n";
        }
        text += "sinks = [\"out\"]\n\n";
        if let Some(interface) = interface.filter(|it| it.queue_cores.len() > 1 || it.ring.is_some()) {
            let _ = writeln!(text, "[steer]\ninterfaces = [\"{}\"]", interface.name);
            if interface.ring.is_some() {
                text += "ring = \"max\"\n";
            }
            text += "\n";
        }
        text + "[sink.out]\ntype = \"null\"\n"
    }
}

/// The card on which most packets came.
pub(super) fn card(evidence: &Evidence) -> Option<&InterfaceEvidence> {
    let own = evidence.interfaces.iter().filter(|interface| !interface.driver.is_empty());
    own.max_by_key(|interface| interface.packets)
}

pub(super) fn render(evidence: &Evidence, goal: &Goal, cores: usize, plan: &PipelinePlan) -> String {
    let card = card(evidence);
    let mut text = format!(
        "For {} datagrams of about {} bytes a second to {}, on {cores} cores{}. Nothing was changed.\n",
        grouped(goal.rate),
        grouped(goal.payload_bytes),
        goal.address,
        card.map_or_else(|| ", no card".to_owned(), |card| format!(" and the card {}", card.name)),
    );
    if goal.rate > LANE_RATE * cores as u64 {
        let words = format!(
            "NOTE: one receiver takes about {}/s at 60 % of a core, so {cores} cores are few for this rate: measure it \
             with `udpd bench max`.",
            grouped(LANE_RATE)
        );
        push_below(&mut text, "", "", &words);
    }
    let (advice, right) = of_host(evidence, goal, plan);
    text += "\n# Commands, for a root shell. Sysctls for good: a file in /etc/sysctl.d; the card: [steer], below.\n";
    if advice.is_empty() {
        text += "# none is needed\n";
    }
    for Advice { line, why } in &advice {
        push_below(&mut text, "# ", "# ", why);
        let _ = writeln!(text, "{line}");
    }
    text += "\n# Keys, for udpd.toml; \"out\" stands for the name of your sink.\n";
    for why in of_keys(goal, cores, card, plan) {
        push_below(&mut text, "# ", "# ", &why);
    }
    text += &goal.toml(cores, card).replace("[sink.out]\ntype = \"null\"\n", "");
    text.truncate(text.trim_end().len());
    text += "\n\n# Right as it is\n";
    right.iter().for_each(|line| push_below(&mut text, "#  ", "#  ", line));
    text
}

/// What the sysctls and the card need, and what is right already.
fn of_host(evidence: &Evidence, goal: &Goal, plan: &PipelinePlan) -> (Vec<Advice>, Vec<String>) {
    let (mut advice, mut right) = (Vec::new(), Vec::new());
    let settings = &evidence.settings;
    let needed = of_lanes(evidence, &plan.lanes);
    for (name, value, why) in &needed {
        advice.push(Advice { line: format!("sysctl -w {name}={}", quote(value)), why: why.clone() });
    }
    let is_needed = |name: &str| needed.iter().any(|(needed, ..)| *needed == name);
    for (name, now) in [
        ("net.core.rmem_max", settings.rmem_max.map(grouped)),
        ("net.ipv4.udp_mem", settings.udp_mem_pages.map(|pages| pages.map(grouped).join(" "))),
    ] {
        match now {
            Some(now) if !is_needed(name) => right.push(format!("{name} = {now}")),
            Some(_) => {}
            None => right.push(format!("{name}: it cannot be read in this network namespace")),
        }
    }
    let needed = (goal.rate as f64 * BACKLOG_SECONDS) as u64;
    match settings.backlog_max {
        Some(now) if now < needed && has_backlog(evidence) => advice.push(Advice {
            line: format!("sysctl -w net.core.netdev_max_backlog={}", needed.next_power_of_two()),
            why: format!(
                "Packets that may wait for a core: {} now; {} of this rate are {}. It counts for RPS and virtual \
                 interfaces alone.",
                grouped(now),
                time(BACKLOG_SECONDS),
                grouped(needed)
            ),
        }),
        Some(now) => right.push(format!("net.core.netdev_max_backlog = {}", grouped(now))),
        None => right.push("net.core.netdev_max_backlog: it cannot be read in this network namespace".to_owned()),
    }
    if let Some(card) = card(evidence) {
        of_card(evidence, card, goal, &mut advice, &mut right);
    }
    (advice, right)
}

/// Packets go through a backlog where a core handed some on, or an interface is virtual.
fn has_backlog(evidence: &Evidence) -> bool {
    evidence.interfaces.iter().any(|interface| interface.driver.is_empty() && interface.packets > Some(0))
}

fn of_card(
    evidence: &Evidence,
    card: &InterfaceEvidence,
    goal: &Goal,
    advice: &mut Vec<Advice>,
    right: &mut Vec<String>,
) {
    let name = quote(&card.name);
    let queues = card.queue_cores.len().max(1) as u64;
    let rate = (goal.rate / queues).max(1) as f64;
    if let Some((now, max)) = card.ring {
        let needed = ((rate * RING_SECONDS) as u64).next_power_of_two().min(u64::from(max));
        let holds = time(f64::from(now) / rate);
        if u64::from(now) < needed {
            advice.push(Advice {
                line: format!("ethtool -G {name} rx {needed}"),
                why: format!(
                    "The receive ring of {}: {} buffers a queue are {holds} at this rate, {} are {}; most drivers \
                     reset the link for it.",
                    card.name,
                    grouped(now.into()),
                    grouped(needed),
                    time(needed as f64 / rate)
                ),
            });
        } else {
            right.push(format!("the ring of {}: {} of {} buffers, {holds} at this rate", card.name, now, max));
        }
        let wait = COALESCE_MICROSECONDS;
        let is_held = f64::from(now.max(u32::try_from(needed).unwrap_or(now))) / rate > 10.0 * wait as f64 / 1e6;
        match card.coalescing {
            Some((now, false)) if u64::from(now) < wait && goal.rate >= GATHERS && is_held => advice.push(Advice {
                line: format!("ethtool -C {name} rx-usecs {wait}"),
                why: format!(
                    "How long the card waits before it interrupts: {now} us now; with {wait} us there are at most {} \
                     interrupts a second on a queue.",
                    grouped(1_000_000 / wait)
                ),
            }),
            Some((now, is_adaptive)) => {
                let words = if is_adaptive { " and adapts it" } else { "" };
                right.push(format!("coalescing of {}: it waits {now} us{words}", card.name));
            }
            None => right.push(format!("coalescing of {}: its driver has none to set", card.name)),
        }
    }
    let wanted = goal.lanes(evidence.cores.len());
    match card.queues_max {
        Some((max, kind)) if queues < wanted.min(u64::from(max)) => advice.push(Advice {
            line: format!("ethtool -L {name} {kind} {}", wanted.min(u64::from(max))),
            why: format!("Receive queues of {}: {queues} now, and one for each lane fits.", card.name),
        }),
        _ => right.push(format!("receive queues of {}: {queues}", card.name)),
    }
    if card.hashes_addresses_only == Some(true) && queues > 1 {
        advice.push(Advice {
            line: hash_ports(card),
            why: "The card spreads UDP by addresses alone: with the ports one host's flows use all queues.".to_owned(),
        });
    }
}

/// Why the keys are as they are.
fn of_keys(goal: &Goal, cores: usize, card: Option<&InterfaceEvidence>, plan: &PipelinePlan) -> Vec<String> {
    let lanes = goal.lanes(cores);
    let mut words = vec![format!(
        "lanes = {lanes}: a receiver takes about {}/s at 60 % of a core on the machine of docs/tuning.md.",
        grouped(LANE_RATE)
    )];
    if let Some(lane) = plan.lanes.first() {
        words.push(format!(
            "absorb: a stall of 250 ms at this rate; the socket of a lane gets {} bytes for it, of which the kernel \
             accounts twice as many.",
            grouped(lane.receive_buffer_bytes as u64)
        ));
    }
    if goal.rate >= GATHERS {
        words.push("gather = \"1ms\": fewer wake-ups, for up to a millisecond of latency.".to_owned());
    }
    if let Some(card) = card.filter(|card| card.queue_cores.len() > 1 || card.ring.is_some()) {
        words.push(format!(
            "[steer]: `udpd steer plan` shows which core gets which queue of {}, `udpd steer apply` does it.",
            card.name
        ));
    }
    words
}

/// What is measured now, to be compared after the changes.
pub(super) fn measured(evidence: &Evidence, lost: u64) -> String {
    let per_second = |count: u64| grouped((count as f64 / evidence.seconds.max(0.001)) as u64);
    let busiest = evidence.cores.values().filter_map(|core| core.softirq).fold(0.0, f64::max);
    format!(
        "\nMeasured for {:.1} s: UDP took {}/s, {} were lost, the busiest core spent {} in the softirq. Run it again \
         after the changes and compare.\n",
        evidence.seconds,
        per_second(evidence.stack.received.unwrap_or(0)),
        grouped(lost),
        percent(busiest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::cases::testing::missing;

    fn goal(rate: u64) -> Goal {
        Goal { rate, address: ([0, 0, 0, 0], 514).into(), payload_bytes: 200 }
    }

    #[test]
    fn a_ring_that_holds_less_than_ten_milliseconds_becomes_as_long_as_the_driver_allows() {
        let evidence = missing(0, Some((512, 4096)));
        let (mut advice, mut right) = (Vec::new(), Vec::new());
        of_card(&evidence, &evidence.interfaces[0], &goal(1_000_000), &mut advice, &mut right);
        assert_eq!(advice[0].line, "ethtool -G eth0 rx 4096");
        assert!(advice[0].why.contains("512 buffers a queue are 1.0 ms"), "{advice:?}");
        let (mut advice, mut right) = (Vec::new(), Vec::new());
        of_card(&evidence, &evidence.interfaces[0], &goal(10_000), &mut advice, &mut right);
        assert!(advice.is_empty() && right[0].starts_with("the ring of eth0: 512 of 4096"), "{advice:?} {right:?}");
    }

    #[test]
    fn the_commands_for_a_card_are_those_of_its_driver() {
        let mut evidence = missing(0, Some((4096, 4096)));
        let card = &mut evidence.interfaces[0];
        (card.driver, card.queues_max, card.hashes_addresses_only) = ("virtio_net".into(), Some((8, "rx")), Some(true));
        card.coalescing = Some((0, false));
        evidence.cores.extend((0..4).map(|core| (core, Default::default())));
        let (mut advice, mut right) = (Vec::new(), Vec::new());
        of_card(&evidence, &evidence.interfaces[0], &goal(1_200_000), &mut advice, &mut right);
        let lines: Vec<_> = advice.iter().map(|it| it.line.as_str()).collect();
        let hash = "ethtool -K eth0 rxhash on; ethtool -N eth0 rx-flow-hash udp4 sdfn";
        assert_eq!(lines, ["ethtool -C eth0 rx-usecs 50", "ethtool -L eth0 rx 4", hash]);
    }

    #[test]
    fn the_rate_that_is_not_named_is_twice_what_came_and_the_listener_is_one_that_udpd_takes() {
        let mut evidence = missing(0, Some((512, 4096)));
        evidence.stack.received = Some(1_000_000);
        evidence.asked_port = Some(2055);
        let goal = Goal::new(None, None, &evidence);
        assert_eq!((goal.rate, goal.address.port()), (400_000, 2055));
        let toml = goal.toml(8, None);
        assert!(toml.contains("lanes = 2\n") && toml.contains("gather = \"1ms\""), "{toml}");
        let host = udpd_engine::config::HostView::default();
        udpd_engine::config::Config::parse(&toml, "tuned", &host).unwrap_or_else(|problems| panic!("{problems}"));
    }
}

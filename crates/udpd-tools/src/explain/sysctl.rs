//! `--sysctl`: a drop-in for /etc/sysctl.d with values computed for this host, each with the sum that it comes from.
//!
//! The sums take what was measured where something came, and what the configuration says (`absorb`) where it was read.
//! A value is never below the present one: somebody may have had a reason.

use std::fmt::Write as _;

use super::evidence::Evidence;
use super::show::push_below;
use super::sums::{Buffer, STALL_SECONDS, megabytes, time};
use udpd_base::text::tables::grouped;
use udpd_engine::config::Config;
use udpd_engine::plan::LanePlan;

/// How long packets may wait in a core's backlog before it looks at them.
const BACKLOG_SECONDS: f64 = 0.02;

/// What the sockets of a plan, or those that are there, ask for.
#[derive(Debug, Clone, Default, PartialEq)]
struct Wish {
    /// The largest value for SO_RCVBUF, and where it comes from.
    largest: u64,
    why: String,
    /// All receive buffers together, as the kernel accounts.
    together: u64,
}

/// The text of the file. `lanes` are those of the configuration, where one was read.
pub fn render(evidence: &Evidence, config: Option<&Config>, lanes: &[LanePlan]) -> String {
    let wish = if config.is_some() { of_lanes(lanes) } else { of_sockets(evidence) };
    let settings = &evidence.settings;
    let mut text = String::from(
        "# For /etc/sysctl.d/90-udpd.conf, computed by `udpd explain --sysctl` for this host. Apply: sysctl --system\n",
    );
    if let Some(now) = settings.rmem_max {
        let words = format!(
            "The largest receive buffer for programs without CAP_NET_ADMIN; it is {} now. {}",
            grouped(now),
            wish.why
        );
        push_setting(&mut text, &words, "net.core.rmem_max", &wish.largest.max(now).to_string());
    }
    if let Some(now) = settings.udp_mem_pages {
        push_memory(&mut text, evidence, &wish, now);
    }
    push_backlog(&mut text, evidence);
    text
}

/// A setting below the words for it.
fn push_setting(text: &mut String, words: &str, name: &str, value: &str) {
    text.push('\n');
    push_below(text, "# ", "# ", words);
    let _ = writeln!(text, "{name} = {value}");
}

fn push_memory(text: &mut String, evidence: &Evidence, wish: &Wish, [low, pressure, max]: [u64; 3]) {
    let page = evidence.settings.page_bytes.max(1);
    let needed = wish.together.div_ceil(page).saturating_mul(5) / 4;
    let mut words = format!(
        "What all UDP sockets of the host may have together, in pages of {page} bytes; it is {low} {pressure} {max} \
         now. The receive buffers take up to {}, which is {} pages.",
        megabytes(wish.together),
        grouped(wish.together.div_ceil(page))
    );
    let mut value = format!("{low} {pressure} {max}");
    if needed > max {
        value = format!("{} {} {needed}", low.max(needed / 2), pressure.max(needed / 4 * 3));
        if let Some(memory) = evidence.settings.memory_bytes.filter(|memory| *memory > 0) {
            let percent = needed.saturating_mul(page) as f64 / memory as f64 * 100.0;
            words += &format!(" That is {percent:.0} % of this machine's memory, used only while nobody reads.");
        }
    }
    push_setting(text, &words, "net.ipv4.udp_mem", &value);
}

/// Only where packets are handed from one core to another.
fn push_backlog(text: &mut String, evidence: &Evidence) {
    let name = "net.core.netdev_max_backlog";
    let Some(now) = evidence.settings.backlog_max else {
        let _ = writeln!(text, "\n# {name} cannot be read here: run this in the first network namespace of the host.");
        return;
    };
    let rates = evidence.cores.values().filter_map(|core| {
        Some((core.processed? + core.backlog_dropped.unwrap_or(0)) as f64 / evidence.seconds.max(0.001))
    });
    let rate = rates.fold(0.0, f64::max);
    let dropped = evidence.backlog_dropped().unwrap_or(0);
    let needed = ((rate * BACKLOG_SECONDS) as u64).max(if dropped > 0 { now.saturating_mul(4) } else { 0 });
    let value = if needed > now { needed.min(1 << 30).next_power_of_two().min(i32::MAX as u64).max(now) } else { now };
    let words = format!(
        "Packets that may wait for a core (RPS and virtual interfaces); it is {} now. The busiest core took {}/s, of \
         which {} are {}; {} were dropped.",
        grouped(now),
        grouped(rate as u64),
        grouped((rate * BACKLOG_SECONDS) as u64),
        time(BACKLOG_SECONDS),
        grouped(dropped)
    );
    push_setting(text, &words, name, &value.to_string());
}

fn of_lanes(lanes: &[LanePlan]) -> Wish {
    let largest = lanes.iter().max_by_key(|lane| lane.receive_buffer_bytes);
    let why = largest.map_or("The configuration has no lane.".to_owned(), |lane| {
        format!(
            "The configuration asks for {} for the socket of a lane: {} of datagrams of {} bytes at {}/s.",
            grouped(lane.receive_buffer_bytes as u64),
            time(lane.covered(2 * lane.receive_buffer_bytes).as_secs_f64()),
            lane.payload_bytes,
            grouped(lane.rate)
        )
    });
    let together = lanes.iter().map(|lane| 2 * lane.receive_buffer_bytes as u64).sum();
    Wish { largest: largest.map_or(0, |lane| lane.receive_buffer_bytes as u64), why, together }
}

fn of_sockets(evidence: &Evidence) -> Wish {
    let mut wish = Wish { why: "No socket here needs more.".to_owned(), ..Wish::default() };
    for port in &evidence.ports {
        for socket in &port.sockets {
            let rate = evidence.rate(port) / port.beside(socket).count().max(1) as f64;
            let Some(bytes) = socket.buffer_bytes else { continue };
            let buffer = Buffer { bytes, payload_bytes: evidence.payload_bytes(port.port), rate };
            let needed = buffer.needed(STALL_SECONDS, socket.dropped_at_once);
            wish.together += needed;
            if needed > bytes && needed / 2 > wish.largest {
                wish.largest = needed / 2;
                wish.why = format!("Port {}: {}.", port.port, buffer.words(STALL_SECONDS, socket.dropped_at_once));
            }
        }
    }
    wish
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::cases::testing::losing;
    use crate::explain::evidence::Core;

    fn value(text: &str, name: &str) -> String {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).to_owned()
    }

    #[test]
    fn each_value_comes_from_a_sum_and_is_never_below_the_present_one() {
        let mut evidence = losing();
        evidence.settings.rmem_max = Some(212_992);
        evidence.settings.backlog_max = Some(1000);
        evidence.ports[0].sockets[0].dropped_at_once = 10_000;
        let text = render(&evidence, None, &[]);
        assert!(value(&text, "net.core.rmem_max").parse::<u64>().expect("a number") > 10_000_000, "{text}");
        assert!(text.contains("300,000 bytes"), "{text}");
        assert_eq!(value(&text, "net.ipv4.udp_mem"), "100000 150000 200000");
        assert_eq!(value(&text, "net.core.netdev_max_backlog"), "1000");
        for line in text.lines() {
            assert!(line.is_empty() || line.starts_with('#') || line.contains(" = "), "{line}");
        }
    }

    #[test]
    fn udp_mem_covers_the_sum_of_all_buffers_and_a_backlog_that_dropped_is_longer() {
        let mut evidence = losing();
        evidence.settings.udp_mem_pages = Some([1, 2, 3]);
        evidence.settings.backlog_max = Some(1000);
        evidence.cores.insert(0, Core { processed: Some(10), backlog_dropped: Some(5), ..Core::default() });
        let text = render(&evidence, None, &[]);
        let max: u64 = value(&text, "net.ipv4.udp_mem").split(' ').nth(2).expect("three").parse().expect("a number");
        assert!(max * 4096 >= 300_000, "{text}");
        assert_eq!(value(&text, "net.core.netdev_max_backlog"), "4096");
    }

    #[test]
    fn what_cannot_be_read_is_said_and_not_set() {
        let text = render(&Evidence::default(), None, &[]);
        assert!(text.contains("cannot be read here") && !text.contains(" = "), "{text}");
    }
}

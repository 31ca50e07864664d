//! The arithmetic behind a cure, and `--sysctl`: a drop-in for /etc/sysctl.d with values computed for this host, each
//! with its arithmetic.
//!
//! The kernel charges a socket for a datagram what it allocated for it, and not its payload: 832 bytes for a syslog
//! line of 60. So a buffer holds far fewer than its size suggests, and every sum here starts from that charge.
//!
//! The values follow from what was measured where something arrived, and from the configuration (`absorb`) where it was
//! read. A value is never below the present one: the operator may have had a reason for it.

use std::fmt::Write as _;

use super::evidence::Evidence;
use super::finding::push_below;
use udpd_base::text::tables::grouped;
use udpd_engine::config::Config;
use udpd_engine::plan::{LanePlan, charge_bytes};

/// The payload that is assumed where it is not known.
const PAYLOAD_GUESS_BYTES: u64 = 512;

/// The stall that a buffer should survive where the operator has not said which.
pub(super) const STALL_SECONDS: f64 = 0.1;

/// The highest advice for one socket: beyond it kernels had overflows.
const BUFFER_MAX_BYTES: u64 = 1 << 30;

/// A receive buffer as the kernel accounts it, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Buffer {
    pub bytes: u64,
    pub payload_bytes: Option<u64>,
    pub rate: f64,
}

impl Buffer {
    fn charge(&self) -> u64 {
        charge_bytes(usize::try_from(self.payload_bytes.unwrap_or(PAYLOAD_GUESS_BYTES)).unwrap_or(usize::MAX))
    }

    /// How many datagrams fit. The kernel always accepts one.
    pub(super) fn holds(&self) -> u64 {
        (self.bytes / self.charge()).max(1)
    }

    /// What the kernel must account for so many datagrams. A quarter more than fits exactly: it may hold that much back
    /// while a reader works.
    fn needed_for(&self, datagrams: u64) -> u64 {
        (datagrams.saturating_mul(self.charge()) / 3).saturating_mul(4).min(BUFFER_MAX_BYTES).next_multiple_of(1 << 16)
    }

    /// The buffer that would have held what came: a stall at this rate, and twice the most that was lost at once.
    pub(super) fn needed(&self, stall_seconds: f64, lost_at_once: u64) -> u64 {
        let in_stall = (self.rate * stall_seconds).ceil() as u64;
        let seen = if lost_at_once > 0 { self.holds().saturating_add(lost_at_once.saturating_mul(2)) } else { 0 };
        let datagrams = in_stall.max(seen);
        self.needed_for(datagrams).max(self.bytes)
    }

    pub(super) fn words(&self, stall_seconds: f64, lost_at_once: u64) -> String {
        let size = match self.payload_bytes {
            Some(bytes) => format!("of about {} bytes", grouped(bytes)),
            None => format!("of {PAYLOAD_GUESS_BYTES} bytes, if they are that long"),
        };
        let (holds, charge) = (self.holds(), self.charge());
        let mut text = format!(
            "{} bytes hold {} datagrams {size}, for each of which the kernel charges {} bytes",
            grouped(self.bytes),
            grouped(holds),
            grouped(charge)
        );
        if self.rate >= 1.0 {
            text += &format!("; at {}/s that is {}", grouped(self.rate as u64), time(holds as f64 / self.rate));
        }
        let at_once = if lost_at_once > 0 {
            format!(" (up to {} more came than fit, within a tenth of a second)", grouped(lost_at_once))
        } else {
            String::new()
        };
        let needed = self.needed(stall_seconds, lost_at_once);
        text + &format!("; a stall of {} needs {}{at_once}", time(stall_seconds), megabytes(needed))
    }
}

/// Bytes, rounded for people.
pub(super) fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} bytes", grouped(bytes)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// A time in the unit that fits.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        short if short < 0.001 => format!("{:.0} us", short * 1e6),
        short if short < 0.01 => format!("{:.1} ms", short * 1e3),
        short if short < 1.0 => format!("{:.0} ms", short * 1e3),
        long => format!("{long:.1} s"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// How long packets may wait in a core's backlog before it looks at them.
const BACKLOG_SECONDS: f64 = 0.02;

/// The receive buffers that the sockets of a plan, or the present ones, need.
#[derive(Debug, Clone, Default, PartialEq)]
struct BufferDemand {
    /// The largest value for SO_RCVBUF, and where it comes from.
    largest: u64,
    why: String,
    /// All receive buffers together, as the kernel accounts.
    together: u64,
}

pub(super) fn render(evidence: &Evidence, config: Option<&Config>, lanes: &[LanePlan]) -> String {
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

/// A setting below its comment.
fn push_setting(text: &mut String, words: &str, name: &str, value: &str) {
    text.push('\n');
    push_below(text, "# ", "# ", words);
    let _ = writeln!(text, "{name} = {value}");
}

fn push_memory(text: &mut String, evidence: &Evidence, wish: &BufferDemand, [low, pressure, max]: [u64; 3]) {
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
            words += &format!(" That is {percent:.0} % of this machine's memory, used only while nothing is read.");
        }
    }
    push_setting(text, &words, "net.ipv4.udp_mem", &value);
}

/// For packets that are handed from one core to another.
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

fn of_lanes(lanes: &[LanePlan]) -> BufferDemand {
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
    BufferDemand { largest: largest.map_or(0, |lane| lane.receive_buffer_bytes as u64), why, together }
}

fn of_sockets(evidence: &Evidence) -> BufferDemand {
    let mut wish = BufferDemand { why: "No socket here needs more.".to_owned(), ..BufferDemand::default() };
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
    use crate::explain::evidence::CoreEvidence;

    #[test]
    fn the_default_buffer_holds_256_short_datagrams_and_a_stall_of_100_ms_at_40_000_needs_4_4_mb() {
        let buffer = Buffer { bytes: 212_992, payload_bytes: Some(60), rate: 40_000.0 };
        assert_eq!(buffer.holds(), 256);
        let words = buffer.words(0.1, 0);
        for part in ["212,992 bytes hold 256 datagrams of about 60 bytes", "at 40,000/s that is 6.4 ms", "4.5 MB"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn a_burst_that_was_seen_counts_more_than_a_low_rate() {
        let buffer = Buffer { bytes: 8320, payload_bytes: Some(60), rate: 10.0 };
        assert_eq!(buffer.holds(), 10);
        let needed = buffer.needed(0.1, 1000);
        assert!(needed / 4 * 3 >= 2010 * 832, "{needed}");
        assert!(needed < 3_000_000, "{needed}");
    }

    #[test]
    fn nothing_is_ever_advised_that_is_smaller_or_beyond_what_kernels_can_add() {
        let buffer = Buffer { bytes: 1 << 20, payload_bytes: None, rate: 0.0 };
        assert_eq!(buffer.needed(0.1, 0), 1 << 20);
        assert_eq!(Buffer { rate: 1e12, ..buffer }.needed(10.0, 0), 1 << 30);
    }

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
        evidence
            .cores
            .insert(0, CoreEvidence { processed: Some(10), backlog_dropped: Some(5), ..CoreEvidence::default() });
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

//! The arithmetic behind a cure, and `--sysctl`: a drop-in for /etc/sysctl.d with values computed for this host, each
//! with its arithmetic.
//!
//! The kernel charges a socket for a datagram what it allocated for it, and not its payload: 832 bytes for a syslog
//! line of 60. So a buffer holds far fewer than its size suggests, and every sum here starts from that charge.
//!
//! Values come from what was lost here and from the configuration (`absorb`) where it was read. None is below the
//! present one: the operator may have had a reason for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::evidence::Evidence;
use super::finding::{Cure, Finding, push_below};
use udpd_base::text::tables::grouped;
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

/// The receive buffers of a plan: the largest value for SO_RCVBUF, and all of them together as the kernel accounts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct BufferDemand {
    largest: u64,
    together: u64,
}

/// What cures something that was lost here, or was computed for udpd itself, and nothing else: a sysctl concerns every
/// program of the host.
pub(super) fn render(evidence: &Evidence, findings: &[Finding], lanes: Option<&[LanePlan]>) -> String {
    let mut text = String::from(
        "# For /etc/sysctl.d/90-udpd.conf, computed by `udpd explain --sysctl` for this host. Apply: sysctl --system\n",
    );
    let mut settings: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (name, value, words) in lanes.into_iter().flat_map(|lanes| of_lanes(evidence, lanes)) {
        settings.insert(name.to_owned(), (value, words));
    }
    for finding in findings.iter().filter(|finding| finding.lost > 0) {
        // Of several cures the first one is to be tried first, and a sysctl behind another cure concerns more programs.
        let Some(Cure::Sysctl { name, value, note }) = finding.cures.first() else { continue };
        let Finding { lost, unit, subject, cause, .. } = finding;
        let words = format!("{} {unit} were lost ({subject}): {cause}. {note}", grouped(*lost));
        let is_larger = |(known, _): &(String, String)| last_number(value) > last_number(known);
        if settings.get(name).is_none_or(is_larger) {
            settings.insert(name.clone(), (value.clone(), words));
        }
    }
    if settings.is_empty() {
        text += match lanes {
            Some(_) => {
                "\n# The present values are enough for the configuration, and no sysctl cures what was lost here.\n"
            }
            None => "\n# Nothing was lost here that a sysctl cures. Watch at a busy time, or name a file with -c.\n",
        };
    }
    for (name, (value, words)) in &settings {
        push_setting(&mut text, words, name, value);
    }
    text
}

fn last_number(value: &str) -> u64 {
    value.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A setting below its comment.
fn push_setting(text: &mut String, words: &str, name: &str, value: &str) {
    text.push('\n');
    push_below(text, "# ", "# ", words);
    let _ = writeln!(text, "{name} = {value}");
}

/// What a plan needs beyond the present values: name, value, and the sum that it comes from.
pub(super) fn of_lanes(evidence: &Evidence, lanes: &[LanePlan]) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    let settings = &evidence.settings;
    let largest = lanes.iter().max_by_key(|lane| lane.receive_buffer_bytes);
    let demand = BufferDemand {
        largest: largest.map_or(0, |lane| lane.receive_buffer_bytes as u64),
        together: lanes.iter().map(|lane| 2 * lane.receive_buffer_bytes as u64).sum(),
    };
    if let Some((now, lane)) = settings.rmem_max.zip(largest).filter(|(now, _)| demand.largest > *now) {
        let words = format!(
            "The largest receive buffer for programs without CAP_NET_ADMIN; it is {} now. The configuration asks for \
             {} for the socket of a lane: {} of datagrams of {} bytes at {}/s.",
            grouped(now),
            grouped(demand.largest),
            time(lane.covered(2 * lane.receive_buffer_bytes).as_secs_f64()),
            lane.payload_bytes,
            grouped(lane.rate)
        );
        found.push(("net.core.rmem_max", demand.largest.to_string(), words));
    }
    let page = settings.page_bytes.max(1);
    let needed = demand.together.div_ceil(page).saturating_mul(5) / 4;
    if let Some([low, pressure, max]) = settings.udp_mem_pages.filter(|pages| needed > pages[2]) {
        let share = settings.memory_bytes.filter(|memory| *memory > 0).map_or(String::new(), |memory| {
            let share = percent(needed.saturating_mul(page) as f64 / memory as f64);
            format!(" That is {share} of this machine's memory, used only while nothing is read.")
        });
        let words = format!(
            "What all UDP sockets of the host may have together, in pages of {page} bytes; it is {low} {pressure} \
             {max} now. The receive buffers take up to {}, which is {} pages.{share}",
            megabytes(demand.together),
            grouped(demand.together.div_ceil(page))
        );
        let value = format!("{} {} {needed}", low.max(needed / 2), pressure.max(needed / 4 * 3));
        found.push(("net.ipv4.udp_mem", value, words));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::losing;

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

    fn value(text: &str, name: &str) -> Option<String> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.map(str::to_owned)
    }

    fn rendered(evidence: &Evidence) -> String {
        render(evidence, &diagnose(evidence), None)
    }

    #[test]
    fn rmem_max_is_never_raised_for_a_program_that_asks_for_no_buffer() {
        let mut evidence = losing();
        evidence.ports[0].sockets[0].buffer_bytes = evidence.settings.rmem_default;
        evidence.settings.rmem_max = Some(212_992);
        evidence.ports[0].sockets[0].dropped_at_once = 10_000;
        let text = rendered(&evidence);
        assert_eq!(value(&text, "net.core.rmem_max"), None, "{text}");
        assert!(text.contains("Nothing was lost here that a sysctl cures"), "{text}");
        evidence.ports[0].sockets[0].buffer_bytes = Some(2 * 212_992);
        evidence.settings.rmem_default = Some(100_000);
        let text = rendered(&evidence);
        assert!(
            value(&text, "net.core.rmem_max").expect("it asked for more").parse::<u64>().expect("a number") > 212_992
        );
    }

    #[test]
    fn what_was_lost_for_want_of_a_sysctl_is_set_with_what_was_lost() {
        let mut evidence = losing();
        evidence.settings.udp_pages_max = Some(199_990);
        let text = rendered(&evidence);
        assert_eq!(value(&text, "net.ipv4.udp_mem").as_deref(), Some("200000 300000 400000"), "{text}");
        assert!(text.contains("# 1,000 datagrams were lost (port 514"), "{text}");
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#') || line.contains(" = ")), "{text}");
    }
}

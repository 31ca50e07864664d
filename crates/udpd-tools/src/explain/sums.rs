//! The arithmetic behind a cure: how many datagrams fit into a buffer, for how long, and what a longer stall takes.
//!
//! The kernel charges a socket for a datagram what it allocated for it, and not its payload: 832 bytes for a syslog
//! line of 60. So a buffer holds far fewer than its size suggests, and every sum here starts from that charge.

use udpd_base::text::tables::grouped;
use udpd_engine::plan::charge_bytes;

/// What is taken for the payload where nobody tells.
const PAYLOAD_GUESS_BYTES: u64 = 512;

/// The stall that a buffer should survive where the operator has not said which.
pub const STALL_SECONDS: f64 = 0.1;

/// The most that is asked for one socket: beyond it kernels have had their sums wrong.
const BUFFER_MAX_BYTES: u64 = 1 << 30;

/// A receive buffer as the kernel accounts it, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buffer {
    pub bytes: u64,
    pub payload_bytes: Option<u64>,
    pub rate: f64,
}

impl Buffer {
    fn charge(&self) -> u64 {
        charge_bytes(usize::try_from(self.payload_bytes.unwrap_or(PAYLOAD_GUESS_BYTES)).unwrap_or(usize::MAX))
    }

    /// How many datagrams fit. One is always let in.
    pub fn holds(&self) -> u64 {
        (self.bytes / self.charge()).max(1)
    }

    /// What the kernel must account for so many datagrams. A quarter more than fits exactly: it may hold that much back
    /// while a reader works.
    fn needed_for(&self, datagrams: u64) -> u64 {
        (datagrams.saturating_mul(self.charge()) / 3).saturating_mul(4).min(BUFFER_MAX_BYTES).next_multiple_of(1 << 16)
    }

    /// The buffer that would have held what came: a stall at this rate, and twice the most that was lost at once.
    pub fn needed(&self, stall_seconds: f64, lost_at_once: u64) -> u64 {
        let in_stall = (self.rate * stall_seconds).ceil() as u64;
        let seen = if lost_at_once > 0 { self.holds().saturating_add(lost_at_once.saturating_mul(2)) } else { 0 };
        let datagrams = in_stall.max(seen);
        self.needed_for(datagrams).max(self.bytes)
    }

    /// The sum in words.
    pub fn words(&self, stall_seconds: f64, lost_at_once: u64) -> String {
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

/// Bytes as people say them.
pub fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} bytes", grouped(bytes)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// A time as short as it is meant.
pub fn time(seconds: f64) -> String {
    match seconds {
        short if short < 0.001 => format!("{:.0} us", short * 1e6),
        short if short < 0.01 => format!("{:.1} ms", short * 1e3),
        short if short < 1.0 => format!("{:.0} ms", short * 1e3),
        long => format!("{long:.1} s"),
    }
}

/// A part of a whole.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

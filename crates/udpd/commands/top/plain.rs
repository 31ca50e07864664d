//! The same picture as plain text, a report an interval, for whoever reads a pipe or a log.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use super::draw;
use super::live::Ask;
use super::model::Model;
use crate::exit::Failure;
use crate::os::console;

/// What a report is made for: as wide as the columns of the smaller picture.
const WIDTH: usize = 80;

/// One report of one interval.
pub(super) fn once(mut ask: Ask, interval: Duration, out: &mut dyn Write) -> Result<(), Failure> {
    let mut model = Model::default();
    model.read(ask()?, Instant::now());
    thread::sleep(interval);
    model.read(ask()?, Instant::now());
    console::print(out, &draw::report(&model, WIDTH))
}

/// A report an interval, until nobody reads any more or somebody ends it. A daemon that is not there is waited for.
pub(super) fn follow(mut ask: Ask, interval: Duration, out: &mut dyn Write) -> Result<(), Failure> {
    let mut model = Model::default();
    let mut is_silent = false;
    loop {
        let text = match ask() {
            Ok(snapshot) => {
                let is_first = model.is_empty();
                model.read(snapshot, Instant::now());
                is_silent = false;
                // One reading has no rates yet.
                if is_first { String::new() } else { draw::report(&model, WIDTH) + "\n" }
            }
            Err(_) if is_silent => String::new(),
            Err(failure) => {
                is_silent = true;
                model.miss();
                format!("no answer, waiting for a daemon: {}\n\n", failure.message)
            }
        };
        if !print(out, &text)? {
            return Ok(());
        }
        thread::sleep(interval);
    }
}

/// Whether somebody still reads.
fn print(out: &mut dyn Write, text: &str) -> Result<bool, Failure> {
    let mut counting = Counting { out, is_closed: false };
    console::print(&mut counting, text)?;
    Ok(!counting.is_closed)
}

/// Notes that the reader has gone, which `console::print` takes for the end.
struct Counting<'a> {
    out: &'a mut dyn Write,
    is_closed: bool,
}

impl Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let outcome = self.out.write(bytes);
        self.is_closed |= outcome.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        outcome
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let outcome = self.out.flush();
        self.is_closed |= outcome.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;
    use crate::ledger::tests::example;

    /// A daemon that answers these uptimes, and nothing at 0.
    fn daemon(uptimes: &'static [u64]) -> Ask {
        let mut uptimes = uptimes.iter();
        Box::new(move || {
            let &uptime = uptimes.next().expect("asked more often than it answers");
            if uptime == 0 {
                return Err(Failure::new(ExitCode::Unavailable, "no udpd is running".to_owned()));
            }
            let mut snapshot = example();
            snapshot.uptime_seconds = uptime as f64;
            snapshot.listeners[0].lanes[0].counts.received += 1_000 * uptime;
            Ok(snapshot)
        })
    }

    /// Closes the pipe after so many reports.
    struct Reader {
        text: String,
        reports: usize,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.text.push_str(std::str::from_utf8(bytes).expect("text"));
            self.reports -= 1;
            if self.reports == 0 { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_report_has_the_rates_of_one_interval_and_no_code_of_a_terminal() {
        let mut out = Vec::new();
        once(daemon(&[10, 12]), Duration::ZERO, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().any(|line| line.contains("1.00k") && line.contains("archive")), "{text}");
        assert!(!text.contains('\x1b') && text.is_ascii(), "{text}");
    }

    #[test]
    fn without_a_daemon_one_report_fails_and_many_wait_and_say_so_once() {
        let failure = once(daemon(&[0]), Duration::ZERO, &mut Vec::new()).unwrap_err();
        assert_eq!(failure.code, ExitCode::Unavailable);
        let mut reader = Reader { text: String::new(), reports: 3 };
        follow(daemon(&[0, 0, 10, 11, 0, 0, 3, 4, 5]), Duration::ZERO, &mut reader).unwrap();
        assert_eq!(reader.text.matches("no answer").count(), 2, "{}", reader.text);
        assert!(reader.text.contains("up 11 s"), "{}", reader.text);
    }
}

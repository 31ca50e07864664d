//! The same picture as plain text, a report an interval, for a pipe or a log.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::draw;
use super::live::Ask;
use super::model::Model;
use udpd_base::exit::Failure;
use udpd_base::os::console;

/// What a report is made for: as wide as the columns of the smaller picture.
const WIDTH: usize = 80;

pub(super) fn once(mut ask: Ask, interval: Duration, out: &mut dyn Write) -> Result<(), Failure> {
    let mut model = Model::default();
    let asked = Instant::now();
    model.read(ask()?, asked);
    thread::sleep(interval);
    let asked = Instant::now();
    model.read(ask()?, asked);
    console::print(out, &draw::report(&model, WIDTH))
}

/// A report an interval, until its reader goes or a signal ends it. It waits for a daemon that is not there.
pub(super) fn follow(mut ask: Ask, interval: Duration, out: &mut dyn Write) -> Result<(), Failure> {
    let mut model = Model::default();
    let mut is_silent = false;
    loop {
        let asked = Instant::now();
        let text = match ask() {
            Ok(snapshot) => {
                let (is_first, restarts) = (model.is_empty(), model.restarts);
                model.read(snapshot, asked);
                is_silent = false;
                // One reading has no rates yet.
                if is_first {
                    String::new()
                } else if model.restarts > restarts {
                    "the daemon was restarted: its counters began anew\n\n".to_owned()
                } else {
                    draw::report(&model, WIDTH) + "\n"
                }
            }
            Err(_) if is_silent => String::new(),
            Err(failure) => {
                is_silent = true;
                model.miss();
                format!("no answer, waiting for a daemon: {}\n\n", failure.message)
            }
        };
        // Without anything to write, only this notices that the reader has gone.
        if !print(out, &text)? || (text.is_empty() && is_unread(&io::stdout())) {
            return Ok(());
        }
        thread::sleep(interval);
    }
}

/// Whether this is a pipe whose reader has gone.
fn is_unread(pipe: &impl AsFd) -> bool {
    let mut places = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    let found = poll(&mut places, PollTimeout::ZERO);
    found.is_ok() && places[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLERR))
}

/// Prints; false when the reader has gone.
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
    use udpd_base::exit::ExitCode;
    use udpd_base::ledger::testing::example;

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
        assert!(text.lines().any(|line| line.contains("1.00k") && line.contains("relay")), "{text}");
        assert!(!text.contains('\x1b') && text.is_ascii(), "{text}");
    }

    #[test]
    fn without_a_daemon_one_report_fails_and_many_wait_and_say_so_once() {
        let failure = once(daemon(&[0]), Duration::ZERO, &mut Vec::new()).unwrap_err();
        assert_eq!(failure.code, ExitCode::Unavailable);
        let mut reader = Reader { text: String::new(), reports: 4 };
        follow(daemon(&[0, 0, 10, 11, 0, 0, 3, 4, 5]), Duration::ZERO, &mut reader).unwrap();
        assert_eq!(reader.text.matches("no answer").count(), 2, "{}", reader.text);
        assert!(reader.text.contains("up 11 s"), "{}", reader.text);
        assert!(reader.text.contains("the daemon was restarted"), "{}", reader.text);
    }

    #[test]
    fn a_pipe_is_unread_from_when_its_reader_has_gone() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        assert!(!is_unread(&writer));
        drop(reader);
        assert!(is_unread(&writer));
    }
}

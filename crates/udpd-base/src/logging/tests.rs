//! The log against readers that stop, leave or come back.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, pipe};
use std::sync::mpsc;

use log::Level;

use super::*;
use std::thread;

const LONG_ENOUGH: Duration = Duration::from_secs(60);

fn counter() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

fn say(backend: &Backend, level: Level, message: &str) {
    backend.log(&Record::builder().level(level).args(format_args!("{message}")).build());
}

/// The number in `warn: N log lines were lost`, or none for any other line.
fn lines_admitted(line: &str) -> Option<u64> {
    let (number, rest) = line.strip_prefix("warn: ")?.split_once(' ')?;
    (rest == "log lines were lost" || rest == "log line was lost").then(|| number.parse().unwrap())
}

#[test]
fn a_finished_log_holds_every_line_of_the_level_and_none_below() {
    let (reader, writer) = pipe().unwrap();
    let (backend, logger) = spawn(LevelFilter::Warn, Style::Text, writer, counter(), &ThreadRegistry::new().0).unwrap();
    say(&backend, Level::Error, "broken");
    say(&backend, Level::Info, "chatter");
    say(&backend, Level::Warn, "careful");
    logger.finish(LONG_ENOUGH);
    assert_eq!(io::read_to_string(reader).unwrap(), "error: broken\nwarn: careful\n");
}

#[test]
fn both_formats_reach_the_output() {
    for (style, start) in [(Style::Text, "info: "), (Style::Journal, "<6>"), (Style::Json, "{\"time\":\"")] {
        let (reader, writer) = pipe().unwrap();
        let (backend, logger) = spawn(LevelFilter::Info, style, writer, counter(), &ThreadRegistry::new().0).unwrap();
        say(&backend, Level::Info, "here");
        logger.finish(LONG_ENOUGH);
        let text = io::read_to_string(reader).unwrap();
        assert!(text.starts_with(start) && text.contains("here") && text.ends_with('\n'), "{text}");
    }
}

#[test]
fn a_stopped_reader_stops_nobody_and_later_learns_how_many_lines_it_missed() {
    let (reader, writer) = pipe().unwrap();
    let lost = counter();
    let (backend, logger) = spawn(LevelFilter::Info, Style::Text, writer, lost, &ThreadRegistry::new().0).unwrap();
    // The pipe has no reader yet, so these calls and the finish would hang here if they waited for the pipe.
    let sent = 3 * QUEUE_LINES;
    for number in 0..sent {
        say(&backend, Level::Info, &format!("line {number} {}", "x".repeat(100)));
    }
    let lost_lines = lost.load(Ordering::Relaxed);
    assert!(
        lost_lines > 0,
        "a pipe of 64 KiB and a queue of {QUEUE_LINES} lines cannot hold {sent} lines of 100 bytes"
    );
    logger.finish(Duration::from_millis(50));
    drop(backend);

    let mut expected = 0;
    let mut admitted = 0;
    let mut lines_read = 0;
    for line in BufReader::new(reader).lines() {
        let line = line.unwrap();
        if let Some(number) = lines_admitted(&line) {
            admitted += number;
            continue;
        }
        let number = line.strip_prefix("info: line ").and_then(|rest| rest.strip_suffix(&"x".repeat(100))).unwrap();
        let number: usize = number.trim().parse().unwrap();
        assert!(number >= expected, "line {number} came after line {expected}");
        expected = number + 1;
        lines_read += 1;
    }
    assert_eq!(admitted, lost_lines);
    assert_eq!(lines_read + lost_lines, sent as u64);
}

#[test]
fn a_closed_pipe_costs_lines_and_nothing_else() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let lost = counter();
    let (backend, logger) = spawn(LevelFilter::Info, Style::Text, writer, lost, &ThreadRegistry::new().0).unwrap();
    for _ in 0..3 {
        say(&backend, Level::Info, "is there a reader?");
    }
    logger.finish(LONG_ENOUGH);
    assert_eq!(lost.load(Ordering::Relaxed), 3);
    say(&backend, Level::Info, "after the end");
    assert_eq!(lost.load(Ordering::Relaxed), 4);
}

/// An output that takes a few bytes at a time and does, call by call, what the script says, then keeps working.
struct Scripted {
    script: Vec<io::Result<usize>>,
    taken: mpsc::Sender<Vec<u8>>,
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let step = if self.script.is_empty() { Ok(bytes.len()) } else { self.script.remove(0) };
        let count = step?.min(bytes.len());
        self.taken.send(bytes[..count].to_vec()).unwrap();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_through(script: Vec<io::Result<usize>>, messages: &[&str]) -> (String, u64) {
    let (taken, pieces) = mpsc::channel();
    let lost = counter();
    let (backend, logger) =
        spawn(LevelFilter::Info, Style::Text, Scripted { script, taken }, lost, &ThreadRegistry::new().0).unwrap();
    for message in messages {
        say(&backend, Level::Info, message);
    }
    logger.finish(LONG_ENOUGH);
    (String::from_utf8(pieces.iter().flatten().collect()).unwrap(), lost.load(Ordering::Relaxed))
}

#[test]
fn once_writing_works_again_the_log_says_what_is_missing() {
    let broken = || Err(io::Error::from(io::ErrorKind::StorageFull));
    // Line one fails; before line two the note fails, and so line two is lost as well; before line three it succeeds.
    let (text, lost) = log_through(vec![broken(), broken()], &["one", "two", "three"]);
    assert_eq!(text, "warn: 2 log lines were lost\ninfo: three\n");
    assert_eq!(lost, 2);
}

#[test]
fn a_line_that_was_cut_short_is_completed_before_the_next_begins() {
    let script = vec![Ok(8), Err(io::Error::from(io::ErrorKind::StorageFull)), Ok(2)];
    let (text, lost) = log_through(script, &["first", "second"]);
    assert_eq!(text, "info: first\ninfo: second\n");
    assert_eq!(lost, 0);
}

#[test]
fn a_full_output_that_does_not_block_is_waited_for() {
    let full = || Err(io::Error::from(io::ErrorKind::WouldBlock));
    let interrupted = || Err(io::Error::from(io::ErrorKind::Interrupted));
    let (text, lost) = log_through(vec![full(), Ok(3), interrupted(), full()], &["first", "second"]);
    assert_eq!(text, "info: first\ninfo: second\n");
    assert_eq!(lost, 0);
}

#[test]
fn lines_of_many_threads_never_mix() {
    let (reader, writer) = pipe().unwrap();
    let (backend, logger) = spawn(LevelFilter::Info, Style::Text, writer, counter(), &ThreadRegistry::new().0).unwrap();
    let message = |thread: usize, number: usize| format!("{thread}-{number}-{}", "y".repeat(number));
    let reading = thread::spawn(move || io::read_to_string(reader).unwrap());
    // 2000 lines fit the queue, so none may be missing however slow the reader is.
    thread::scope(|scope| {
        for thread in 0..4 {
            let backend = &backend;
            scope.spawn(move || (0..500).for_each(|number| say(backend, Level::Info, &message(thread, number))));
        }
    });
    logger.finish(LONG_ENOUGH);
    let text = reading.join().unwrap();
    let lines: HashSet<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2000);
    for (thread, number) in (0..4).flat_map(|thread| (0..500).map(move |number| (thread, number))) {
        assert!(lines.contains(format!("info: {}", message(thread, number)).as_str()), "{thread} {number}");
    }
}

#[test]
fn one_line_a_minute_is_logged_and_counts_the_others() {
    let (limiter, start) = (LogLimiter::default(), Instant::now());
    let passed: Vec<u64> = (0..130).filter_map(|second| limiter.pass(start + Duration::from_secs(second))).collect();
    assert_eq!(passed, [0, 59, 59]);
    assert_eq!((repeats(0), repeats(59)), (String::new(), "; 60 times since this was last said".to_owned()));
}

#[test]
fn lines_that_differ_may_be_several_a_minute_and_those_left_out_are_told_when_it_is_over() {
    let (limiter, start) = (LogLimiter::of(5), Instant::now());
    assert_eq!((0..20).filter_map(|_| limiter.pass(start)).collect::<Vec<_>>(), [0; 5]);
    assert_eq!((limiter.take_suppressed(start), limiter.suppresses(start)), (0, true), "not before it is over");
    assert_eq!([start + INTERVAL; 2].map(|now| limiter.take_suppressed(now)), [15, 0]);
}

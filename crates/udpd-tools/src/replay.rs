//! `udpd replay`: what a capture holds, sent once more, with its own spacing or faster.
//!
//! Each datagram is due at a time that follows from the capture and from when the replay began, never from the one
//! before it, so delays do not add up: a replay that was held up catches up. What is due together goes out in one call.
//!
//! The source of the capture is kept by writing whole packets to a raw socket. An ordinary socket would have to be
//! bound to each of them in turn, and could not have the port of a program of this host.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mmsg::{Family, SendBatch, Socket};
use nix::libc;
use serde::Serialize;

use udpd_base::capture::{Capture, Captured, Skipped, headers};
use udpd_base::codec;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console::stop_on_signal;
use udpd_base::os::{console, lookup};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::tables::grouped;

/// As `--to`: each datagram goes where it was sent to.
const CAPTURED: &str = "captured";

const SLOTS: usize = 64;

/// The longest payload, with headers before it.
const PACKET_BYTES_MAX: usize = 65_535;

/// The longest sleep, after which the stop flag is checked.
const SLEEP_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, clap::Args)]
pub struct ReplayArguments {
    /// The capture, pcapng or pcap, compressed by gzip or zstd or not; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to send, whatever the captured destination was; a name is looked up once. "captured" sends each datagram
    /// where it was sent to, such as to several multicast groups
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Send with the captured source addresses and ports (CAP_NET_RAW)
    #[arg(long)]
    keep_source: bool,
    /// How many routers datagrams may pass [default: 64; to a multicast group 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    ttl: Option<u8>,
    /// By which interface to send to multicast groups [default: that of the route]
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// How many times faster than captured; 0.5 is half as fast
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "fast")]
    speed: String,
    /// Send without waiting
    #[arg(long)]
    fast: bool,
    /// Only the datagrams that were sent to this port
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Stop after this many datagrams
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How many times to send the capture
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct ReplayReport {
    /// Datagrams read, without those of other ports.
    read: u64,
    sent: u64,
    failed: u64,
    /// Answers that no program listens.
    icmp_errors: u64,
    /// Packets that were no whole datagram, or of another port.
    skipped: u64,
    seconds: f64,
    /// How much later than due the latest was sent.
    latest_ms: f64,
}

/// Sends the capture until it ends or is interrupted, and reports what was sent.
pub fn execute(arguments: &ReplayArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let to = match arguments.to.as_str() {
        CAPTURED => None,
        named => Some(lookup::destination("--to", named)?.address),
    };
    let speed = speed(arguments)?;
    if arguments.rounds == 0 {
        return Err(usage("--loop", "0 times would send nothing".to_owned(), "write 1 or more"));
    }
    if arguments.rounds > 1 && is_stdin(&arguments.file) {
        return Err(usage("--loop", "standard input can be read once".to_owned(), "name a file"));
    }
    let stop = stop_on_signal(|| ())?;
    let mut player = Player::open(to, arguments)?;
    let mut report = ReplayReport::default();
    let mut skipped = Skipped::default();
    let started = Instant::now();
    let mut outcome = Ok(());
    for _ in 0..arguments.rounds {
        let reader: Box<dyn Read> = match is_stdin(&arguments.file) {
            true => Box::new(io::stdin().lock()),
            false => Box::new(File::open(&arguments.file).map_err(|error| unreadable(&arguments.file, &error))?),
        };
        let capture = codec::unpacked(BufReader::with_capacity(1 << 20, reader)).and_then(Capture::open);
        let mut capture = capture.map_err(|error| unreadable(&arguments.file, &error))?;
        let pace = ReplayClock::new(speed);
        outcome = player.play(&mut capture, pace, arguments, &mut report, &stop);
        skipped += capture.skipped();
        if outcome.is_err() || is_over(arguments, &report, &stop) {
            break;
        }
    }
    report.skipped += skipped.total();
    report.seconds = started.elapsed().as_secs_f64();
    print(arguments, &report, &skipped, out)?;
    outcome?;
    match report {
        ReplayReport { read, sent: 0, .. } if read > 0 => {
            Err(Failure::new(ExitCode::Failure, format!("could not send any of {read} datagrams to {}", arguments.to)))
        }
        _ => Ok(()),
    }
}

/// `None`: as fast as it goes.
fn speed(arguments: &ReplayArguments) -> Result<Option<f64>, Failure> {
    if arguments.fast {
        return Ok(None);
    }
    match arguments.speed.trim_end_matches('x').parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(Some(speed)),
        _ => {
            let what = format!("{:?} is not a number above 0", arguments.speed);
            Err(usage("--speed", what, "write how many times faster, such as 10, or --fast"))
        }
    }
}

fn usage(option: &str, what: String, cure: &str) -> Failure {
    Failure::new(ExitCode::Usage, format!("{option}: {}", ValueAdvice::new(what, cure)))
}

/// Whether it was interrupted, or all that was asked for is read.
fn is_over(arguments: &ReplayArguments, report: &ReplayReport, stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed) || arguments.count.is_some_and(|count| report.read >= count)
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn unreadable(file: &Path, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        io::ErrorKind::InvalidData => (ExitCode::Failure, "; `capinfos` or `tshark -r` may show more"),
        io::ErrorKind::PermissionDenied => (ExitCode::Permission, ""),
        io::ErrorKind::Unsupported => (ExitCode::Failure, ""),
        _ => (ExitCode::Disk, ""),
    };
    Failure::new(code, format!("cannot read the capture {}: {error}{cure}", file.display()))
}

fn print(
    arguments: &ReplayArguments,
    report: &ReplayReport,
    skipped: &Skipped,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if arguments.json {
        let text = serde_json::to_string(report).unwrap_or_default();
        return console::print(out, &format!("{text}\n"));
    }
    let ReplayReport { sent, failed, icmp_errors, seconds, latest_ms, .. } = *report;
    let mut text = format!(
        "sent {} datagrams to {} in {seconds:.3} s, {} failed; the latest {latest_ms:.1} ms late\n",
        grouped(sent),
        if arguments.to == CAPTURED { "where they were sent to" } else { &arguments.to },
        grouped(failed)
    );
    if report.skipped > 0 {
        let other_ports = report.skipped - skipped.total();
        text += &format!("skipped {}: {skipped}, {other_ports} to other ports\n", grouped(report.skipped));
    }
    if icmp_errors > 0 {
        text += &format!("{} answers say that no program listens there\n", grouped(icmp_errors));
    }
    console::print(out, &text)
}

/// Sends datagrams of one family.
struct Sender {
    socket: Socket,
    batch: SendBatch,
}

impl Sender {
    fn open(family: Family, arguments: &ReplayArguments) -> io::Result<Self> {
        let socket = if arguments.keep_source { Socket::raw(family)? } else { Socket::new(family)? };
        let index = arguments.interface.as_deref().map(nix::net::if_::if_nametoindex).transpose()?;
        if let Some(ttl) = arguments.ttl {
            socket.set_hop_limit(ttl)?;
            socket.set_multicast_hops(ttl)?;
        }
        index.map_or(Ok(()), |index| socket.set_multicast_interface(index))?;
        Ok(Self { socket, batch: SendBatch::new(SLOTS, PACKET_BYTES_MAX)? })
    }
}

struct Player {
    /// Of both families where the capture says where to send, otherwise of that of the destination.
    senders: Vec<(bool, Sender)>,
    to: Option<SocketAddr>,
    /// A whole packet, where the source is kept.
    packet: Option<Vec<u8>>,
    ttl: Option<u8>,
    shows_progress: bool,
    next_progress: Instant,
}

impl Player {
    fn open(to: Option<SocketAddr>, arguments: &ReplayArguments) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            let (code, cure) = match error.kind() {
                io::ErrorKind::PermissionDenied => (ExitCode::Permission, "; --keep-source needs root or CAP_NET_RAW"),
                _ => (ExitCode::Unavailable, ""),
            };
            Failure::new(code, format!("cannot send to {}: {error}{cure}", arguments.to))
        };
        let families = [(true, Family::V4), (false, Family::V6)];
        let wanted = families.into_iter().filter(|(is_v4, _)| to.is_none_or(|to| to.is_ipv4() == *is_v4));
        let open = |(is_v4, family)| Sender::open(family, arguments).map(|sender| (is_v4, sender));
        let senders: Vec<(bool, Sender)> = wanted.map(open).collect::<io::Result<_>>().map_err(fail)?;
        if let (Some(to), [(_, only)]) = (to, &senders[..]) {
            // So the kernel tells when no program listens there.
            only.socket.connect(to).map_err(fail)?;
        }
        Ok(Self {
            senders,
            to,
            packet: arguments.keep_source.then(|| Vec::with_capacity(PACKET_BYTES_MAX)),
            ttl: arguments.ttl,
            shows_progress: io::stderr().is_terminal(),
            next_progress: Instant::now() + Duration::from_secs(1),
        })
    }

    /// Queues a datagram; whether it could.
    fn push(&mut self, datagram: &Captured<'_>) -> bool {
        let to = self.to.unwrap_or(datagram.destination);
        let own = self.senders.iter_mut().find(|(is_v4, _)| *is_v4 == to.is_ipv4());
        let Some((_, Sender { batch, .. })) = own else { return false };
        let Some(packet) = &mut self.packet else {
            return batch.push(datagram.payload, self.to.is_none().then_some(to)).is_ok();
        };
        // No packet has a source of one family and a destination of the other.
        if datagram.source.is_ipv4() != to.is_ipv4() {
            return false;
        }
        packet.clear();
        headers::append(packet, datagram.source, to, datagram.payload, datagram.payload.len());
        let default = to.ip().is_multicast().then_some(1);
        if let Some(ttl) = self.ttl.or(default) {
            // The kernel computes the checksum of the header again.
            packet[if to.is_ipv4() { 8 } else { 7 }] = ttl;
        }
        // A raw socket takes the port for a protocol.
        batch.push(packet, self.to.is_none().then(|| SocketAddr::new(to.ip(), 0))).is_ok()
    }

    fn is_full(&self) -> bool {
        self.senders.iter().any(|(_, sender)| sender.batch.is_full())
    }

    fn play<R: Read>(
        &mut self,
        capture: &mut Capture<R>,
        mut pace: ReplayClock,
        arguments: &ReplayArguments,
        report: &mut ReplayReport,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        while !is_over(arguments, report, stop) {
            let datagram = capture.next_datagram().map_err(|error| unreadable(&arguments.file, &error));
            let Some(datagram) = (match datagram {
                Ok(datagram) => datagram,
                Err(failure) => {
                    // What was read before the damage is sent.
                    self.flush(report)?;
                    return Err(failure);
                }
            }) else {
                break;
            };
            if arguments.port.is_some_and(|port| datagram.destination.port() != port) {
                report.skipped += 1;
                continue;
            }
            report.read += 1;
            let due = pace.due(datagram.arrival);
            if self.is_full() || due.is_some_and(|due| due > Instant::now()) {
                self.flush(report)?;
            }
            if let Some(due) = due {
                self.wait_until(due, report, stop);
                let late = Instant::now().saturating_duration_since(due);
                report.latest_ms = report.latest_ms.max(late.as_secs_f64() * 1e3);
            }
            if !self.push(&datagram) {
                report.failed += 1;
            }
        }
        self.flush(report)
    }

    fn wait_until(&mut self, due: Instant, report: &ReplayReport, stop: &AtomicBool) {
        loop {
            let now = Instant::now();
            self.show_progress(now, report);
            let left = due.saturating_duration_since(now);
            if left.is_zero() || stop.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(left.min(SLEEP_MAX));
        }
    }

    fn show_progress(&mut self, now: Instant, report: &ReplayReport) {
        if self.shows_progress && now >= self.next_progress {
            self.next_progress = now + Duration::from_secs(1);
            // A closed stderr is no reason to stop.
            let _ = writeln!(io::stderr(), "sent {}, failed {}", grouped(report.sent), grouped(report.failed));
        }
    }

    fn flush(&mut self, report: &mut ReplayReport) -> Result<(), Failure> {
        for (_, Sender { socket, batch }) in &mut self.senders {
            while !batch.is_empty() {
                let outcome = batch.flush(socket);
                let done = outcome.as_ref().map_or_else(|error| error.report, |report| *report);
                report.sent += done.datagrams as u64;
                report.failed += batch.failures().iter().map(|failure| failure.datagrams as u64).sum::<u64>();
                report.icmp_errors += batch.answers().len() as u64;
                match outcome.map_err(|error| error.error) {
                    Ok(_) => {}
                    // A raw socket does not wait.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(Failure::new(ExitCode::Failure, format!("cannot send: {error}"))),
                }
            }
        }
        self.show_progress(Instant::now(), report);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct ReplayClock {
    /// `None`: everything is due at once.
    speed: Option<f64>,
    /// When the first datagram was captured, and when it was sent.
    first: Option<(Duration, Instant)>,
}

impl ReplayClock {
    fn new(speed: Option<f64>) -> Self {
        Self { speed, first: None }
    }

    /// When a datagram is due that was captured at this time. The first is due now, and so is one from before the
    /// first: interfaces are written in the order in which their packets were seen, which can differ by a little.
    fn due(&mut self, captured: Duration) -> Option<Instant> {
        let speed = self.speed?;
        let (first, began) = *self.first.get_or_insert_with(|| (captured, Instant::now()));
        let after = captured.saturating_sub(first).as_secs_f64() / speed;
        // A capture that spans more than the clock can count would never end either way.
        began.checked_add(Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX)).or(Some(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_capture_divided_by_the_speed() {
        let at = |milliseconds| Duration::from_secs(1_795_243_341) + Duration::from_millis(milliseconds);
        for (speed, expected) in [(1.0, 300), (10.0, 30), (0.5, 600)] {
            let mut pace = ReplayClock::new(Some(speed));
            let first = pace.due(at(0)).expect("paced");
            assert_eq!(pace.due(at(300)).expect("paced") - first, Duration::from_millis(expected));
            assert_eq!(pace.due(Duration::ZERO).expect("paced"), first, "one from before the first is due at once");
        }
        assert_eq!(ReplayClock::new(None).due(at(0)), None);
    }
}

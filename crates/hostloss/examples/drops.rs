//! Why this host drops datagrams: watches for some seconds, or until its standard input ends, and prints the reasons of
//! the kernel. Needs `CAP_PERFMON`, and root for the numbers of the tracepoints; or root reads them for it.
//!
//! ```text
//! cargo run -p udpd-hostloss --example drops -- 5
//! cargo run -p udpd-hostloss --example drops -- stdin UDP_FAIL_FORMAT KFREE_SKB_FORMAT
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use udpd_hostloss::drops::{DropTally, Tracepoints, Watch};

const USAGE: &str = "usage: drops SECONDS|stdin [UDP_FAIL_FORMAT KFREE_SKB_FORMAT]";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (until, files) = arguments.split_first().ok_or(USAGE)?;
    let seconds = if until == "stdin" { None } else { Some(until.parse().map_err(|_| USAGE)?) };
    let tracepoints = match files {
        [] => Tracepoints::read()?,
        [not_queued, freed] => {
            let read = |path| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
            Tracepoints::parse(Some(&read(not_queued)?), Some(&read(freed)?))?
        }
        _ => return Err(USAGE.into()),
    };
    let mut watch = Watch::open(&tracepoints)?;
    let mut out = io::stdout().lock();
    writeln!(out, "watching")?;
    out.flush()?;
    watch_until(&mut watch, seconds.map(Duration::from_secs))?;
    show(&watch.tally(), &mut out)?;
    Ok(())
}

/// Empties the rings fifty times a second until the time is over or the standard input ends, and once more then.
fn watch_until(watch: &mut Watch, time: Option<Duration>) -> io::Result<()> {
    let (ended, end) = channel::<()>();
    if time.is_none() {
        std::thread::spawn(move || {
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            drop(ended);
        });
    } else {
        // Only the clock ends it.
        std::mem::forget(ended);
    }
    let began = Instant::now();
    while time.is_none_or(|time| began.elapsed() < time) {
        let over = end.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Disconnected);
        watch.read()?;
        if over {
            break;
        }
    }
    Ok(())
}

fn show(tally: &DropTally, out: &mut impl Write) -> io::Result<()> {
    for drop in &tally.by_port {
        writeln!(out, "port {} {}: {}", drop.port, drop.reason, drop.count)?;
    }
    for drop in &tally.by_reason {
        let family = if drop.is_ipv6 { "IPv6" } else { "IPv4" };
        let whose = if drop.is_udp_only { "" } else { " (of UDP and others)" };
        writeln!(out, "{family} {}: {}{whose}", drop.reason, drop.count)?;
    }
    match tally.unnamed {
        Some(count) => writeln!(out, "without a reason: {count}")?,
        None => writeln!(out, "without a reason: not known")?,
    }
    writeln!(out, "not named: {} reasons, {} ports", tally.lost_reasons, tally.lost_ports)?;
    for unseen in &tally.unseen {
        writeln!(out, "note: {unseen}")?;
    }
    Ok(())
}

//! Takes readings for some seconds and makes evidence of them. Everything that is read is read here and in the files
//! beside it; what cannot be read is said and never guessed.

pub mod cores;
pub mod daemon;
pub mod elsewhere;
pub mod host;
pub mod interfaces;
pub mod looks;
pub mod names;
pub mod sockets;
pub mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use self::looks::Looks;
use self::names::Names;
use self::sockets::Owners;
use super::evidence::Evidence;
use crate::config::Config;
use crate::exit::{ExitCode, Failure};
use crate::host::{Reader, Reading};
use crate::ledger::Snapshot;
use crate::os::holder;

/// How often buffers are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How often the names of drops are taken out of the kernel's rings.
const TICK: Duration = Duration::from_millis(20);

/// What to watch, and for how long.
#[allow(missing_debug_implementations, reason = "it has a function")]
pub struct Target<'a> {
    pub port: Option<u16>,
    pub interface: Option<&'a str>,
    pub duration: Duration,
    pub config: Option<&'a Config>,
    /// Asks the running daemon for its ledger.
    pub ask: &'a dyn Fn() -> Result<Snapshot, Failure>,
    /// Which daemon was said, so there has to be one.
    pub is_named: bool,
}

/// What was seen, and of whom.
#[derive(Debug)]
pub struct Watched {
    pub evidence: Evidence,
    pub subject: String,
}

pub fn watch(target: &Target<'_>) -> Result<Watched, Failure> {
    let proc_root = Path::new("/proc");
    let mut unseen = Vec::new();
    let ledger = match (target.ask)() {
        Ok(ledger) => Some(ledger),
        Err(failure) if target.is_named => return Err(failure),
        Err(failure) => {
            if target.port.is_none() {
                unseen.push(format!("the ledger of a running udpd: {failure}"));
            }
            None
        }
    };
    let ledger = ledger.filter(|ledger| target.port.is_none_or(|port| has_port(ledger, port)));
    let ports = ports(target, ledger.as_ref(), proc_root);
    let mut reader = Reader::new(ports.iter().copied());
    let before = Moment::take(&mut reader, &ports, proc_root);
    let mut names = Names::open();
    let started = Instant::now();
    let looks = look(target, &before, &mut names, proc_root);
    let after = Moment::take(&mut reader, &ports, proc_root);
    let seconds = started.elapsed().as_secs_f64();
    let counted = after.reading.since(&before.reading);
    unseen.extend(after.reading.unread.iter().map(|(_, why)| why.clone()));
    let mut evidence = Evidence { seconds, asked_port: target.port, ..Evidence::default() };
    if let Some(before) = &ledger {
        match (target.ask)() {
            Ok(after) => evidence.listeners = daemon::listeners(before, &after, target.config),
            Err(failure) => unseen.push(format!("the ledger of the running udpd at the end: {failure}")),
        }
        if target.config.is_none() {
            unseen.push("what udpd's configuration asks for: name it with -c".to_owned());
        }
    }
    if let Some(port) = target.port {
        evidence.listeners.retain(|listener| listener.ports.contains(&port));
        if counted.sockets.as_ref().is_some_and(Vec::is_empty) {
            evidence.elsewhere = elsewhere::listeners(port, proc_root);
        }
    }
    if let Some(name) = target.interface.filter(|name| !counted.nic.contains_key(*name)) {
        let known: Vec<&str> = counted.nic.keys().map(String::as_str).collect();
        let message = format!("there is no interface {name} in this network namespace: there are {}", known.join(", "));
        return Err(Failure::new(ExitCode::Unavailable, message));
    }
    let named: Vec<String> = counted.nic.keys().filter(|name| is_meant(target, name)).cloned().collect();
    let (set, unread) = interfaces::read(&named, target.config);
    unseen.extend(unread);
    evidence.interfaces = host::interfaces(&counted, set, proc_root);
    evidence.interfaces.retain(|interface| is_meant(target, &interface.name));
    evidence.cores = host::cores(&counted, &cores::since(&before.ticks, &after.ticks));
    evidence.stack = host::stack(&counted);
    evidence.settings = host::settings(&counted, &looks, proc_root);
    evidence.ports = sockets::ports(&counted, &looks, (&before.owners, &after.owners), seconds);
    unseen.extend(sockets::unnamed(&evidence.ports));
    evidence.reasons = names.reasons();
    unseen.extend(names.unseen());
    evidence.unseen = unseen;
    Ok(Watched { subject: subject(target, &evidence), evidence })
}

/// Whether an interface is looked at.
fn is_meant(target: &Target<'_>, name: &str) -> bool {
    target.interface.is_none_or(|wanted| wanted == name)
}

fn has_port(ledger: &Snapshot, port: u16) -> bool {
    ledger.listeners.iter().any(|listener| daemon::ports(listener).contains(&port))
}

/// The port that was asked for, or those of the daemon, or all on which somebody listens.
fn ports(target: &Target<'_>, ledger: Option<&Snapshot>, proc_root: &Path) -> BTreeSet<u16> {
    if let Some(port) = target.port {
        return [port].into();
    }
    if let Some(ledger) = ledger {
        return ledger.listeners.iter().flat_map(daemon::ports).collect();
    }
    let sockets = holder::sockets(proc_root, |_| true).unwrap_or_default();
    sockets.iter().filter(|socket| !socket.connected).map(|socket| socket.address.port()).collect()
}

fn subject(target: &Target<'_>, evidence: &Evidence) -> String {
    match (target.port, evidence.listeners.len()) {
        (Some(port), _) => format!("port {port}"),
        (None, 0) => format!("{} ports on which somebody listens", evidence.ports.len()),
        (None, 1) => format!("listener {} of udpd", evidence.listeners[0].name),
        (None, count) => format!("{count} listeners of udpd"),
    }
}

/// All readings at one moment.
struct Moment {
    reading: Reading,
    ticks: cores::Ticks,
    owners: Owners,
}

impl Moment {
    fn take(reader: &mut Reader, ports: &BTreeSet<u16>, proc_root: &Path) -> Self {
        Self {
            owners: Owners::find(ports, proc_root),
            ticks: cores::parse(&fs::read_to_string(proc_root.join("stat")).unwrap_or_default()),
            reading: reader.read().clone(),
        }
    }
}

/// Looks until the time is over.
fn look(target: &Target<'_>, before: &Moment, names: &mut Names, proc_root: &Path) -> Looks {
    let sockets = before.reading.sockets.iter().flatten();
    let buffers: BTreeMap<u64, u64> =
        sockets.map(|socket| (socket.inode, socket.counts.buffer_bytes.unwrap_or(u64::MAX))).collect();
    let readers = before.owners.pids();
    let mut looks = Looks::default();
    let started = Instant::now();
    let is_shown = io::stderr().is_terminal();
    let mut shown = 0;
    while started.elapsed() < target.duration {
        if started.elapsed() >= LOOK * looks.count {
            looks.look(proc_root, &buffers, &readers);
        }
        names.take();
        let left = target.duration.saturating_sub(started.elapsed());
        if is_shown && shown != left.as_secs() + 1 {
            shown = left.as_secs() + 1;
            // Whoever closes stderr does not want to be told.
            let _ = write!(io::stderr().lock(), "\rwatching, {shown} s left \r");
        }
        thread::sleep(TICK.min(left));
    }
    if is_shown {
        let _ = write!(io::stderr().lock(), "\r{:24}\r", "");
    }
    looks
}

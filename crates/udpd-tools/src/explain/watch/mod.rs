//! Takes readings for some seconds and makes evidence of them. All of explain's I/O is here and in the files beside it;
//! what cannot be read is reported and never guessed.

mod daemon;
mod datagrams;
mod drop_names;
mod firewall;
mod host;
mod moments;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use self::drop_names::DropNames;
use self::host::Looks;
use self::sockets::Owners;
use super::evidence::Evidence;
use hostloss as host_ledger;
use hostloss::drops::DropProgram;
use hostloss::{HostReader, HostReading, Losses};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::holder;
use udpd_engine::config::Config;

const LOOK: Duration = Duration::from_millis(100);

/// How often the names of drops are read from the kernel's rings.
const TICK: Duration = Duration::from_millis(20);

#[allow(missing_debug_implementations, reason = "it has a function")]
pub(super) struct WatchTarget<'a> {
    pub port: Option<u16>,
    pub interface: Option<&'a str>,
    pub duration: Duration,
    pub config: Option<&'a Config>,
    pub config_path: Option<&'a Path>,
    pub ask: &'a dyn Fn() -> Result<Snapshot, Failure>,
    /// The daemon was named, so there has to be one.
    pub is_named: bool,
}

#[derive(Debug)]
pub(super) struct WatchResult {
    pub evidence: Evidence,
    pub subject: String,
}

pub(super) fn watch(target: &WatchTarget<'_>) -> Result<WatchResult, Failure> {
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
    if let Some(name) = target.interface {
        must_exist(name, proc_root)?;
    }
    let ledger = ledger.filter(|ledger| target.port.is_none_or(|port| has_port(ledger, port)));
    let has_all_ports = target.port.is_none() && ledger.is_none();
    let ports = ports(target, ledger.as_ref(), proc_root);
    let mut reader = HostReader::new(ports.iter().copied());
    let program = DropProgram::attach().map_err(|error| error.to_string());
    let rules = firewall::list();
    let before = HostSample::take(&mut reader, &ports, proc_root);
    let mut names = DropNames::open();
    let mut looks = look(target, &before, &mut names, proc_root);
    let after = HostSample::take(&mut reader, &ports, proc_root);
    let seconds = (after.at - before.at).as_secs_f64();
    let counted = after.reading.since(&before.reading);
    for (_, why) in before.reading.unread.iter().chain(&after.reading.unread) {
        if !unseen.contains(why) {
            unseen.push(why.clone());
        }
    }
    let config_path = target.config_path.map(|path| path.display().to_string());
    let mut evidence = Evidence { seconds, asked_port: target.port, config_path, has_all_ports, ..Evidence::default() };
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
            evidence.elsewhere = sockets::listeners(port, proc_root);
        }
    }
    let named: Vec<String> = counted.nic.keys().filter(|name| is_meant(target, name)).cloned().collect();
    let (set, unread) = host::read_cards(&named, target.config);
    unseen.extend(unread);
    evidence.interfaces = host::interfaces(&counted, set, proc_root);
    evidence.interfaces.retain(|interface| is_meant(target, &interface.name));
    evidence.cores = host::cores(&counted, &host::core_shares(&before.ticks, &after.ticks));
    unseen.extend(host::unseen(&evidence.cores));
    evidence.losses = Losses::of(&counted).lost;
    evidence.losses.retain(|loss| loss.layer != host_ledger::KernelLayer::Nic || is_meant(target, &loss.place));
    evidence.stack = host::stack(&counted, &looks);
    evidence.settings = host::settings(&counted, &looks, proc_root);
    // Where no port was named and nothing listens, every port that has no socket is meant as well.
    let is_watched = |port| port == 0 || has_all_ports || ports.contains(&port);
    match datagrams::read(&program, &counted, is_watched, proc_root) {
        Ok(datagrams) => evidence.datagrams = Some(datagrams),
        Err(refusal) => unseen.push(format!(
            "which datagrams the kernel threw away and why, such as those that a firewall dropped: {refusal}; it needs \
             CAP_BPF and CAP_PERFMON"
        )),
    }
    evidence.rules = firewall::counted(&rules, firewall::list());
    let drops = evidence.datagrams.as_deref();
    evidence.ports = sockets::ports(&counted, &mut looks, (&before.owners, &after.owners), seconds, drops);
    sockets::take_off_denied(&mut evidence.ports, &evidence.listeners);
    unseen.extend(sockets::unnamed(&evidence.ports));
    let (reasons, mut nameless) = names.close();
    nameless.retain(|line| line != drop_names::FIREWALL || evidence.datagrams.is_none());
    evidence.reasons = reasons;
    unseen.extend(nameless);
    evidence.unseen = unseen;
    Ok(WatchResult { subject: subject(target, &evidence), evidence })
}

/// Refuses an interface that is not there, before anything is watched.
fn must_exist(name: &str, proc_root: &Path) -> Result<(), Failure> {
    let table = fs::read_to_string(proc_root.join("net/dev")).unwrap_or_default();
    let known: Vec<&str> = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    if known.is_empty() || known.contains(&name) {
        return Ok(());
    }
    let message = format!("there is no interface {name} in this network namespace: there are {}", known.join(", "));
    Err(Failure::new(ExitCode::Unavailable, message))
}

fn is_meant(target: &WatchTarget<'_>, name: &str) -> bool {
    target.interface.is_none_or(|wanted| wanted == name)
}

fn has_port(ledger: &Snapshot, port: u16) -> bool {
    ledger.listeners.iter().any(|listener| daemon::ports(listener).contains(&port))
}

/// The port that was asked for, or those of the daemon, or all that have a socket, connected or not.
fn ports(target: &WatchTarget<'_>, ledger: Option<&Snapshot>, proc_root: &Path) -> BTreeSet<u16> {
    if let Some(port) = target.port {
        return [port].into();
    }
    if let Some(ledger) = ledger {
        return ledger.listeners.iter().flat_map(daemon::ports).collect();
    }
    let sockets = holder::sockets(proc_root, |_| true).unwrap_or_default();
    sockets.iter().map(|socket| socket.address.port()).collect()
}

fn subject(target: &WatchTarget<'_>, evidence: &Evidence) -> String {
    match (target.port, evidence.listeners.len()) {
        (Some(port), _) => format!("port {port}"),
        (None, 0) => format!("{} ports with a UDP socket", evidence.ports.len()),
        (None, 1) => format!("listener {} of udpd", evidence.listeners[0].name),
        (None, count) => format!("{count} listeners of udpd"),
    }
}

struct HostSample {
    /// When the counters were read.
    at: Instant,
    reading: HostReading,
    ticks: host::Ticks,
    owners: Owners,
}

impl HostSample {
    fn take(reader: &mut HostReader, ports: &BTreeSet<u16>, proc_root: &Path) -> Self {
        Self {
            owners: Owners::find(ports, proc_root),
            ticks: host::parse_ticks(&fs::read_to_string(proc_root.join("stat")).unwrap_or_default()),
            reading: reader.read().clone(),
            at: Instant::now(),
        }
    }
}

fn look(target: &WatchTarget<'_>, before: &HostSample, names: &mut DropNames, proc_root: &Path) -> Looks {
    let sockets = before.reading.sockets.iter().flatten();
    let buffers: BTreeMap<u64, u64> =
        sockets.map(|socket| (socket.inode, socket.counts.buffer_bytes.unwrap_or(u64::MAX))).collect();
    let mut looks = Looks::default();
    let started = Instant::now();
    let is_shown = io::stderr().is_terminal();
    let mut shown = 0;
    let mut looked = started;
    while started.elapsed() < target.duration {
        if started.elapsed() >= LOOK * looks.count {
            looks.look(proc_root, &buffers, &before.owners, looked.elapsed().as_secs_f64());
            looked = Instant::now();
        }
        names.take();
        let left = target.duration.saturating_sub(started.elapsed());
        if is_shown && shown != left.as_secs() + 1 {
            shown = left.as_secs() + 1;
            // A closed stderr is no reason to stop.
            let _ = write!(io::stderr().lock(), "\rwatching, {shown} s left \r");
        }
        thread::sleep(TICK.min(left));
    }
    if is_shown {
        let _ = write!(io::stderr().lock(), "\r{:24}\r", "");
    }
    looks
}

#[cfg(test)]
mod tests {
    use hostloss::testing::root;

    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
        let heading = "Inter-| Receive\n face |bytes packets\n";
        let tree = root(&[("net/dev", &format!("{heading}    lo: 1 2 3\n  eth0: 1 2 3\n"))]);
        assert!(must_exist("eth0", tree.path()).is_ok());
        let refusal = must_exist("eth1", tree.path()).expect_err("not there").to_string();
        assert!(refusal.contains("there are lo, eth0"), "{refusal}");
    }
}

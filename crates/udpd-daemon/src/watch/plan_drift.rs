//! While the daemon runs: is the host still as it was planned when the daemon started? The lanes have the seats of that
//! plan until they end, so nothing is compared with a plan that would be made now: after a change of the queues, or
//! with a core less, that one has receivers that do not exist.
//!
//! Each finding is logged once with its cause, and again only after it was right in between. What cannot be read is a
//! finding too, never "as planned". Looking costs a few dozen small files, so it is done every few seconds by the main
//! thread, and only for interfaces that the configuration steers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use steer::model::Interface;
use steer::plan::{InterfacePlan, QueueSeat, Request, Target};
use steer::{Comparison, Drift, Rivals, Topology, Unknown};

use udpd_engine::config::SteerConfig;
use udpd_engine::plan::advice;
use udpd_engine::plan::interfaces::{Interfaces, Kernel, beside};

/// What to set a core's number in to bring it back.
const BRING_UP: &str = "echo 1 > /sys/devices/system/cpu/cpu";

/// Compares the host with the plan that the daemon started with.
#[derive(Debug)]
pub struct InterfaceWatch {
    ban_irqbalance: bool,
    planned: Vec<InterfacePlan>,
    /// By interface, the cores of the lanes that it feeds.
    lane_cores: BTreeMap<String, BTreeSet<usize>>,
    /// What was asked for the plan, with the seats that came of it.
    request: Request,
    kernel: Option<Box<Kernel>>,
    said: LoggedFindings,
}

impl InterfaceWatch {
    pub fn new(wish: &SteerConfig, interfaces: &Interfaces) -> Self {
        let planned = interfaces.steered.clone();
        let seated = planned.iter().map(|part| (part.name.clone(), part.all_seats())).collect();
        let request = beside(interfaces.request.clone(), seated);
        Self {
            ban_irqbalance: wish.ban_irqbalance,
            planned,
            lane_cores: interfaces.lane_cores.clone(),
            request,
            kernel: None,
            said: LoggedFindings::default(),
        }
    }

    pub fn look(&mut self) -> Vec<String> {
        if self.planned.is_empty() {
            return Vec::new();
        }
        if self.kernel.is_none() {
            match Kernel::open() {
                Ok(kernel) => self.kernel = Some(Box::new(kernel)),
                Err(failure) => return self.said.unread("", format!("cannot compare with the plan: {failure}")),
            }
        }
        let Some(kernel) = &self.kernel else { return Vec::new() };
        let rivals = Rivals::find(Path::new("/"));
        let mut lines = Vec::new();
        for part in &self.planned {
            lines.extend(match self.findings(kernel, part, &rivals) {
                Ok(findings) => self.said.judged(&part.name, findings),
                Err(error) => self.said.unread(&part.name, error),
            });
        }
        lines
    }

    /// What is not as planned of one interface, or why nothing can be said of it.
    fn findings(&self, kernel: &Kernel, part: &InterfacePlan, rivals: &Rivals) -> Result<Vec<DriftFinding>, String> {
        let name = &part.name;
        let unread = |error: String| format!("cannot compare {name} with its plan: {error}");
        let names = [name.clone()];
        let host = kernel.reader().read(&names).map_err(|error| unread(error.to_string()))?;
        let [interface] = host.interfaces.as_slice() else { return Ok(Vec::new()) };
        let shape = shape(part, interface, &host.topology, rivals, self.lane_cores.get(name));
        if !shape.is_empty() {
            // All else follows from it, or means another queue or core now.
            return Ok(shape);
        }
        let steering = kernel.steering(&self.request);
        let (host, plan) = steering.plan(&names).map_err(|error| unread(advice::of_error(&error, false)))?;
        Ok(self.of_comparison(&steering.compare(&host, &plan, rivals)))
    }

    fn of_comparison(&self, comparison: &Comparison) -> Vec<DriftFinding> {
        let drift = |drift: &Drift| {
            let told = advice::of_drift(drift, self.ban_irqbalance);
            let cure = match drift.is_set_by_apply() {
                true => "`udpd steer apply` sets it again",
                false => drift.change.command.as_str(),
            };
            DriftFinding { key: drift.change.setting.to_string(), keeps: None, line: format!("{told}; {cure}") }
        };
        // What cannot be read now was not put right.
        let unknown = |unknown: &Unknown| DriftFinding {
            key: format!("unknown: {} {:?}", unknown.what, unknown.queue),
            keeps: Some(unknown.what.clone()),
            line: format!("whether it is as planned is unknown: {unknown}"),
        };
        comparison.drifts.iter().map(drift).chain(comparison.unknown.iter().map(unknown)).collect()
    }
}

/// Something that is not as planned, or that cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DriftFinding {
    /// What it is about, without what is found: an interrupt that moves every few seconds is one finding.
    key: String,
    /// The key of another finding that is not over as long as this one lasts.
    keeps: Option<String>,
    line: String,
}

/// Queues or cores that are not what the lanes were planned for.
fn shape(
    part: &InterfacePlan,
    interface: &Interface,
    topology: &Topology,
    rivals: &Rivals,
    lane_cores: Option<&BTreeSet<usize>>,
) -> Vec<DriftFinding> {
    let mut findings = Vec::new();
    let (name, now, planned) = (&part.name, interface.queues.len(), part.seats.len());
    let is_wanted = part.wanted.iter().any(|wanted| matches!(wanted.target, Target::Channels(_)));
    // A number that the configuration asks for is a setting like others.
    if now != planned && !is_wanted {
        let queues = if now == 1 { "queue" } else { "queues" };
        let cause = cause_of_channels(rivals);
        let put_back = put_back(interface, planned);
        let line = format!(
            "{name} has {now} {queues} and the lanes were planned for {planned}: {cause}; restart udpd{put_back}"
        );
        findings.push(DriftFinding { key: "queues".to_owned(), keeps: None, line });
    }
    for (core, who) in users(part, lane_cores) {
        if !topology.online.contains(&core) {
            let line = format!(
                "core {core} is off, and {} on it by the plan of {name}; bring it back ({BRING_UP}{core}/online), or \
                 restart udpd, which plans without it",
                who.join(" and ")
            );
            findings.push(DriftFinding { key: format!("core {core}"), keeps: None, line });
        }
    }
    findings
}

/// Who sits on each core by the plan; a receiver that is no lane sits nowhere.
fn users(part: &InterfacePlan, lane_cores: Option<&BTreeSet<usize>>) -> BTreeMap<usize, Vec<String>> {
    let mut users: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for seat in &part.seats {
        if let Some(core) = seat.interrupt_core {
            users.entry(core).or_default().push(format!("the interrupt of queue {} is", seat.queue));
        }
    }
    let is_lane = |seat: &&QueueSeat| {
        seat.receiver_cores.len() < 2 && lane_cores.is_some_and(|cores| cores.contains(&seat.receiver_core))
    };
    for seat in part.all_seats().iter().filter(is_lane) {
        let text = format!("receiver {} is", seat.receiver);
        let own = users.entry(seat.receiver_core).or_default();
        if !own.contains(&text) {
            own.push(text);
        }
    }
    users
}

fn cause_of_channels(rivals: &Rivals) -> String {
    let sets =
        |(_, line): &&(String, String)| ["RxChannels", "CombinedChannels"].iter().any(|key| line.starts_with(key));
    match rivals.link_files.iter().find(sets) {
        Some((path, line)) => format!("{path} sets it when the interface appears ({line})"),
        None => "a program ran ethtool -L, or the driver was reset".to_owned(),
    }
}

/// The command that gives an interface so many queues, where its driver can.
fn put_back(interface: &Interface, queues: usize) -> String {
    let Some(channels) = interface.channels.get() else { return String::new() };
    let kind = if channels.combined_max > 0 { "combined" } else { "rx" };
    format!(" or put it back with `ethtool -L {} {kind} {queues}`", interface.name)
}

#[derive(Debug, Default)]
struct LoggedFindings(BTreeMap<String, BTreeSet<String>>);

impl LoggedFindings {
    /// The lines among these findings that were not there before.
    fn judged(&mut self, interface: &str, findings: Vec<DriftFinding>) -> Vec<String> {
        let said = self.0.entry(interface.to_owned()).or_default();
        let known = std::mem::replace(said, findings.iter().map(|finding| finding.key.clone()).collect());
        said.extend(findings.iter().filter_map(|finding| finding.keeps.clone()).filter(|key| known.contains(key)));
        findings.into_iter().filter(|finding| !known.contains(&finding.key)).map(|finding| finding.line).collect()
    }

    /// The line that an interface cannot be judged, unless that was said. What was found before is not over by that.
    fn unread(&mut self, interface: &str, line: String) -> Vec<String> {
        let is_new = self.0.entry(interface.to_owned()).or_default().insert(line.clone());
        is_new.then_some(line).into_iter().collect()
    }
}

#[cfg(test)]
#[path = "plan_drift_tests.rs"]
mod tests;

//! The host of `udpd steer apply --watch`: the running kernel and the daemons that run on it.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use steer::plan::Request;
use steer::{Change, Drift, Irqbalance, Journal, Presence, Rivals, Setting, Steering};

use super::apply::{Applied, apply};
use super::keeper::Host;
use super::seats::Seated;
use super::task::Task;
use super::verdict;
use udpd_base::exit::Failure;
use udpd_endpoint::control::Silent;
use udpd_engine::plan::interfaces::Kernel;

/// The running kernel. It is opened anew at each look: cores come and go.
pub(super) struct Running<'a> {
    task: &'a Task<'a>,
    out: &'a mut dyn Write,
    /// The irqbalance that was asked last.
    asked: Option<u32>,
    /// What the daemons told, for as long as one of them is silent.
    request: Option<Request>,
    /// What was said of those that are silent.
    silent: Vec<Silent>,
    rounded: Rounded,
}

/// What drivers made of values of the plan, so that nobody takes it for somebody's change and tells them again: some
/// reset the card each time.
#[derive(Debug, Default)]
struct Rounded(Vec<Change>);

impl Rounded {
    /// Remembers what was not taken as it was wanted. Returns what is left of it: somebody moves an interrupt or a mask
    /// at the same moment, and no driver has rounded those.
    fn learn(&mut self, done: &[Change]) -> Vec<Failure> {
        let is_of_driver = |change: &Change| {
            !matches!(change.setting, Setting::Interrupt { .. } | Setting::Rps(_) | Setting::Xps(_) | Setting::Threaded)
        };
        let (rounded, moved): (Vec<&Change>, Vec<&Change>) =
            done.iter().filter(|change| !change.is_as_wanted()).partition(|change| is_of_driver(change));
        for change in rounded {
            log::warn!("{}; until then it stays so and counts as planned", verdict::not_as_wanted(change));
            self.0.retain(|other| (&other.interface, &other.setting) != (&change.interface, &change.setting));
            self.0.push(change.clone());
        }
        moved.into_iter().map(verdict::not_as_wanted).collect()
    }
}

impl<'a> Running<'a> {
    pub(super) fn new(task: &'a Task<'a>, out: &'a mut dyn Write) -> Self {
        Self { task, out, asked: None, request: None, silent: Vec::new(), rounded: Rounded::default() }
    }

    /// Asks the daemons, once a look.
    fn ask(&mut self, interfaces: &[String]) -> Result<Request, Failure> {
        let seated = Seated::ask(self.task.wish, self.task.config, interfaces)?;
        if self.silent != seated.silent() {
            self.silent = seated.silent().to_vec();
            self.silent.iter().for_each(|silent| log::warn!("{silent}"));
        }
        let request = seated.or_before(self.request.take())?;
        self.request = Some(request.clone());
        Ok(request)
    }
}

impl Host for Running<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn is_there(&self, interface: &str) -> bool {
        // One that cannot be looked for is named by whoever reads it.
        Path::new("/sys/class/net").join(interface).try_exists().unwrap_or(true)
    }

    fn drifts(&mut self, interfaces: &[String]) -> Result<Vec<Drift>, Failure> {
        let kernel = Kernel::open()?;
        let request = self.ask(interfaces)?;
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = Steering { rounded: &self.rounded.0, ..kernel.steering(&request) };
        let (host, plan) = steering.plan(interfaces).map_err(|error| self.task.failure(&error))?;
        let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
        Ok(comparison.drifts.into_iter().filter(Drift::is_set_by_apply).collect())
    }

    fn unasked_irqbalance(&mut self) -> Option<u32> {
        match Irqbalance::find(Path::new("/")) {
            Presence::Runs(found) => {
                Some(found.pid()).filter(|pid| self.task.wish.ban_irqbalance && self.asked != Some(*pid))
            }
            Presence::Absent | Presence::Unknown(_) => None,
        }
    }

    fn apply(&mut self, interfaces: &[String]) -> Result<(), Failure> {
        let kernel = Kernel::open()?;
        // The look that found something to set has asked.
        let request = match self.request.clone() {
            Some(request) => request,
            None => self.ask(interfaces)?,
        };
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = Steering { rounded: &self.rounded.0, ..kernel.steering(&request) };
        let journal = Journal::in_folder(&self.task.state_folder);
        let Applied { done, failure } = apply(&steering, interfaces, &journal, self.task, self.out)?;
        verdict::all_of(failure.err().into_iter().chain(self.rounded.learn(&done)))?;
        if let Presence::Runs(found) = Irqbalance::find(Path::new("/")) {
            self.asked = Some(found.pid());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(setting: Setting, to: &str, now: &str) -> Change {
        let [interface, from, to, now] = ["eth0", "256", to, now].map(str::to_owned);
        let (why, command) = (String::new(), String::new());
        Change { interface, setting, from, to, now: Some(now), why, disruption: None, command }
    }

    #[test]
    fn what_a_driver_rounds_is_remembered_and_what_somebody_moves_is_a_failure() {
        let mut rounded = Rounded::default();
        let interrupt = Setting::Interrupt { number: 40, name: "rx".to_owned() };
        let left = rounded.learn(&[
            change(Setting::Rings, "4096 512", "2048 512"),
            change(Setting::Channels, "0 0 0 4", "0 0 0 4"),
            change(interrupt, "2", "3"),
        ]);
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].message.starts_with("set interrupt 40 rx of eth0 to 2, but the driver took 3"), "{left:?}");
        assert_eq!(rounded.0, [change(Setting::Rings, "4096 512", "2048 512")]);
        let other = change(Setting::Rings, "8192 512", "1024 512");
        assert!(rounded.learn(std::slice::from_ref(&other)).is_empty());
        assert_eq!(rounded.0, [other], "the newest of one setting");
    }
}

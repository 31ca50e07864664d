//! The seats of running daemons: `status` compares the host with them, and `apply` places interrupts beside them. Where
//! no daemon runs, the plan is the one that the next daemon will make.
//!
//! A daemon that runs and does not answer counts as running: a plan without its seats could move interrupts away from
//! its receivers. So `apply` changes nothing then, a watch goes on with the last answer, and `status` says that it does
//! not know.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use steer::model::Host;
use steer::plan::{Plan, Request};
use steer::{ApplyError, Drift, Rivals, Steering, Unknown};

use udpd_base::exit::{ExitCode, Failure};
use udpd_endpoint::control::{Neighbour, NeighbourSearch, Neighbours, Silent, default_paths};
use udpd_engine::config::{Config, SteerConfig};
use udpd_engine::plan;
use udpd_engine::plan::interfaces::{Kernel, beside, of_command};
use udpd_engine::plan::neighbours::{cores, index_of, seated};

/// What the daemons of this host have told.
#[derive(Debug)]
pub(super) struct Seated {
    pub request: Request,
    neighbours: Neighbours,
    /// Where a daemon is named or usual.
    known: Vec<PathBuf>,
}

impl Seated {
    /// Asks them. `config` is the file that the command was given.
    pub(super) fn ask(wish: &SteerConfig, config: Option<&Config>, interfaces: &[String]) -> Result<Self, Failure> {
        let named: Vec<PathBuf> =
            config.and_then(|config| config.daemon.control_socket.value.clone()).into_iter().collect();
        let usual = default_paths();
        let search = NeighbourSearch { named: &named, usual: &usual, except: None, proc_root: Path::new("/proc") };
        let neighbours = search.ask();
        let receivers = config.map_or(Ok(Default::default()), plan::receivers)?;
        let request = Request { receivers, taken: cores(&neighbours), ..wish.request.clone() };
        let all: Vec<String> = wish.interfaces.iter().chain(interfaces).cloned().collect();
        let request = beside(request, seated(&all, index_of, &neighbours));
        Ok(Self { request, neighbours, known: named.into_iter().chain(usual).collect() })
    }

    /// Those that have not told.
    pub(super) fn silent(&self) -> &[Silent] {
        &self.neighbours.silent
    }

    /// Refuses to plan when a daemon at an expected path has not answered. A socket elsewhere can be made by any user,
    /// and must not be able to block this.
    pub(super) fn must_be_known(&self) -> Result<(), Failure> {
        let is_known = |one: &&Silent| one.path.as_ref().is_some_and(|path| self.known.contains(path));
        let Some(silent) = self.silent().iter().find(is_known) else { return Ok(()) };
        let message = format!(
            "{silent}; where its receivers sit is unknown, so nothing was changed: see its log and \
             `systemctl status udpd`, restart it, and run this again"
        );
        Err(Failure::new(ExitCode::Failure, message))
    }

    /// What a watch plans with: what was told before, while one that may have told it is silent.
    pub(super) fn or_before(self, before: Option<Request>) -> Result<Request, Failure> {
        match before {
            Some(before) if !self.silent().is_empty() => Ok(before),
            _ => self.must_be_known().map(|()| self.request),
        }
    }

    /// One line for each daemon without an answer: whether the interrupts suit its receivers is unknown.
    pub(super) fn unknown(&self, interfaces: &[String]) -> Vec<Unknown> {
        let unknown = |silent: &Silent| Unknown {
            interface: interfaces.join(", "),
            queue: None,
            what: "where a running udpd has its receivers".to_owned(),
            why: silent.to_string(),
            cure: "see its log and `systemctl status udpd`; run this as root or as the user of that udpd".to_owned(),
        };
        self.silent().iter().map(unknown).collect()
    }

    /// What a reader has to know of the plan, one line each.
    pub(super) fn notes(&self, interfaces: &[String]) -> String {
        let silent: String = self.silent().iter().map(|silent| format!("note: {silent}\n")).collect();
        silent + &self.told(interfaces)
    }

    /// The same without those that are silent.
    pub(super) fn told(&self, interfaces: &[String]) -> String {
        let pids: Vec<String> = self.neighbours.daemons.iter().map(|daemon| daemon.seats.pid.to_string()).collect();
        let of_daemons: Vec<&str> =
            interfaces.iter().filter(|name| self.request.seated.contains_key(*name)).map(String::as_str).collect();
        let note = match (pids.as_slice(), of_daemons.as_slice()) {
            ([], _) => "no udpd runs here that told its seats; the next one to start takes these".to_owned(),
            (_, []) => format!("udpd runs (process {}) and steers none of these", pids.join(", ")),
            (_, names) => format!(
                "the receivers of {} are where the running udpd has them (process {})",
                names.join(", "),
                pids.join(", ")
            ),
        };
        format!("note: {note}\n")
    }

    /// The same for scripts.
    pub(super) fn json(&self) -> Value {
        let daemon = |Neighbour { path, seats }: &Neighbour| {
            let (pid, version) = (seats.pid, &seats.version);
            json!({ "pid": pid, "version": version, "control_socket": path })
        };
        json!({ "asked": self.neighbours.daemons.iter().map(daemon).collect::<Vec<_>>(),
                "silent": self.silent().iter().map(Silent::to_string).collect::<Vec<_>>() })
    }
}

/// What the command is about, of the one plan for everything.
pub(super) fn planned(
    steering: &Steering<'_>,
    interfaces: &[String],
    wish: &SteerConfig,
) -> Result<(Host, Plan), ApplyError> {
    of_command(steering, wish, interfaces).only(interfaces)
}

/// The request that gives these interfaces, planned without the others, the same part of the plan as with them.
pub(super) fn request_for(
    steering: &Steering<'_>,
    interfaces: &[String],
    wish: &SteerConfig,
) -> Result<Request, ApplyError> {
    let request = steering.request.clone();
    if interfaces == wish.interfaces || wish.interfaces.is_empty() {
        return Ok(request);
    }
    let (_, plan) = planned(steering, interfaces, wish)?;
    let seats = plan.interfaces.iter().map(|part| (part.name.clone(), part.all_seats()));
    let seated = request.seated.clone().into_iter().chain(seats).collect();
    Ok(beside(request, seated))
}

/// What is not as the plan of a configuration has it, for a command that tells more than that.
pub fn drifts(config: &Config) -> Result<Vec<Drift>, Failure> {
    let (wish, interfaces) = (&config.steer, &config.steer.interfaces);
    let kernel = Kernel::open()?;
    let seated = Seated::ask(wish, Some(config), interfaces)?;
    let steering = kernel.steering(&seated.request);
    let (host, plan) =
        planned(&steering, interfaces, wish).map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?;
    Ok(steering.compare(&host, &plan, &Rivals::find(Path::new("/"))).drifts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_HOME: &str = "/run/udpd/control.sock";
    const ELSEWHERE: &str = "/tmp/udpd.sock";

    fn clause(path: &str) -> String {
        format!("the process behind {path} does not tell its seats: timed out")
    }

    fn seated(silent: &[&str], taken: &[usize]) -> Seated {
        let silent = silent.iter().map(|path| Silent { path: Some(path.into()), clause: clause(path) }).collect();
        Seated {
            request: Request { taken: taken.to_vec(), ..Request::default() },
            neighbours: Neighbours { daemons: Vec::new(), silent },
            known: vec![PathBuf::from(AT_HOME)],
        }
    }

    #[test]
    fn a_silent_daemon_where_one_is_expected_is_not_planned_past_and_one_elsewhere_is() {
        let failure = seated(&[ELSEWHERE, AT_HOME], &[]).must_be_known().expect_err("it is there");
        assert_eq!(failure.code, ExitCode::Failure);
        assert!(
            failure.message.starts_with(&clause(AT_HOME)) && failure.message.contains("nothing was changed"),
            "{failure}"
        );
        assert!(seated(&[ELSEWHERE], &[]).must_be_known().is_ok());
        let more = Silent { path: None, clause: format!("beside {}", clause(AT_HOME)) };
        let mut of_none = seated(&[], &[]);
        of_none.neighbours.silent.push(more);
        assert!(of_none.must_be_known().is_ok(), "a sentence that has the path in it is not the process behind it");
        assert!(seated(&[], &[]).must_be_known().is_ok());
    }

    #[test]
    fn a_watch_keeps_what_was_told_while_a_daemon_is_silent() {
        let before = || Some(seated(&[], &[1]).request);
        let taken = |now: Seated, before| now.or_before(before).expect("known").taken;
        assert_eq!(taken(seated(&[AT_HOME], &[]), before()), [1]);
        assert_eq!(taken(seated(&[ELSEWHERE], &[]), before()), [1]);
        assert_eq!(taken(seated(&[], &[2]), before()), [2]);
        assert!(seated(&[AT_HOME], &[]).or_before(None).is_err(), "nothing was told yet");
    }

    #[test]
    fn each_silent_daemon_is_unknown_to_status() {
        let names = ["eth0".to_owned(), "eth1".to_owned()];
        let unknown = seated(&[ELSEWHERE, AT_HOME], &[]).unknown(&names);
        assert_eq!(unknown.iter().map(|one| one.why.clone()).collect::<Vec<_>>(), [ELSEWHERE, AT_HOME].map(clause));
        assert_eq!(unknown[0].interface, "eth0, eth1");
        assert_eq!(seated(&[], &[]).unknown(&names), []);
    }
}

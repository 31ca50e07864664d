//! The seats that running daemons have, for the commands: `status` compares the host with them, and `apply` puts
//! interrupts to suit. Where no daemon runs the plan is made as the next one will make it.
//!
//! A daemon that is there and does not tell is not taken for none: the plan would move interrupts away from receivers
//! that nobody has asked. So `apply` changes nothing then, a watch goes on with what was told before, and `status` says
//! that it does not know.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steer::model::Host;
use steer::plan::{Plan, Request};
use steer::{ApplyError, Steering, Unknown};

use crate::config::{Config, Steer};
use crate::endpoint::control::{Neighbour, Neighbours, Search, default_paths};
use crate::exit::{ExitCode, Failure};
use crate::plan;
use crate::plan::interfaces::{beside, of_command};
use crate::plan::neighbours::{cores, index_of, seated};

/// How often to ask, where one hangs up instead of answering, as a daemon that is beset by clients does.
const ATTEMPTS: u32 = 5;
/// Who takes longer hangs, and asking again would only wait again.
const HANGS: Duration = Duration::from_millis(500);

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
    pub(super) fn ask(wish: &Steer, config: Option<&Config>, interfaces: &[String]) -> Result<Self, Failure> {
        let named: Vec<PathBuf> =
            config.and_then(|config| config.daemon.control_socket.value.clone()).into_iter().collect();
        let usual = default_paths();
        let search = Search { named: &named, usual: &usual, except: None, proc_root: Path::new("/proc") };
        let neighbours = until_heard(|| search.ask());
        let receivers = config.map_or(Ok(Default::default()), plan::receivers)?;
        let request = Request { receivers, taken: cores(&neighbours), ..wish.request.clone() };
        let all: Vec<String> = wish.interfaces.iter().chain(interfaces).cloned().collect();
        let request = beside(request, seated(&all, index_of, &neighbours));
        Ok(Self { request, neighbours, known: named.into_iter().chain(usual).collect() })
    }

    /// Those that have not told: one clause each.
    pub(super) fn silent(&self) -> &[String] {
        &self.neighbours.silent
    }

    /// Refuses to plan past a daemon that is where one is expected and has not told. Anybody can make a socket
    /// elsewhere, and must not be able to hinder this.
    pub(super) fn must_be_known(&self) -> Result<(), Failure> {
        let is_at = |clause: &str, path: &PathBuf| clause.contains(&format!(" behind {} ", path.display()));
        let mut silent = self.silent().iter();
        let Some(clause) = silent.find(|clause| self.known.iter().any(|path| is_at(clause, path))) else {
            return Ok(());
        };
        let message = format!(
            "{clause}; where its receivers sit is unknown, so nothing was changed: see its log and \
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

    /// Where nobody can say whether the interrupts suit the receivers.
    pub(super) fn unknown(&self, interfaces: &[String]) -> Vec<Unknown> {
        let unknown = |why: &String| Unknown {
            interface: interfaces.join(", "),
            queue: None,
            what: "where a running udpd has its receivers".to_owned(),
            why: why.clone(),
            cure: "see its log and `systemctl status udpd`; run this as root or as the user of that udpd".to_owned(),
        };
        self.silent().iter().map(unknown).collect()
    }

    /// What a reader has to know of the plan, one line each.
    pub(super) fn notes(&self, interfaces: &[String]) -> String {
        let silent: String = self.silent().iter().map(|clause| format!("note: {clause}\n")).collect();
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
                "silent": self.neighbours.silent })
    }
}

/// Asks again while somebody hangs up.
fn until_heard(mut ask: impl FnMut() -> Neighbours) -> Neighbours {
    let mut attempt = || {
        let start = Instant::now();
        let found = ask();
        let is_final = found.silent.is_empty() || start.elapsed() > HANGS;
        (found, is_final)
    };
    let mut last = attempt();
    for _ in 1..ATTEMPTS {
        if last.1 {
            break;
        }
        last = attempt();
    }
    last.0
}

/// What the command is about, of the one plan for everything.
pub(super) fn planned(
    steering: &Steering<'_>,
    interfaces: &[String],
    wish: &Steer,
) -> Result<(Host, Plan), ApplyError> {
    of_command(steering, wish, interfaces).only(interfaces)
}

/// The request that gives these interfaces, planned without the others, the same part of the plan as with them.
pub(super) fn request_for(steering: &Steering<'_>, interfaces: &[String], wish: &Steer) -> Result<Request, ApplyError> {
    let request = steering.request.clone();
    if interfaces == wish.interfaces || wish.interfaces.is_empty() {
        return Ok(request);
    }
    let (_, plan) = planned(steering, interfaces, wish)?;
    let seats = plan.interfaces.iter().map(|part| (part.name.clone(), part.all_seats()));
    let seated = request.seated.clone().into_iter().chain(seats).collect();
    Ok(beside(request, seated))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_HOME: &str = "the process behind /run/udpd/control.sock does not tell its seats: timed out";
    const ELSEWHERE: &str = "the process behind /tmp/udpd.sock does not tell its seats: timed out";

    fn seated(silent: &[&str], taken: &[usize]) -> Seated {
        let silent = silent.iter().map(|&clause| clause.to_owned()).collect();
        Seated {
            request: Request { taken: taken.to_vec(), ..Request::default() },
            neighbours: Neighbours { daemons: Vec::new(), silent },
            known: vec![PathBuf::from("/run/udpd/control.sock")],
        }
    }

    #[test]
    fn a_silent_daemon_where_one_is_expected_is_not_planned_past_and_one_elsewhere_is() {
        let failure = seated(&[ELSEWHERE, AT_HOME], &[]).must_be_known().expect_err("it is there");
        assert_eq!(failure.code, ExitCode::Failure);
        assert!(failure.message.starts_with(AT_HOME) && failure.message.contains("nothing was changed"), "{failure}");
        assert!(seated(&[ELSEWHERE], &[]).must_be_known().is_ok());
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
        assert_eq!(unknown.iter().map(|one| one.why.as_str()).collect::<Vec<_>>(), [ELSEWHERE, AT_HOME]);
        assert_eq!(unknown[0].interface, "eth0, eth1");
        assert_eq!(seated(&[], &[]).unknown(&names), []);
    }

    #[test]
    fn one_that_hangs_up_is_asked_again_but_not_for_ever() {
        let mut asked = 0;
        let mut answer = |heard_at: u32| {
            asked = 0;
            until_heard(|| {
                asked += 1;
                let silent = if asked < heard_at { vec![AT_HOME.to_owned()] } else { Vec::new() };
                Neighbours { daemons: Vec::new(), silent }
            })
            .silent
            .len()
        };
        assert_eq!((answer(3), answer(9)), (0, 1));
        assert_eq!(asked, ATTEMPTS);
    }
}

//! The seats that running daemons have, for the commands: `status` compares the host with them, and `apply` puts
//! interrupts to suit. Where no daemon runs the plan is made as the next one will make it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use steer::model::Host;
use steer::plan::{Plan, Request};
use steer::{ApplyError, Steering};

use crate::config::{Config, Steer};
use crate::endpoint::control::{Neighbour, Neighbours, Search, default_paths};
use crate::exit::Failure;
use crate::plan;
use crate::plan::interfaces::{beside, of_command};
use crate::plan::neighbours::{cores, index_of, seated};

/// What the daemons of this host have told.
#[derive(Debug)]
pub(super) struct Seated {
    pub request: Request,
    neighbours: Neighbours,
}

impl Seated {
    /// Asks them. `config` is the file that the command was given.
    pub(super) fn ask(wish: &Steer, config: Option<&Config>, interfaces: &[String]) -> Result<Self, Failure> {
        let named: Vec<PathBuf> =
            config.and_then(|config| config.daemon.control_socket.value.clone()).into_iter().collect();
        let usual = default_paths();
        let neighbours = Search { named: &named, usual: &usual, except: None, proc_root: Path::new("/proc") }.ask();
        let receivers = config.map_or(Ok(Default::default()), plan::receivers)?;
        let request = Request { receivers, taken: cores(&neighbours), ..wish.request.clone() };
        let all: Vec<String> = wish.interfaces.iter().chain(interfaces).cloned().collect();
        let request = beside(request, seated(&all, index_of, &neighbours));
        Ok(Self { request, neighbours })
    }

    /// What a reader has to know of the plan, one line each.
    pub(super) fn notes(&self, interfaces: &[String]) -> String {
        let mut notes: Vec<String> = self.neighbours.silent.clone();
        let pids: Vec<String> = self.neighbours.daemons.iter().map(|daemon| daemon.seats.pid.to_string()).collect();
        let of_daemons: Vec<&str> =
            interfaces.iter().filter(|name| self.request.seated.contains_key(*name)).map(String::as_str).collect();
        match (pids.as_slice(), of_daemons.as_slice()) {
            ([], _) => {
                notes.push("no udpd runs here that told its seats; the next one to start takes these".to_owned());
            }
            (_, []) => notes.push(format!("udpd runs (process {}) and steers none of these", pids.join(", "))),
            (_, names) => notes.push(format!(
                "the receivers of {} are where the running udpd has them (process {})",
                names.join(", "),
                pids.join(", ")
            )),
        }
        notes.iter().map(|note| format!("note: {note}\n")).collect()
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

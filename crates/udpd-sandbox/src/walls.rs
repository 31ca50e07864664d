//! The sandbox of one daemon: which parts of it can be had here, and how a thread goes in.

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::paths::{self, Connects, Reach};
use super::{calls, capabilities};
use udpd_base::os::crew::{Confine, Crew};
use udpd_base::os::duty::Duty;

/// What holds the threads of a daemon.
#[derive(Debug)]
pub struct Sandbox {
    reaches: OnceLock<Reaches>,
    parts: Parts,
    /// What did not work for a thread although it had worked for another.
    refused: Mutex<Vec<String>>,
}

/// What the duties that open files may open. The others open none.
#[derive(Debug, Clone, Default)]
pub struct Reaches {
    pub main: Reach,
    pub windows: Reach,
    pub keepers: Reach,
    pub spillers: Reach,
    pub spilling_broker_clients: Reach,
    pub broker_clients: Reach,
    pub resolvers: Reach,
    pub watchdog: Reach,
    pub maker: Reach,
    /// Whether a reload may make rings.
    pub rings: bool,
}

/// Which parts can be had here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    capabilities: bool,
    landlock: bool,
    seccomp: bool,
}

impl Sandbox {
    /// Finds out on a thread of its own what of a sandbox can be had. Also tells what cannot, and why.
    pub fn prepare(crew: &Crew) -> io::Result<(Self, Vec<String>)> {
        let (parts, missing) = crew.spawn("udpd-trial", Duty::Free, Parts::find)?.join().expect("a trial never panics");
        Ok((Self { reaches: OnceLock::new(), parts, refused: Mutex::default() }, missing))
    }

    /// Says what may be opened, before the first thread goes in that opens anything.
    pub fn open_only(&self, reaches: Reaches) {
        self.reaches.set(reaches).expect("a configuration says it once");
    }

    /// What the thread may open that makes what a changed configuration needs; `None` where no paths are held to.
    pub fn reach_of_maker(&self) -> Option<&Reach> {
        self.reaches.get().filter(|_| self.parts.landlock).map(|reaches| &reaches.maker)
    }

    /// Where a thread that is started from now on may still connect by TCP.
    pub fn may_connect(&self) -> Connects {
        let Parts { landlock, seccomp, .. } = self.parts;
        let is_held = landlock || seccomp;
        self.reaches.get().filter(|_| is_held).map_or(Connects::Anywhere, |reaches| reaches.maker.connects)
    }

    /// Whether a thread that is started from now on may still make a ring.
    pub fn may_make_rings(&self) -> bool {
        !self.parts.seccomp || self.reaches.get().is_none_or(|reaches| reaches.rings)
    }

    /// What threads could not give up.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nothing, before it is said what.
    fn reach(&self, duty: Duty) -> Reach {
        self.reaches.get().and_then(|reaches| reaches.of(duty)).cloned().unwrap_or_default()
    }

    /// Gives up each part that can be had, whatever becomes of the others.
    fn give_up(&self, duties: &[Duty]) -> impl Iterator<Item = String> {
        let Parts { capabilities, landlock, seccomp } = self.parts;
        let reach = duties.first().map(|duty| self.reach(*duty)).unwrap_or_default();
        let outcomes = [
            capabilities.then(|| capabilities::give_up(duties)),
            landlock.then(|| paths::hold_to(&reach)),
            // The last, because it denies the calls that the others take.
            seccomp.then(|| calls::hold_to(duties)),
        ];
        outcomes.into_iter().flatten().filter_map(Result::err)
    }
}

impl Reaches {
    fn of(&self, duty: Duty) -> Option<&Reach> {
        match duty {
            Duty::Main => Some(&self.main),
            Duty::Window => Some(&self.windows),
            Duty::Keeper | Duty::Compressor => Some(&self.keepers),
            Duty::BrokerClient => Some(&self.broker_clients),
            Duty::SpillingUnixClient | Duty::SpillingRelay | Duty::SpillingSourceKeepingRelay => Some(&self.spillers),
            Duty::SpillingBrokerClient => Some(&self.spilling_broker_clients),
            Duty::Resolver => Some(&self.resolvers),
            Duty::Maker | Duty::BrokerMaker => Some(&self.maker),
            Duty::Watchdog => Some(&self.watchdog),
            _ => None,
        }
    }
}

impl Confine for Sandbox {
    fn confine(&self, duties: &[Duty]) {
        let who = || duties.iter().map(Duty::to_string).collect::<Vec<_>>().join(" and ");
        for why in self.give_up(duties) {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.push(format!("{}: {why}", who()));
        }
    }
}

impl Parts {
    /// Tries on the calling thread, which must end afterwards.
    fn find() -> (Self, Vec<String>) {
        let mut missing = Vec::new();
        let mut has = |outcome: Result<(), String>| outcome.map_err(|why| missing.push(why)).is_ok();
        let capabilities = has(capabilities::give_up(&[Duty::Receiver]));
        let landlock = has(paths::hold_to(&Reach::default()));
        let seccomp = has(calls::hold_to(&[Duty::Receiver]));
        (Self { capabilities, landlock, seccomp }, missing)
    }
}

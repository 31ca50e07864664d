//! The sandbox of one daemon: which parts of it this host has, and how a thread enters it.

use std::io;
use std::sync::{Mutex, OnceLock};

use super::paths::{self, AllowedPaths, Connects};
use super::{capabilities, system_calls};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::lock;
use udpd_base::os::threads::{ThreadRegistry, ThreadSandbox};

/// Restricts the threads of a daemon.
#[derive(Debug)]
pub struct Sandbox {
    path_rules: OnceLock<PathRules>,
    parts: SandboxParts,
    /// What failed for a thread although it had worked for another.
    refused: Mutex<Vec<String>>,
}

/// What the roles that open files may open. The others open none.
#[derive(Debug, Clone, Default)]
pub struct PathRules {
    pub main: AllowedPaths,
    pub endpoints: AllowedPaths,
    pub keepers: AllowedPaths,
    pub spillers: AllowedPaths,
    pub broker_clients: AllowedPaths,
    pub http_clients: AllowedPaths,
    pub uploaders: AllowedPaths,
    pub resolvers: AllowedPaths,
    pub watchdog: AllowedPaths,
    pub reloader: AllowedPaths,
    pub rings: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SandboxParts {
    capabilities: bool,
    landlock: bool,
    seccomp: bool,
}

impl Sandbox {
    /// Tries on a thread of its own which parts this host has. Also returns what it lacks, and why.
    pub fn prepare(registry: &ThreadRegistry) -> io::Result<(Self, Vec<String>)> {
        let (parts, missing) = registry
            .spawn("udpd-trial", ThreadRole::Unconfined, SandboxParts::find)?
            .join()
            .expect("a trial never panics");
        Ok((Self { path_rules: OnceLock::new(), parts, refused: Mutex::default() }, missing))
    }

    /// Sets what may be opened, before the first thread enters that opens anything.
    pub fn open_only(&self, path_rules: PathRules) {
        self.path_rules.set(path_rules).expect("the rules are set once");
    }

    /// What the thread of reloads may open; `None` where this host does not restrict paths.
    pub fn paths_of_reloader(&self) -> Option<&AllowedPaths> {
        self.path_rules.get().filter(|_| self.parts.landlock).map(|path_rules| &path_rules.reloader)
    }

    /// Where a thread that is started from now on may still connect by TCP.
    pub fn may_connect(&self) -> Connects {
        let SandboxParts { landlock, seccomp, .. } = self.parts;
        let is_held = landlock || seccomp;
        self.path_rules.get().filter(|_| is_held).map_or(Connects::Anywhere, |path_rules| path_rules.reloader.connects)
    }

    /// Whether a thread that is started from now on may still make a ring.
    pub fn may_make_rings(&self) -> bool {
        !self.parts.seccomp || self.path_rules.get().is_none_or(|path_rules| path_rules.rings)
    }

    /// What threads could not give up, and why.
    pub fn refused(&self) -> Vec<String> {
        lock(&self.refused).clone()
    }

    /// What these roles may open together; nothing before [`open_only`](Self::open_only). A receiver with an inline
    /// sink has a role of that sink as well. Such a sink has neither files nor a spill, so a receiver opens nothing.
    fn allowed_paths(&self, roles: &[ThreadRole]) -> AllowedPaths {
        let rules = self.path_rules.get();
        let of_roles = roles.iter().filter_map(|role| rules?.of(*role));
        // A destination may have any port, and a reload names others.
        let connects = if roles.contains(&ThreadRole::TcpClient) { Connects::Anywhere } else { Connects::default() };
        of_roles.fold(AllowedPaths { connects, ..AllowedPaths::default() }, |all, own| AllowedPaths {
            read: [&all.read[..], &own.read].concat(),
            write: [&all.write[..], &own.write].concat(),
            connects: all.connects.max(own.connects),
        })
    }

    /// Gives up what each part takes, also where another part fails.
    fn give_up(&self, roles: &[ThreadRole]) -> impl Iterator<Item = String> {
        let SandboxParts { capabilities, landlock, seccomp } = self.parts;
        let outcomes = [
            capabilities.then(|| capabilities::give_up(roles)),
            landlock.then(|| paths::restrict(&self.allowed_paths(roles))),
            // The last, because it denies the calls that the others take.
            seccomp.then(|| system_calls::restrict(roles)),
        ];
        outcomes.into_iter().flatten().filter_map(Result::err)
    }
}

impl PathRules {
    fn of(&self, role: ThreadRole) -> Option<&AllowedPaths> {
        match role {
            ThreadRole::Main => Some(&self.main),
            ThreadRole::Endpoint => Some(&self.endpoints),
            ThreadRole::FileKeeper | ThreadRole::Compressor => Some(&self.keepers),
            ThreadRole::BrokerClient => Some(&self.broker_clients),
            ThreadRole::HttpClient => Some(&self.http_clients),
            ThreadRole::Uploader => Some(&self.uploaders),
            ThreadRole::Spill => Some(&self.spillers),
            ThreadRole::Resolver => Some(&self.resolvers),
            ThreadRole::Reloader | ThreadRole::BrokerReloader => Some(&self.reloader),
            ThreadRole::Watchdog => Some(&self.watchdog),
            _ => None,
        }
    }
}

impl ThreadSandbox for Sandbox {
    fn enter(&self, roles: &[ThreadRole]) {
        let who = || roles.iter().map(ThreadRole::to_string).collect::<Vec<_>>().join(" and ");
        for why in self.give_up(roles) {
            let mut refused = lock(&self.refused);
            refused.push(format!("{}: {why}", who()));
        }
    }
}

impl SandboxParts {
    /// Tries on the calling thread, which must end afterwards.
    fn find() -> (Self, Vec<String>) {
        let mut missing = Vec::new();
        let mut has = |outcome: Result<(), String>| outcome.map_err(|why| missing.push(why)).is_ok();
        let capabilities = has(capabilities::give_up(&[ThreadRole::Receiver]));
        let landlock = has(paths::restrict(&AllowedPaths::default()));
        let seccomp = has(system_calls::restrict(&[ThreadRole::Receiver]));
        (Self { capabilities, landlock, seccomp }, missing)
    }
}

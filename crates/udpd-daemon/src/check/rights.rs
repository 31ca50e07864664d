//! What a start needs a right for, tried with those of this process: files that are read and written, directories, and
//! addresses. Nothing is made, changed or received. All that is missing is said at once.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::str::FromStr;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access, geteuid};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::user::{self, Account};
use udpd_base::sink::settings::SinkTarget;
use udpd_engine::config::{Config, SinkConfig};
use udpd_engine::plan::PipelinePlan;
use udpd_engine::plan::descriptors;
use udpd_engine::plan::memory_limits::MemoryLimits;
use udpd_sandbox::SandboxMode;

/// Below it a port takes a capability.
const FIRST_FREE_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// A capability that the service has besides its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability(CapabilitySet);

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_uppercase();
        let known = CapabilitySet::from_name(name.strip_prefix("CAP_").unwrap_or(&name));
        known.map(Self).ok_or_else(|| "no capability is called so; one is CAP_NET_BIND_SERVICE".to_owned())
    }
}

/// `--as USER`: becomes the user of this name or number before anything is read, with these capabilities and no others.
/// A process that is that user already goes on with what it has.
pub fn become_user(name: &str, capabilities: &[Capability]) -> Result<(), Failure> {
    let Some(account) = Account::of_name_or_number(name) else {
        let message = format!("cannot check as {name:?}: this host has no such user; name one of `getent passwd`");
        return Err(Failure::new(ExitCode::Usage, message));
    };
    if account.uid == geteuid() && capabilities.is_empty() {
        return Ok(());
    }
    if !geteuid().is_root() {
        let message = format!("cannot check as {name}: only root may become another user; run this with sudo");
        return Err(Failure::new(ExitCode::Permission, message));
    }
    let kept = capabilities.iter().fold(CapabilitySet::empty(), |all, one| all.union(one.0));
    user::become_user_with(&account, kept)
        .map_err(|why| Failure::new(ExitCode::Permission, format!("cannot check as {name}: {why}; run this as root")))
}

/// What was tried, and may be done.
#[derive(Debug, Serialize)]
pub(super) struct Rights {
    /// Whose they are.
    user: String,
    reads: usize,
    writes: usize,
    binds: usize,
    #[serde(skip)]
    missing: Vec<Failure>,
}

impl Rights {
    /// Tries all that a start with this configuration would need. `file` is the configuration.
    pub(super) fn try_all(config: &Config, plan: &PipelinePlan) -> Result<Self, Failure> {
        if config.daemon.sandbox != SandboxMode::Off {
            // As a daemon of root does before it opens a file.
            udpd_sandbox::give_up_files_of_others().map_err(|why| Failure::new(ExitCode::Permission, why))?;
        }
        let mut own = Self { user: user::own_name(), reads: 1, writes: 0, binds: 0, missing: Vec::new() };
        own.missing.extend(MemoryLimits::read(Path::new("/")).refuse_start(config, plan).err());
        own.missing.extend(descriptors::provide(config, plan).err());
        own.try_reads(config);
        own.try_writes(config, plan);
        own.try_addresses(config, plan);
        match own.missing.first() {
            None => Ok(own),
            Some(first) => {
                let lines: Vec<&str> = own.missing.iter().map(|failure| failure.message.as_str()).collect();
                Err(Failure::new(first.code, lines.join("\n")))
            }
        }
    }

    /// For who reads it.
    pub(super) fn text(&self) -> String {
        let Self { user, reads, writes, binds, .. } = self;
        format!("user {user}: may read {reads} files, write at {writes} places and bind {binds} addresses\n")
    }

    /// The configuration, its lists and the token have been read by now.
    fn try_reads(&mut self, config: &Config) {
        self.reads += config.listeners.iter().map(|listener| listener.access.files().count()).sum::<usize>();
        self.reads += usize::from(config.daemon.metrics_token_file.is_some());
        for sink in &config.sinks {
            for path in sink.settings.needs().reads {
                self.reads += 1;
                let what = format!("sink {}: cannot read {}", sink.name, path.display());
                self.judge(&what, &path, access(&path, AccessFlags::R_OK));
            }
        }
    }

    fn try_writes(&mut self, config: &Config, plan: &PipelinePlan) {
        let daemon = &config.daemon;
        if let Some(path) = daemon.control_socket.value.as_deref().filter(|_| daemon.control_socket.written) {
            self.try_directory("control_socket", path.parent());
        }
        if let Some(path) = &daemon.stats_on_exit {
            self.try_directory("stats_on_exit", path.parent());
        }
        if let Some((directory, _)) = daemon.kept_days() {
            self.try_directory("history", Some(&directory));
        }
        for (sink, planned) in config.sinks.iter().zip(&plan.sinks) {
            if let Some(spill) = sink.settings.spill() {
                self.try_directory(&format!("sink {}: spill", sink.name), Some(spill.path));
            }
            let SinkTarget::Files(path) = sink.settings.target() else { continue };
            let key = format!("sink {}", sink.name);
            for file in planned.files(&config.listeners, &sink.name, path) {
                let fixed = &file[..file.find(['%', '{']).unwrap_or(file.len())];
                let directory = Path::new(&fixed[..=fixed.rfind('/').unwrap_or(0)]);
                self.try_directory(&key, Some(directory));
                if fixed == file && fs::symlink_metadata(&file).is_ok() {
                    let what = format!("{key}: cannot append to {file}");
                    let outcome = access(file.as_str(), AccessFlags::R_OK | AccessFlags::W_OK);
                    self.judge(&what, Path::new(&file), outcome);
                }
            }
        }
    }

    /// A directory that is not there is made in the one that is.
    fn try_directory(&mut self, key: &str, directory: Option<&Path>) {
        self.writes += 1;
        let Some(directory) = directory else { return };
        let is_there =
            |path: &&Path| fs::metadata(path).map_or_else(|error| error.kind() != ErrorKind::NotFound, |_| true);
        let there = directory.ancestors().find(is_there).unwrap_or(Path::new("/"));
        let what = match there == directory {
            true => format!("{key}: cannot make files in {}", directory.display()),
            false => format!("{key}: cannot make {} in {}", directory.display(), there.display()),
        };
        let outcome = match fs::metadata(there) {
            Ok(found) if !found.is_dir() => Err(Errno::ENOTDIR),
            // A daemon that becomes a user makes its directories with a right of root.
            _ if user::become_by_now().is_some() && there != directory => Ok(()),
            _ => access(there, AccessFlags::W_OK | AccessFlags::X_OK),
        };
        self.judge(&what, there, outcome);
    }

    fn judge(&mut self, what: &str, path: &Path, outcome: nix::Result<()>) {
        let Err(errno) = outcome else { return };
        let (code, cure) = match errno {
            Errno::EROFS => (
                ExitCode::Disk,
                "it is read-only here: name it in ReadWritePaths= of the unit file, or write a path below \
                 /var/log/udpd or /var/lib/udpd"
                    .to_owned(),
            ),
            Errno::EACCES | Errno::EPERM => {
                let shown = path.display();
                (ExitCode::Permission, format!("`namei -l {shown}` shows the rights; give them to user {}", self.user))
            }
            _ => (ExitCode::Disk, "write another path".to_owned()),
        };
        self.missing.push(Failure::new(code, format!("{what} as user {}: {}; {cure}", self.user, errno.desc())));
    }

    fn try_addresses(&mut self, config: &Config, plan: &PipelinePlan) {
        let of_lanes: BTreeSet<(usize, SocketAddr)> =
            plan.lanes.iter().filter(|lane| lane.has_socket()).map(|lane| (lane.listener, lane.address)).collect();
        // An announced address of IPv4 can be bound before it is there.
        let is_announced = |address: SocketAddr| address.is_ipv4() && config.daemon.announce.contains(&address.ip());
        for (listener, address) in of_lanes.into_iter().filter(|(_, address)| !is_announced(*address)) {
            let key = format!("listener {}", config.listeners[listener].name);
            self.try_address(&key, address, UdpSocket::bind(with_any_port(address)).map(drop));
        }
        let metrics = &config.daemon.metrics_address;
        if let Some(address) = metrics.value.filter(|_| metrics.written) {
            self.try_address("metrics_address", address, TcpListener::bind(with_any_port(address)).map(drop));
        }
        if !config.daemon.announce.is_empty() && !has(CapabilitySet::NET_ADMIN) {
            let message = format!(
                "announce as user {} takes CAP_NET_ADMIN; in the unit file: AmbientCapabilities=CAP_NET_ADMIN, \
                 CapabilityBoundingSet=CAP_NET_ADMIN and SystemCallFilter=capset",
                self.user
            );
            self.missing.push(Failure::new(ExitCode::Permission, message));
        }
        let keeps_sources = |sink: &&SinkConfig| sink.settings.needs().roles.contains(&ThreadRole::SourceKeeper);
        for sink in config.sinks.iter().filter(keeps_sources) {
            if !has(CapabilitySet::NET_RAW) {
                let message = format!(
                    "sink {}: keep_source as user {} takes CAP_NET_RAW; in the unit file: \
                     AmbientCapabilities=CAP_NET_RAW, CapabilityBoundingSet=CAP_NET_RAW and SystemCallFilter=capset",
                    sink.name, self.user
                );
                self.missing.push(Failure::new(ExitCode::Permission, message));
            }
        }
    }

    /// The port itself is not tried, because what runs has it. The address is, at any free port.
    fn try_address(&mut self, key: &str, address: SocketAddr, bound: io::Result<()>) {
        self.binds += 1;
        let user = &self.user;
        if address.port() < first_free_port() && !has(CapabilitySet::NET_BIND_SERVICE) {
            let message = format!(
                "{key}: cannot bind {address} as user {user}: port {} takes CAP_NET_BIND_SERVICE; in the unit file: \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE, CapabilityBoundingSet=CAP_NET_BIND_SERVICE and \
                 SystemCallFilter=capset; or tell this check that the service has it, by --capability or by --unit",
                address.port()
            );
            self.missing.push(Failure::new(ExitCode::Permission, message));
        }
        if let Err(error) = bound {
            let message = format!("{key}: cannot bind {address} as user {user}: {error}; see `ip address`");
            self.missing.push(Failure::new(ExitCode::Unavailable, message));
        }
    }
}

fn with_any_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

fn first_free_port() -> u16 {
    fs::read_to_string(FIRST_FREE_PORT).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

fn has(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_by_its_name_with_the_prefix_and_without() {
        for text in ["CAP_NET_BIND_SERVICE", "cap_net_bind_service", "NET_BIND_SERVICE"] {
            assert_eq!(text.parse(), Ok(Capability(CapabilitySet::NET_BIND_SERVICE)), "{text}");
        }
        assert!("CAP_NET_BIND".parse::<Capability>().is_err() && "".parse::<Capability>().is_err());
    }

    #[test]
    fn a_user_that_is_not_there_is_a_mistake_on_the_command_line() {
        let failure = become_user("no-such-user", &[]).expect_err("there is none");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("no such user"), "{failure}");
        assert!(become_user(&geteuid().to_string(), &[]).is_ok(), "who is it already");
    }
}

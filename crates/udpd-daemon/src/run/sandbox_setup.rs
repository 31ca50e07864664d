//! The sandbox of a daemon: what its threads may open is worked out from the configuration, and whether what the kernel
//! lacks is a reason not to start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::daemon_user;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::os::user;
use udpd_base::os::user::Account;
use udpd_base::os::{threads, trusted_files};
use udpd_base::sink::settings::{Needs, SinkTarget};
use udpd_endpoint::control::BoundControlSocket;
use udpd_engine::config::{Config, EngineKind, ListenerConfig};
use udpd_engine::plan::PipelinePlan;
use udpd_file::make_directory;
use udpd_inspect::policy::KernelFilter;
use udpd_sandbox::privilege_helper;
use udpd_sandbox::privilege_helper::HelperOptions;
use udpd_sandbox::{AllowedPaths, Connects, PathRules, Sandbox, SandboxMode};

/// Where the kernel tells of itself, its sockets and its cards.
const OF_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Where the resolver, the C library and a library for certificates look.
const OF_LIBRARIES: [&str; 6] = ["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/var/lib/ca-certificates"];

/// What the resolver reads there.
const OF_THE_RESOLVER: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

/// The sandbox, or none, of a daemon that starts.
#[derive(Debug)]
pub(super) struct SandboxSetup {
    mode: SandboxMode,
    sandbox: Option<Arc<Sandbox>>,
    /// What the kernel lacks.
    missing: Vec<String>,
}

impl SandboxSetup {
    /// Finds out what can be had, before anything is opened.
    pub(super) fn prepare(mode: SandboxMode, registry: ThreadRegistry) -> Result<(Self, ThreadRegistry), Failure> {
        if mode == SandboxMode::Off {
            return Ok((Self { mode, sandbox: None, missing: Vec::new() }, registry));
        }
        let fail = |error| threads::start_failure("udpd-trial", &error);
        let (sandbox, missing) = Sandbox::prepare(&registry).map_err(fail)?;
        let own = Self { mode, sandbox: Some(Arc::new(sandbox)), missing };
        own.judge(&own.missing)?;
        let registry = registry.with_sandbox(own.sandbox.clone().expect("just made"));
        Ok((own, registry))
    }

    /// Where all of the sandbox is required, a missing part ends the start.
    fn judge(&self, missing: &[String]) -> Result<(), Failure> {
        if self.mode != SandboxMode::Require || missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the sandbox cannot be had, and sandbox = \"require\": {}; let this kernel or container have it, or write \
             sandbox = \"auto\"",
            missing.join("; ")
        );
        Err(Failure::new(ExitCode::Permission, message))
    }

    /// Sets what threads may open, and gives up what only root may, before the first file is opened.
    pub(super) fn begin(&self, config: &Config, plan: &PipelinePlan, file: Option<&Path>) -> Result<(), Failure> {
        let path_rules = path_rules(config, plan, file);
        let of_days = config.daemon.kept_days().map(|(directory, _)| directory);
        let directories: Vec<PathBuf> = path_rules.keepers.write.iter().cloned().chain(of_days).collect();
        // Where that fails, the sink says why it cannot begin.
        let make_directories = || directories.iter().for_each(|path| make_directory(path).unwrap_or_default());
        if user::become_by_now().is_some() {
            user::with_hands_of_root(|| {
                make_directories();
                config.daemon.control_socket.value.iter().for_each(|path| BoundControlSocket::make_directory_of(path));
            });
            daemon_user::look_ahead(config, file)?.iter().for_each(|why| log::warn!("a reload will be refused: {why}"));
        }
        let Some(sandbox) = &self.sandbox else {
            log::info!(
                "sandbox = \"off\": udpd keeps {}",
                user::become_by_now().map_or("all of its rights", |_| { "the capabilities that a start takes" })
            );
            return Ok(());
        };
        // A rule holds for a directory that is there.
        user::with_hands_of_root(|| make_spills(config))?;
        sandbox.open_only(path_rules);
        udpd_sandbox::give_up_files_of_others().or_else(|why| self.judge(&[why]))?;
        make_directories();
        Ok(())
    }

    /// Refuses the first ring.
    pub(super) fn refuse_rings(&self, config: &Config) -> Result<(), Failure> {
        match &self.sandbox {
            Some(sandbox) if has_rings(config) && !sandbox.may_make_rings() => {
                let message = "cannot make a ring: Permission denied, udpd was started without a listener with engine \
                               = \"io_uring\" and has given up what one needs";
                Err(Failure::new(ExitCode::Permission, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what no thread can open that starts from now on. The keys of `[daemon]` stay as they were `before`.
    pub(super) fn refuse_beyond(&self, config: &Config, plan: &PipelinePlan, before: &Config) -> Result<(), Failure> {
        let Some(sandbox) = &self.sandbox else { return Ok(()) };
        let config = Config { daemon: before.daemon.clone(), ..config.clone() };
        let wanted = path_rules(&config, plan, None).reloader;
        if wanted.connects > sandbox.may_connect() {
            let message = "cannot look up a name or connect to a broker: Permission denied, udpd was started without a \
                           sink that does and has given up what one needs";
            return Err(Failure::new(ExitCode::Permission, message));
        }
        let Some(open) = sandbox.paths_of_reloader() else { return Ok(()) };
        let is_below = |path: &PathBuf, open: &[PathBuf]| open.iter().any(|open| path.starts_with(open));
        let beyond = wanted.write.iter().find(|path| !is_below(path, &open.write));
        let beyond = beyond.or_else(|| wanted.read.iter().find(|path| !is_below(path, &open.read)));
        beyond.map_or(Ok(()), |path| {
            let message = format!(
                "cannot open {}: Permission denied, it is outside of what the sandbox lets this process open",
                path.display()
            );
            Err(Failure::new(ExitCode::Permission, message))
        })
    }

    /// Takes the main thread into the sandbox, after all others.
    pub(super) fn complete(&self, registry: &ThreadRegistry) -> Result<(), Failure> {
        let Some(sandbox) = &self.sandbox else { return Ok(()) };
        registry.close_sandbox();
        let missing: Vec<String> = self.missing.iter().cloned().chain(sandbox.refused()).collect();
        self.judge(&missing)?;
        if !missing.is_empty() {
            log::warn!("running with less of a sandbox: {}; docs/sandbox.md says what that means", missing.join("; "));
        }
        Ok(())
    }

    /// A start that failed for want of a right that root has outside.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let is_denied = failure.message.contains("Permission denied");
        if let Some(name) = user::become_by_now().filter(|_| is_denied) {
            let message = format!(
                "{}; udpd has become user {name} before it opened anything: let that user have it (chown {name}, or a \
                 group of it), name another one, or write user = \"root\"",
                failure.message
            );
            return Failure::new(failure.code, message);
        }
        if self.sandbox.is_none() || !is_denied || !nix::unistd::geteuid().is_root() {
            return failure;
        }
        let hint = "inside the sandbox root has no rights over the files of others: run udpd as their owner, or write \
                    sandbox = \"off\"";
        Failure::new(failure.code, format!("{}; {hint}", failure.message))
    }

    /// A reload that failed for want of a right that a start has. Granting the right helps a start only.
    pub(super) fn explain_reload(&self, failure: Failure) -> Failure {
        let is_denied = failure.code == ExitCode::Permission || failure.message.contains("Permission denied");
        if self.sandbox.is_none() || !is_denied {
            return failure;
        }
        let hint = "and a reload has only those rights and paths that the sandbox has left since the start: where a \
                    start may do this, restart udpd (its service manager keeps the sockets)";
        Failure::new(failure.code, format!("{}; {hint}", failure.message))
    }
}

fn make_spills(config: &Config) -> Result<(), Failure> {
    for path in config.sinks.iter().filter_map(|sink| Some(sink.settings.spill()?.path)) {
        trusted_files::make_directory(path).map_err(|error| match trusted_files::is_refusal(&error) {
            true => Failure::new(ExitCode::Permission, format!("cannot use the spill {}: {error}", path.display())),
            false => {
                let message = format!("cannot make the spill {}: {error}; see to its directory", path.display());
                Failure::new(ExitCode::Disk, message)
            }
        })?;
    }
    Ok(())
}

/// Starts the privilege helper, where there are rights to keep, and tells it what it may make.
pub(super) fn start_privilege_helper(config: &Config, account: Option<&Account>) -> io::Result<()> {
    let announce = &config.daemon.announce;
    let is_needed = config.daemon.sandbox != SandboxMode::Off || !announce.is_empty();
    let Some(role) = role_of_helper(config).filter(|_| is_needed) else { return Ok(()) };
    let queues = config.listeners.iter().any(ListenerConfig::is_past_the_stack);
    let options = HelperOptions { filters: role == ThreadRole::FilterHelper, queues };
    privilege_helper::start(options, (announce, &config.daemon.announce_interface), account)
}

/// What the threads of this daemon may open.
pub(crate) fn path_rules(config: &Config, plan: &PipelinePlan, file: Option<&Path>) -> PathRules {
    let daemon = &config.daemon;
    let beside = |path: Option<&Path>| path.and_then(Path::parent).map(Path::to_owned);
    // The kernel judges the file that a link leads to.
    let with_behind_link = |path: Option<&Path>| {
        let behind = path.and_then(|path| path.canonicalize().ok());
        [beside(path), beside(behind.as_deref())].into_iter().flatten()
    };
    let own_file = with_behind_link(file);
    let kernel = || OF_THE_KERNEL.map(PathBuf::from).to_vec();
    let own = [daemon.control_socket.value.as_deref(), daemon.stats_on_exit.as_deref()];
    let main =
        AllowedPaths { read: kernel(), write: own.into_iter().filter_map(beside).collect(), ..AllowedPaths::default() };
    let token = with_behind_link(daemon.metrics_token_file.as_deref());
    let endpoints = AllowedPaths { read: kernel().into_iter().chain(token).collect(), ..AllowedPaths::default() };
    let lists = config.listeners.iter().flat_map(|listener| listener.access.files());
    let lists = lists.flat_map(|path| with_behind_link(Some(path)));
    let mut keepers = AllowedPaths::default();
    // A manager of networks makes links of these.
    let of_the_resolver = OF_THE_RESOLVER.iter().flat_map(|path| with_behind_link(Some(Path::new(path))));
    let of_libraries = OF_LIBRARIES.map(PathBuf::from).into_iter().chain(kernel()).chain(of_the_resolver);
    let resolvers = AllowedPaths { read: of_libraries.collect(), write: Vec::new(), connects: Connects::Names };
    let mut broker_clients = AllowedPaths { connects: Connects::Anywhere, ..resolvers.clone() };
    let mut http_clients = AllowedPaths { connects: Connects::Anywhere, ..AllowedPaths::default() };
    let mut uploaders = http_clients.clone();
    let mut spillers = AllowedPaths::default();
    for (sink, planned) in config.sinks.iter().zip(&plan.sinks) {
        let needs = sink.settings.needs();
        if needs.roles.contains(&ThreadRole::HttpClient) {
            http_clients.read.extend(needs.reads.iter().cloned());
        }
        let first_own = keepers.write.len();
        if let SinkTarget::Files(path) = sink.settings.target() {
            keepers.write.push(fixed_directory(path));
            let files = planned.files(&config.listeners, &sink.name, path);
            keepers.write.extend(files.iter().filter_map(|file| directory_behind_link(file.as_ref())));
        }
        if needs.uploads {
            uploaders.read.extend(needs.reads.iter().chain(&keepers.write[first_own..]).cloned());
        }
        broker_clients.read.extend(needs.reads);
        spillers.write.extend(sink.settings.spill().map(|spill| spill.path.to_owned()));
    }
    keepers.write.sort();
    keepers.write.dedup();
    let connects = connects(config);
    let of_brokers = broker_clients.read.iter().filter(|_| connects > Connects::Nowhere);
    let reloader = AllowedPaths {
        read: endpoints.read.iter().chain(of_brokers).cloned().chain(own_file).chain(lists).collect(),
        write: keepers.write.iter().chain(&spillers.write).cloned().collect(),
        connects,
    };
    let watchdog = AllowedPaths { read: kernel(), ..AllowedPaths::default() };
    let rings = has_rings(config);
    PathRules {
        main,
        endpoints,
        keepers,
        spillers,
        broker_clients,
        http_clients,
        uploaders,
        resolvers,
        watchdog,
        reloader,
        rings,
    }
}

fn has_rings(config: &Config) -> bool {
    config.listeners.iter().any(|listener| listener.engine == Some(EngineKind::IoUring))
}

/// Where threads connect by TCP, here or in a library.
fn connects(config: &Config) -> Connects {
    let of_sink = |needs: Needs| match needs.connects_to_hosts() {
        true => Connects::Anywhere,
        false if needs.names => Connects::Names,
        false => Connects::Nowhere,
    };
    config.sinks.iter().map(|sink| of_sink(sink.settings.needs())).max().unwrap_or_default()
}

/// The roles of the thread that makes what a changed configuration needs.
pub(super) fn roles_of_reloader(config: &Config) -> Vec<ThreadRole> {
    let connects = connects(config) > Connects::Nowhere;
    let main = if connects { ThreadRole::BrokerReloader } else { ThreadRole::Reloader };
    [main].into_iter().chain(has_rings(config).then_some(ThreadRole::RingReloader)).collect()
}

/// What the process beside the daemon is there for; `None` where there is no right for it to keep.
fn role_of_helper(config: &Config) -> Option<ThreadRole> {
    let has_filter = |listener: &ListenerConfig| listener.access.kernel_filter != KernelFilter::Off;
    let role =
        if config.listeners.iter().any(has_filter) { ThreadRole::FilterHelper } else { ThreadRole::PrivilegeHelper };
    udpd_sandbox::has_rights_of(role).then_some(role)
}

/// What the threads of this daemon are there for, each once.
pub(crate) fn roles(config: &Config) -> Vec<ThreadRole> {
    let is_used = |role: &ThreadRole| match role {
        ThreadRole::PrivilegeHelper | ThreadRole::FilterHelper => role_of_helper(config) == Some(*role),
        ThreadRole::RingReceiver => has_rings(config),
        ThreadRole::XdpReceiver => config.listeners.iter().any(ListenerConfig::is_past_the_stack),
        ThreadRole::Reloader | ThreadRole::BrokerReloader | ThreadRole::RingReloader => {
            roles_of_reloader(config).contains(role)
        }
        ThreadRole::Uploader => config.sinks.iter().any(|sink| sink.settings.needs().uploads),
        ThreadRole::Resolver => config.sinks.iter().any(|sink| sink.settings.needs().names),
        ThreadRole::Compressor => config.sinks.iter().any(|sink| sink.settings.compression_bytes() > 0),
        ThreadRole::SequenceFollower => config.listeners.iter().any(|listener| listener.sequence.is_some()),
        ThreadRole::Announcer => !config.daemon.announce.is_empty() && udpd_sandbox::has_rights_of(*role),
        ThreadRole::Health => config.daemon.health_address.or(config.daemon.health_connect_address).is_some(),
        ThreadRole::HistoryWriter => config.daemon.kept_days().is_some(),
        ThreadRole::FileKeeper => {
            config.sinks.iter().any(|sink| matches!(sink.settings.target(), SinkTarget::Files(_)))
        }
        ThreadRole::Writer
        | ThreadRole::UnixClient
        | ThreadRole::Relay
        | ThreadRole::TcpClient
        | ThreadRole::HttpClient
        | ThreadRole::SourceKeeper
        | ThreadRole::BrokerClient
        | ThreadRole::Spill => config.sinks.iter().any(|sink| sink.settings.needs().roles.contains(role)),
        _ => true,
    };
    ThreadRole::CONFINED.into_iter().filter(is_used).collect()
}

/// Where the files of a path are: below the deepest directory that is the same at every moment, for every datagram, and
/// for every listener and lane that a reload may add.
fn fixed_directory(path: &str) -> PathBuf {
    let before_code = &path[..path.find(['%', '{']).unwrap_or(path.len())];
    PathBuf::from(before_code.rfind('/').map_or("/", |slash| &path[..=slash]))
}

fn directory_behind_link(file: &Path) -> Option<PathBuf> {
    file.canonicalize().ok().and_then(|file| file.parent().map(Path::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_below_what_no_clock_and_no_reload_names() {
        assert_eq!(fixed_directory("/a.log"), PathBuf::from("/"));
        for below in ["a.log", "%Y/%m/a.log", "{source}/%Y.log", "{listener}/a.log", "a-%Y.log", "a-{lane}/b.log"] {
            assert_eq!(fixed_directory(&format!("/log/{below}")), PathBuf::from("/log/"), "{below}");
        }
    }
}

//! `[daemon]`: the settings of the process itself.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use udpd_base::logging::LogFormat;
use udpd_base::os::user;
use udpd_base::os::user::WantedUser;
use udpd_base::os::{path_check, runtime};
use udpd_base::settings::kinds::{ByteSize, Choose, Chosen, List, OneOf, Optional, Or, QuotedText, TimeSpan};
use udpd_base::settings::{Field, Findings, ValueKind, settings};
use udpd_base::text::address;
use udpd_base::text::advice::ValueAdvice;
use udpd_endpoint::metrics::DAYS_MAX;
use udpd_sandbox::SandboxMode;

fn interface_name(name: &str) -> Result<String, ValueAdvice> {
    match name.len() {
        1..=15 => Ok(name.to_owned()),
        _ => Err(ValueAdvice::new(format!("{name:?} names no interface"), "write 1 to 15 bytes, such as \"lo\"")),
    }
}

settings! {
    /// `[daemon]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DaemonConfig {
        /// The Unix socket that answers `udpd stats`, `udpd reload` and `udpd reopen`. "" = none.
        control_socket: Chosen<Option<PathBuf>> = "/run/udpd/control.sock", ControlSocketPath;
        /// The address that Prometheus scrapes, with a page for browsers. "" = off.
        metrics_address: Chosen<Option<SocketAddr>> = "127.0.0.1:9817", Choose(Optional(address::parse_metrics)),
            elsewhere "metrics";
        /// A file with the token that metrics and page ask for. "" = they ask for none.
        metrics_token_file: Option<PathBuf> = "" like "/etc/udpd/metrics.token", Optional(path_check::check_file);
        /// The address where balancers and Kubernetes ask by HTTP whether to send here, without a token: `/ready` and
        /// `/live`. "" = none.
        health_address: Option<SocketAddr> = "" like "0.0.0.0:9818", Optional(address::parse_health);
        /// An address for balancers that can only connect: connections are accepted while udpd is ready and refused
        /// while it is not. "" = none.
        health_connect_address: Option<SocketAddr> = "" like "0.0.0.0:9819", Optional(address::parse_health);
        /// How long udpd receives on after SIGTERM, not ready, before it ends: a balancer sends on for a while. "0s" =
        /// not at all.
        drain: Duration = "0s" like "30s", TimeSpan(Duration::ZERO..=DRAIN_MAX);
        /// A drain that is to end ends early when nothing has come for so long.
        drain_quiet: Duration = "5s", TimeSpan(Duration::from_millis(100)..=DRAIN_MAX);
        /// Service addresses that are on an interface while udpd is ready, and not while it is not, so that a routing
        /// daemon of this host announces them. Takes CAP_NET_ADMIN.
        announce: Vec<IpAddr> = [] like ["192.0.2.53/32"], List(service_address);
        /// The interface that they are put on.
        announce_interface: String = "lo", QuotedText(interface_name);
        /// How many days the page shows beside the hour, "1d" to "31d": kept in a file of fixed length in the state
        /// directory, a minute in each point. "" = the hour only.
        history: Option<u32> = "" like "7d", Optional(days);
        /// The least severe lines in the log.
        log_level: log::LevelFilter = "info", OneOf(LOG_LEVELS), elsewhere "loglevel";
        /// How a line of the log looks.
        log_format: LogFormat = "text", OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);
        /// Where the final ledger goes as JSON when the daemon ends. "" = nowhere.
        stats_on_exit: Option<PathBuf> = "" like "/var/lib/udpd/ledger.json", Optional(path_check::check_replaced);
        /// What udpd gives up once it runs: capabilities, system calls and paths. With "require" it does not start
        /// where the kernel lacks a part.
        sandbox: SandboxMode = "auto", OneOf(SANDBOX_MODES);
        /// The user that udpd becomes before it opens or binds anything, where root starts it. "auto" = the user udpd,
        /// if there is one; "root" = udpd stays root.
        user: WantedUser = "auto" like "root", QuotedText(check_user);
        /// The memory for datagrams: what all lanes receive into, and what waits for all sinks.
        pool_bytes: Option<usize> = "auto", Or(&[("auto", None)], ByteSize(POOL), Some);
    }
}

/// Less would not hold the batches of one lane. How much all lanes need is for the plan to say.
const POOL: std::ops::RangeInclusive<u64> = 1 << 20..=1024 << 30;

/// Longer than any balancer sends on.
const DRAIN_MAX: Duration = Duration::from_secs(3600);

const SANDBOX_MODES: &[(&str, SandboxMode)] =
    &[("auto", SandboxMode::Auto), ("require", SandboxMode::Require), ("off", SandboxMode::Off)];

const LOG_LEVELS: &[(&str, log::LevelFilter)] = &[
    ("error", log::LevelFilter::Error),
    ("warn", log::LevelFilter::Warn),
    ("info", log::LevelFilter::Info),
    ("debug", log::LevelFilter::Debug),
];

fn days(text: &str) -> Result<u32, ValueAdvice> {
    let days = text.strip_suffix('d').and_then(|number| number.parse().ok());
    days.filter(|days| (1..=DAYS_MAX).contains(days)).ok_or_else(|| {
        let what = format!("{text:?} is no number of days from 1 to {DAYS_MAX}");
        ValueAdvice::new(what, "write a whole number with d, such as \"7d\", or \"\" for the hour only")
    })
}

/// An address that a host has in common with others, alone or with the length of its prefix.
fn service_address(text: &str) -> Result<IpAddr, ValueAdvice> {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let right = "write an address of its own, such as \"192.0.2.53/32\" or \"2001:db8::53/128\"";
    let wrong = |what: String| ValueAdvice::new(what, right);
    let address: IpAddr = address.parse().map_err(|_| wrong(format!("{text:?} is no IP address")))?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    if text.contains('/') && length != whole {
        return Err(wrong(format!(
            "{text:?} is a network, and this host would seek all others of it on the interface"
        )));
    }
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        return Err(wrong(format!("{text:?} is no address that a router can send to one host")));
    }
    Ok(address)
}

impl DaemonConfig {
    /// Where days of history are, with how many there are to be; `None` where none are kept: nothing shows them without
    /// metrics_address.
    pub fn kept_days(&self) -> Option<(PathBuf, u32)> {
        self.history
            .filter(|_| self.metrics_address.value.is_some())
            .zip(runtime::state_directory())
            .map(|(days, path)| (path, days))
    }
}

/// A possible name of a user. Whether the host has that user is checked elsewhere.
fn check_user(text: &str) -> Result<WantedUser, ValueAdvice> {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control() || matches!(letter, ':' | '/');
    match text {
        "auto" => Ok(WantedUser::Auto),
        "" => Err(ValueAdvice::new("\"\" is no user", "write \"auto\", or the name of a user of this host")),
        _ if text.contains(is_odd) || text.starts_with('-') || text.len() > 32 => {
            let what = format!("{text:?} cannot be the name of a user");
            Err(ValueAdvice::new(what, "write a name that \"getent passwd\" shows in front of the first colon"))
        }
        _ => Ok(WantedUser::Named(text.to_owned())),
    }
}

/// The path of the control socket, whose default depends on the user that runs the daemon.
struct ControlSocketPath;

impl ValueKind<Chosen<Option<PathBuf>>> for ControlSocketPath {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Chosen<Option<PathBuf>>> {
        let packaged = Choose(Optional(path_check::check_socket)).read(field, findings)?;
        Some(if field.written { packaged } else { Chosen { value: own_socket(packaged.value), written: false } })
    }
}

/// The control socket where the file names none: in the directory that systemd gave to the unit, or `packaged` (under
/// /run) for root, or in the first runtime directory that an ordinary user has.
fn own_socket(packaged: Option<PathBuf>) -> Option<PathBuf> {
    // systemd separates several directories with colons; the first is the one of the unit's own name.
    let of_unit = std::env::var_os("RUNTIME_DIRECTORY");
    let of_unit = of_unit.as_ref().and_then(|value| value.to_str()?.split(':').next());
    if let Some(own) = of_unit.filter(|path| path.starts_with('/')) {
        return Some(PathBuf::from(own).join("control.sock"));
    }
    // A process that has become another user still was root when it chose the path, also at a reload.
    if user::is_or_was_root() {
        return packaged;
    }
    runtime::directories().first().map(|directory| directory.join("control.sock"))
}

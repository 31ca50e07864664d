//! `udpd explain`: which layer of this host loses datagrams, why, and the exact command or key that cures it; with and
//! without a running daemon, and for the sockets of other programs.
//!
//! `watch` takes readings for some seconds and makes plain `evidence` of them. Each of the `cases` looks at that
//! alone and finds something or not, so each is tested from evidence. `finding` puts what they found in order and
//! prints it, `sysctl_dropin` prints the sysctls of it, and `tune` what fits a rate. docs/explain.md has the table of
//! cases.

mod cases;
mod evidence;
mod finding;
mod sysctl_dropin;
mod tune;
mod watch;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use self::finding::ExplainReport;
use self::finding::Finding;
use self::tune::Goal;
use self::watch::{WatchResult, WatchTarget};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::console;
use udpd_engine::config::{Config, HostView};
use udpd_engine::plan;

#[derive(Debug, clap::Args)]
pub struct ExplainArguments {
    /// Print JSON
    #[arg(long, conflicts_with = "sysctl")]
    pub json: bool,
    /// How long to watch
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Look at this port, whatever program listens on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Look at this network interface alone
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Print a file for /etc/sysctl.d with values computed for this host instead
    #[arg(long)]
    pub sysctl: bool,
    /// Print the commands and keys that fit this host and a rate instead, each with its reason; changes nothing
    #[arg(long, conflicts_with_all = ["json", "sysctl"])]
    pub tune: bool,
    /// Datagrams a second, with --tune [default: twice what comes meanwhile]
    #[arg(long, value_name = "N", requires = "tune", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Where they come, with --tune [default: the port, or that of the running udpd]
    #[arg(long, value_name = "A", requires = "tune")]
    pub address: Option<SocketAddr>,
    /// Watch as long as --seconds says, and print what is lost now, with --tune
    #[arg(long, requires = "tune")]
    pub measure: bool,
}

#[allow(missing_debug_implementations, reason = "it has a function")]
pub struct DaemonAccess<'a> {
    pub config: Option<&'a Config>,
    pub config_path: Option<&'a Path>,
    pub ask: &'a dyn Fn() -> Result<Snapshot, Failure>,
    /// The daemon was named, so it has to answer.
    pub is_named: bool,
}

pub fn execute(arguments: &ExplainArguments, daemon: &DaemonAccess<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let DaemonAccess { config, config_path, ask, is_named } = *daemon;
    let target = WatchTarget {
        port: arguments.port,
        interface: arguments.interface.as_deref(),
        // What is set is read at once; only a rate that is not named has to be seen.
        duration: match arguments.tune && arguments.rate.is_some() && !arguments.measure {
            true => Duration::from_millis(100),
            false => Duration::from_secs(arguments.seconds),
        },
        config,
        config_path,
        ask,
        is_named,
    };
    let WatchResult { evidence, subject } = watch::watch(&target)?;
    let findings = cases::diagnose(&evidence);
    if arguments.tune {
        let goal = Goal::new(arguments.rate, arguments.address, &evidence);
        let cores = evidence.cores.len().max(1);
        let toml = goal.toml(cores, tune::card(&evidence));
        let tuned = Config::parse(&toml, "--tune", &HostView::default())
            .map_err(|problems| Failure::new(ExitCode::Usage, problems.to_string()))?;
        let plan = plan::make(&tuned, &plan::neighbours(None))?;
        let mut text = tune::render(&evidence, &goal, cores, &plan);
        if arguments.measure {
            text += &tune::measured(&evidence, findings.iter().map(|finding| finding.lost).sum());
        }
        return console::print(out, &text);
    }
    if arguments.sysctl {
        let plan =
            |config: &Config| plan::make(config, &plan::neighbours(config.daemon.control_socket.value.as_deref()));
        let lanes = config.map(plan).transpose()?.map(|plan| plan.lanes);
        return console::print(out, &sysctl_dropin::render(&evidence, &findings, lanes.as_deref()));
    }
    let report =
        ExplainReport { seconds: evidence.seconds, findings: &findings, unseen: &evidence.unseen, subject: &subject };
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&report.json()).unwrap_or_default() + "\n",
        false => report.text(),
    };
    console::print(out, &text)?;
    match findings.first().filter(|finding| finding.lost > 0) {
        None => Ok(()),
        Some(worst) => {
            let Finding { layer, subject, lost, unit, .. } = worst;
            let message =
                format!("this host lost datagrams; the most at: {} ({subject}), {lost} {unit}", layer.words());
            Err(Failure::new(ExitCode::Loss, message))
        }
    }
}

//! `udpd explain`: which layer of this host loses datagrams, why, and the exact command or key that cures it; with and
//! without a running daemon, and for the sockets of other programs.
//!
//! `watch` takes readings for some seconds and makes plain `evidence` of them. Each of the `cases` looks at that
//! alone and finds something or not, so each is tested from evidence. `finding` puts what they found in order, and
//! `show` and `sysctl_dropin` print it. docs/explain.md has the table of cases.

mod cases;
mod evidence;
mod finding;
mod sysctl_dropin;
mod watch;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use self::finding::ExplainReport;
use self::finding::Finding;
use self::watch::{WatchResult, WatchTarget};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::console;
use udpd_engine::config::Config;
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
        duration: Duration::from_secs(arguments.seconds),
        config,
        config_path,
        ask,
        is_named,
    };
    let WatchResult { evidence, subject } = watch::watch(&target)?;
    if arguments.sysctl {
        let lanes = match config {
            Some(config) => plan::make(config, &plan::neighbours(config.daemon.control_socket.value.as_deref()))?.lanes,
            None => Vec::new(),
        };
        return console::print(out, &sysctl_dropin::render(&evidence, config, &lanes));
    }
    let findings = cases::diagnose(&evidence);
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

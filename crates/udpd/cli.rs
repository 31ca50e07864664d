//! The command line: what the operator typed, turned into one call. Help texts have an example each.

use std::io;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config::Config;
use crate::exit::Failure;
use crate::{check, run, stats};

/// Where the configuration is when nobody says otherwise.
const CONFIG_PATH: &str = "/etc/udpd/udpd.toml";

/// The front door for UDP on a Linux host.
#[derive(Debug, Parser)]
#[command(
    name = "udpd",
    version,
    about = "Receives UDP at a million datagrams a second and accounts for every one of them",
    after_help = "Example: udpd run --listen 127.0.0.1:5140 --to stdout:"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Receive datagrams and deliver them, until SIGTERM or SIGINT
    #[command(
        after_help = "Examples:\n  udpd run -c /etc/udpd/udpd.toml\n  udpd run --listen 0.0.0.0:5140 --to file:/tmp/syslog.log --stats-on-exit /tmp/ledger.json"
    )]
    Run {
        /// The configuration file [default: /etc/udpd/udpd.toml]
        #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG", conflicts_with_all = ["listen", "to"])]
        config: Option<PathBuf>,
        /// Listen here, without a configuration file
        #[arg(long, value_name = "ADDR", requires = "to")]
        listen: Option<String>,
        /// Deliver there: null:  stdout:  file:PATH
        #[arg(long, value_name = "URI", requires = "listen")]
        to: Option<String>,
        /// How many lanes, with --listen
        #[arg(long, value_name = "N", requires = "listen")]
        lanes: Option<usize>,
        /// Write the final ledger to this file as JSON, with --listen
        #[arg(long, value_name = "FILE", requires = "listen")]
        stats_on_exit: Option<PathBuf>,
    },
    /// Validate a configuration and print the lanes, memory and buffers it would use; changes nothing
    #[command(after_help = "Example: udpd check -c /etc/udpd/udpd.toml")]
    Check {
        /// The configuration file [default: /etc/udpd/udpd.toml]
        #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print one snapshot of the running daemon's ledger
    #[command(after_help = "Example: udpd stats --json | jq '.listeners[].residual'")]
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The daemon's control socket
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
}

/// Runs the command.
pub fn execute(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Run { listen: Some(listen), to: Some(to), lanes, stats_on_exit, .. } => {
            run::execute(&Config::from_arguments(&listen, &to, lanes, stats_on_exit)?)
        }
        Command::Run { config, .. } => run::execute(&load(config)?),
        Command::Check { config, json } => check::execute(&load(config)?, json, &mut io::stdout().lock()),
        Command::Stats { json, socket } => stats::execute(socket, json, &mut io::stdout().lock()),
    }
}

fn load(path: Option<PathBuf>) -> Result<Config, Failure> {
    match path {
        Some(path) => Config::load(&path),
        None => {
            let path = PathBuf::from(CONFIG_PATH);
            if !path.exists() {
                return Err(check::no_configuration(&path));
            }
            Config::load(&path)
        }
    }
}

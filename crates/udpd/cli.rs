//! The command line: what the operator typed, turned into one call. Help texts have an example each.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::steer::Export;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Format;
use udpd_base::format::prefix::LinePrefix;
use udpd_base::os::console;
use udpd_base::text::units;
use udpd_bench::{ladder, max, recv, send};
use udpd_daemon::{check, privilege_helper, run};
use udpd_endpoint::control;
use udpd_endpoint::control::{Connection, DrainCommand};
use udpd_engine::config;
use udpd_engine::config::{Config, HostView, Lists, MayCome};
use udpd_sandbox::privilege_helper::HelperOptions;
use udpd_tools::steer;
use udpd_tools::steer::{SteerAction, SteerTask};
use udpd_tools::{explain, man, replay, stats, top};

/// Where the configuration is when no option says otherwise.
const CONFIG_PATH: &str = "/etc/udpd/udpd.toml";

/// The front door for UDP on a Linux host.
#[derive(Debug, Parser)]
#[command(
    name = "udpd",
    version,
    about = "Receives UDP at a million datagrams a second and accounts for every one of them",
    after_help = "Example: udpd run --listen 127.0.0.1:5140 --to stdout:"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Receive datagrams and deliver them, until SIGTERM or SIGINT
    #[command(after_help = "Examples:\n\
                      \x20 udpd run -c /etc/udpd/udpd.toml\n\
                      \x20 udpd run --listen 0.0.0.0:5140 --to file:/tmp/syslog.log --stats-on-exit /tmp/ledger.json\n\
                      \x20 udpd run --listen 0.0.0.0:2055 --to udp:10.0.0.9:2055 --to pcapng:/tmp/flows.pcapng\n\
                      \x20 udpd run --listen 0.0.0.0:5140 --max-length 9KiB --to pcapng:- | tshark -r -\n\
                      \x20 udpd run -c /etc/udpd/udpd.toml --take-over")]
    Run {
        /// The configuration file [default: /etc/udpd/udpd.toml]
        #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG", conflicts_with_all = ["listen", "to"])]
        config: Option<PathBuf>,
        /// Listen here, without a configuration file
        #[arg(long, value_name = "ADDR", requires = "to")]
        listen: Option<String>,
        #[arg(long, value_name = "URI", requires = "listen",
              help = format!("Deliver to; several times for several: {}", config::to_forms()))]
        to: Vec<String>,
        /// How file: and stdout: are written [default: lines]
        #[arg(long, value_name = "FORMAT", requires = "listen", value_parser = Format::WORDS.map(|(word, _)| word))]
        format: Option<String>,
        /// What stands in front of each line of file: and stdout:
        #[arg(long, value_name = "PARTS", requires = "listen", default_value = "", hide_default_value = true,
              value_parser = LinePrefix::WORDS.map(|(word, _)| word))]
        prefix: String,
        /// The longest payload that is kept whole, with --listen, such as 9KiB [default: 2KiB]
        #[arg(long, value_name = "SIZE", requires = "listen")]
        max_length: Option<String>,
        /// How many lanes, with --listen
        #[arg(long, value_name = "N", requires = "listen")]
        lanes: Option<usize>,
        /// Write the final ledger to this file as JSON, with --listen
        #[arg(long, value_name = "FILE", requires = "listen")]
        stats_on_exit: Option<PathBuf>,
        /// Go on with the sockets of the daemon that runs with the same control_socket, which then ends; without one,
        /// start as ever
        #[arg(long)]
        take_over: bool,
    },
    /// Validate a configuration and print the lanes, memory and buffers it would use; changes nothing
    #[command(after_help = "Examples:\n\
                      \x20 udpd check -c /etc/udpd/udpd.toml\n\
                      \x20 udpd check --unit udpd && systemctl restart udpd    with all that the service is given\n\
                      \x20 udpd check --as udpd --capability CAP_NET_BIND_SERVICE")]
    Check {
        /// The configuration file [default: /etc/udpd/udpd.toml]
        #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Try to break out of the sandbox of each kind of thread, and print what was refused
        #[arg(long, conflicts_with = "json")]
        sandbox: bool,
        /// Try what USER may read, write and bind of all that a start needs; without a name, what this user may
        #[arg(long = "as", value_name = "USER", num_args = 0..=1, default_missing_value = "",
              conflicts_with = "sandbox")]
        user: Option<String>,
        /// With --as, a capability that the service has besides, such as CAP_NET_BIND_SERVICE; may be repeated
        #[arg(long, value_name = "NAME", requires = "user")]
        capability: Vec<check::Capability>,
        /// Try the same as systemd would start this unit, with its drop-ins: its user, its rights, its -c
        #[arg(long, value_name = "UNIT", conflicts_with_all = ["config", "sandbox", "user"])]
        unit: Option<String>,
    },
    /// Print one snapshot of the running daemon's ledger
    #[command(after_help = "Examples:\n\
                      \x20 udpd stats --json | jq '.listeners[].residual'\n\
                      \x20 udpd stats --streams                     which exporter lost how much\n\
                      \x20 udpd stats --fleet http://10.0.0.1:9817#token http://10.0.0.2:9817#token")]
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print the streams of all listeners with a `sequence` instead: what came of each exporter, and what did not
        #[arg(long)]
        streams: bool,
        /// Add up the ledgers of these members of a fleet instead: http://HOST:PORT of a metrics_address, with
        /// #TOKEN_FILE behind it where that asks for a token, or a file with what is at its /ledger
        #[arg(long, value_name = "MEMBER", num_args = 1.., conflicts_with_all = ["streams", "socket"])]
        fleet: Vec<String>,
        /// With --fleet: print a page that needs nothing else
        #[arg(long, requires = "fleet", conflicts_with = "json")]
        html: bool,
        #[command(flatten)]
        daemon: RunningDaemon,
    },
    /// Watch the running daemon's ledger live in the terminal, from the receive queue to the sink
    #[command(after_help = "Examples:\n\
                      \x20 udpd top\n\
                      \x20 udpd top --interval 5s > top.log\n\
                      \x20 udpd top --once")]
    Top {
        #[command(flatten)]
        arguments: top::TopArguments,
        #[command(flatten)]
        daemon: RunningDaemon,
    },
    /// Watch for some seconds, then say which layer loses datagrams, why, and the command or key that cures it
    #[command(after_help = "Examples:\n\
                      \x20 udpd explain\n\
                      \x20 udpd explain --port 514 --seconds 30     of whatever program listens there\n\
                      \x20 udpd explain -c /etc/udpd/udpd.toml --sysctl > /etc/sysctl.d/90-udpd.conf\n\
                      \x20 udpd explain --tune --rate 200000        commands and keys for this host and that rate\n\
                      \n\
                      As root it sees more: who reads a port, and the kernel's own names for drops.\n\
                      Exit codes: 0 nothing was lost, 3 something was")]
    Explain {
        #[command(flatten)]
        arguments: explain::ExplainArguments,
        #[command(flatten)]
        daemon: RunningDaemon,
    },
    /// Make the running daemon switch to new files; returns when the old ones are closed
    #[command(after_help = "Example, in logrotate's configuration:\n\
                      \x20 postrotate\n\
                      \x20   udpd reopen\n\
                      \x20 endscript\n\
                      \n\
                      Exit codes: 0 done, 1 refused or not done in time, 69 no daemon is running")]
    Reopen(RunningDaemon),
    /// Have a running daemon read its configuration again; what does not change goes on untouched
    #[command(after_help = "A bad file changes nothing.\n\
                      \n\
                      Exit codes: 0 done, 78 the file is wrong, 77 it takes a right that was given up: restart udpd, \
                      1 refused for another reason, 69 no daemon is running or an address cannot be had")]
    Reload(RunningDaemon),
    /// Have a running daemon leave its fleet without a loss: it is not ready, and receives on
    #[command(after_help = "Examples:\n\
                      \x20 udpd drain                 until `udpd undrain`, or until it is stopped\n\
                      \x20 udpd drain --for 30s       ends after 30 s at most\n\
                      \n\
                      Exit codes: 0 it drains, 1 refused, 69 no daemon is running")]
    Drain {
        /// End after this time at the latest, and earlier when nothing has come for drain_quiet, such as 30s
        #[arg(long = "for", value_name = "TIME", value_parser = drain_time)]
        limit: Option<Duration>,
        #[command(flatten)]
        daemon: RunningDaemon,
    },
    /// Have a daemon that drains stay in its fleet after all
    #[command(after_help = "After SIGTERM it is too late: whatever stops udpd waits for its end.\n\
                      \n\
                      Exit codes: 0 done, 1 refused, 69 no daemon is running")]
    Undrain(RunningDaemon),
    /// Tell whether a running daemon is ready for datagrams, and why not
    #[command(after_help = "Example, for a router that runs a script:\n\
                      \x20 udpd ready || withdraw the route\n\
                      \n\
                      Exit codes: 0 ready, 1 not ready, and stderr says why, 69 no daemon is running")]
    Ready(RunningDaemon),
    /// Set up NIC receive queues, their interrupts and the cores of the lanes: plan, apply, check, restore
    #[command(subcommand, after_help = "Example: udpd steer plan eth0")]
    Steer(SteerCommand),
    /// Measure what this machine can receive and at what cost; without a subcommand, the ladder
    #[command(after_help = "Examples:\n\
                      \x20 udpd bench\n\
                      \x20 udpd bench recv --listen 127.0.0.1:5140 --expect 1M         first, in one terminal\n\
                      \x20 udpd bench send --to 127.0.0.1:5140 --rate 100k --count 1M  then, in another")]
    Bench {
        #[command(subcommand)]
        command: Option<Bench>,
    },
    /// Send the UDP datagrams of a capture again, with their original spacing or faster
    #[command(after_help = "Examples:\n\
                      \x20 udpd replay capture.pcapng --to 127.0.0.1:5140\n\
                      \x20 udpd replay capture.pcap --to 10.0.0.9:5140 --speed 10 --port 514\n\
                      \x20 udpd replay feed.pcapng --to captured --interface eth1 --keep-source\n\
                      \x20 zcat capture.pcap.gz | udpd replay - --to [::1]:5140 --fast")]
    Replay(replay::ReplayArguments),
    /// Print a page of the manual, or write all of them
    #[command(after_help = "Examples:\n\
                      \x20 udpd man | man -l -\n\
                      \x20 udpd man udpd.toml | man -l -\n\
                      \x20 udpd man --to /usr/local/share/man")]
    Man(man::ManArguments),
    /// Print what a shell needs to complete commands and options
    #[command(after_help = "Examples:\n\
                      \x20 udpd completions bash > /etc/bash_completion.d/udpd\n\
                      \x20 udpd completions zsh > /usr/local/share/zsh/site-functions/_udpd\n\
                      \x20 udpd completions fish > ~/.config/fish/completions/udpd.fish")]
    Completions {
        /// For which shell
        shell: CompletedShell,
    },
    /// Keep rights for the daemon that has started this
    #[command(hide = true)]
    Warden {
        /// Make filters of sources
        #[arg(long)]
        filters: bool,
        /// Make sockets for queues past the kernel's stack
        #[arg(long)]
        queues: bool,
        /// Addresses to put on an interface
        #[arg(long)]
        announce: Vec<IpAddr>,
        /// That interface
        #[arg(long, default_value = "")]
        on: String,
        /// The numbers of a user and a group to become
        #[arg(long, num_args = 2)]
        user: Vec<u32>,
    },
}

/// A shell that is helped to complete what is typed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

/// Which daemon is asked.
#[derive(Debug, Clone, clap::Args)]
struct RunningDaemon {
    /// The daemon's configuration file, for the control_socket in it
    #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG")]
    config: Option<PathBuf>,
    /// The daemon's control socket, whatever the file says [default: /run/udpd/control.sock, then the current user's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// What `udpd bench` measures.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Try each way to receive a million datagrams a second, and print what to set on this machine
    #[command(after_help = "Examples:\n\
                      \x20 udpd bench ladder --svg ladder.svg --sizes --placements\n\
                      \x20 udpd bench ladder --steps pinned,again,gather --rounds 9 --json\n\
                      \x20 udpd bench ladder --interface --svg past_the_socket.svg")]
    Ladder(Box<ladder::LadderArguments>),
    /// Send numbered, timed datagrams at an exact rate
    #[command(after_help = "Examples:\n\
                      \x20 udpd bench send --to 127.0.0.1:5140 --rate 100k --seconds 10\n\
                      \x20 udpd bench send --to 10.0.0.9:5140 --rate 10k..1M --seconds 60 --size imix --threads 2 \
                      --json\n\
                      \x20 udpd bench send --to 127.0.0.1:5140 --rate max --size 1200 --gso 50 --seconds 5\n\
                      \x20 udpd bench send --to 10.8.0.1:5140 --engine xdp --interface veth1 --flows 1M --rate 3M \
                      --seconds 10")]
    Send(Box<send::SendArguments>),
    /// Receive what bench send sends, through the daemon's own pipeline, and report what became of each datagram
    #[command(after_help = "Examples:\n\
                      \x20 udpd bench recv --listen 0.0.0.0:5140 --seconds 60 --svg arrivals.svg\n\
                      \x20 udpd bench recv --listen 127.0.0.1:5140 --lanes 2 --expect 1M --loss 0% --json")]
    Recv(Box<recv::RecvArguments>),
    /// Find the highest rate that a pipeline takes without loss, without touching your files or destinations
    #[command(after_help = "Examples:\n\
                      \x20 udpd bench max --to file:/var/tmp/max.log\n\
                      \x20 udpd bench max -c /etc/udpd/udpd.toml --listener syslog --expect 200k\n\
                      \x20 udpd bench max --to udp:10.0.0.9:514 --real-sinks --rate 1k..50k\n\
                      \x20 udpd bench max --engine af_xdp --to null: --flows 1M --loss 0.5%")]
    Max(Box<max::MaxArguments>),
}

/// What `udpd steer` does.
#[derive(Debug, Subcommand)]
enum SteerCommand {
    /// Compare the host with the plan; needs no privileges; exit 1 when something differs, 4 when it cannot be known
    #[command(after_help = "Example: udpd steer status eth0")]
    Status(SteerArguments),
    /// Show the plan and what it would change; needs no privileges, changes nothing
    #[command(after_help = "Examples:\n\
                      \x20 udpd steer plan eth0 --json\n\
                      \x20 udpd steer plan eth0 --export link > /etc/systemd/network/10-steer-eth0.link")]
    Plan(PlanArguments),
    /// Set what the plan wants, and save the previous settings
    #[command(after_help = "Examples:\n\
                      \x20 udpd steer apply -c /etc/udpd/udpd.toml\n\
                      \x20 udpd steer apply eth0 --watch")]
    Apply(ApplyArguments),
    /// Put back the settings from before the first apply, also after a crash
    #[command(after_help = "Example: udpd steer restore")]
    Restore(RestoreArguments),
}

#[derive(Debug, clap::Args)]
struct RestoreArguments {
    #[command(flatten)]
    steer: SteerArguments,
    /// Give up what cannot be restored of these interfaces: remove what is saved for them
    #[arg(long, requires = "interfaces")]
    forget: bool,
}

#[derive(Debug, clap::Args)]
struct PlanArguments {
    #[command(flatten)]
    steer: SteerArguments,
    /// Print the plan as a file instead, for systemd, for udev or as a shell script
    #[arg(long, value_name = "FORM", conflicts_with = "json")]
    export: Option<Form>,
}

#[derive(Debug, clap::Args)]
struct ApplyArguments {
    #[command(flatten)]
    steer: SteerArguments,
    /// Stay, and set again what a card forgets or another program undoes, until SIGTERM or SIGINT
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

/// As what a plan is printed for others to set it.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Form {
    /// A .link file of systemd for each interface: queues and rings
    Link,
    /// Rules for udev: what a .link file leaves out
    Udev,
    /// A shell script: everything, once
    Sh,
}

#[derive(Debug, clap::Args)]
struct SteerArguments {
    /// The interfaces [default: those of [steer] interfaces; of restore: all that were changed]
    #[arg(value_name = "IFACE")]
    interfaces: Vec<String>,
    /// The configuration file, for its [steer] [default: /etc/udpd/udpd.toml, if it exists]
    #[arg(short, long, value_name = "FILE", env = "UDPD_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The directory for the previous settings
    #[arg(long, value_name = "DIR", default_value = steer::STATE_FOLDER)]
    state: PathBuf,
}

pub(crate) fn execute(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        CliCommand::Run {
            listen: Some(listen),
            to,
            lanes,
            format,
            prefix,
            max_length,
            stats_on_exit,
            take_over,
            ..
        } => {
            let named = |format: String| Format::WORDS.into_iter().find(|(word, _)| *word == format);
            let format = format.and_then(named).map(|(_, format)| format);
            let prefix = LinePrefix::WORDS.into_iter().find(|(word, _)| *word == prefix).unwrap_or_default().1;
            let arguments = config::RunArguments { listen, to, lanes, format, prefix, max_length, stats_on_exit };
            run::execute(Config::from_arguments(&arguments)?, None, take_over)
        }
        CliCommand::Run { config, take_over, .. } => {
            let path = std::path::absolute(config.as_deref().unwrap_or(Path::new(CONFIG_PATH)));
            run::execute(load_on(config, &running())?, path.ok(), take_over)
        }
        CliCommand::Check { config, sandbox: true, .. } => {
            check::try_sandbox(&load_on(config, &HostView::default())?, &mut io::stdout().lock())
        }
        CliCommand::Check { unit: Some(unit), json, .. } => check::execute_unit(&unit, json, &mut io::stdout().lock()),
        CliCommand::Check { config, json, user: Some(user), capability, .. } => {
            let becomes = !user.is_empty();
            if becomes {
                check::become_user(&user, &capability)?;
            }
            let file = config.clone().unwrap_or_else(|| CONFIG_PATH.into());
            let mut config = load_on(config, &running())?;
            let socket = &mut config.daemon.control_socket;
            if becomes && !socket.written {
                // That of the service, and not of this user's own daemons.
                socket.value = Some(PathBuf::from(control::OF_THE_SYSTEM));
            }
            check::execute(&config, Some(&file), (json, true), &mut io::stdout().lock())
        }
        CliCommand::Check { config, json, .. } => {
            let file = config.clone().unwrap_or_else(|| CONFIG_PATH.into());
            check::execute(
                &load_on(config, &HostView::default())?,
                Some(&file),
                (json, false),
                &mut io::stdout().lock(),
            )
        }
        CliCommand::Stats { json, fleet, html, .. } if !fleet.is_empty() => {
            let form = match (json, html) {
                (true, _) => stats::fleet::FleetForm::Json,
                (_, true) => stats::fleet::FleetForm::Html,
                _ => stats::fleet::FleetForm::Text,
            };
            stats::fleet::execute(&fleet, form, &mut io::stdout().lock())
        }
        CliCommand::Stats { json, streams, daemon, .. } => {
            stats::execute(reach(daemon)?, json, streams, &mut io::stdout().lock())
        }
        CliCommand::Top { arguments, daemon } => {
            top::execute(&arguments, Box::new(move || reach(daemon.clone())?.stats()))
        }
        CliCommand::Explain { arguments, daemon } => explain(&arguments, daemon),
        CliCommand::Reopen(daemon) => {
            let done = reach(daemon)?.reopen()?;
            console::print(&mut io::stdout().lock(), &format!("{done}\n"))
        }
        CliCommand::Reload(daemon) => {
            let done = reach(daemon)?.reload()?;
            console::print(&mut io::stdout().lock(), &format!("{done}\n"))
        }
        CliCommand::Drain { limit, daemon } => drain(daemon, DrainCommand::Begin(limit)),
        CliCommand::Undrain(daemon) => drain(daemon, DrainCommand::End),
        CliCommand::Ready(daemon) => {
            reach(daemon)?.ready()?;
            console::print(&mut io::stdout().lock(), "ready\n")
        }
        CliCommand::Steer(command) => steer(command),
        CliCommand::Bench { command } => bench(command),
        CliCommand::Replay(arguments) => replay::execute(&arguments, &mut io::stdout().lock()),
        CliCommand::Man(arguments) => man::execute(&arguments, Cli::command(), &mut io::stdout().lock()),
        CliCommand::Warden { filters, queues, announce, on, user } => {
            privilege_helper::execute(HelperOptions { filters, queues }, (&announce, &on), &user)
        }
        CliCommand::Completions { shell } => {
            let shell = match shell {
                CompletedShell::Bash => Shell::Bash,
                CompletedShell::Zsh => Shell::Zsh,
                CompletedShell::Fish => Shell::Fish,
            };
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "udpd", &mut script);
            console::print(&mut io::stdout().lock(), &String::from_utf8_lossy(&script))
        }
    }
}

fn drain(daemon: RunningDaemon, command: DrainCommand) -> Result<(), Failure> {
    let done = reach(daemon)?.drain(command)?;
    console::print(&mut io::stdout().lock(), &format!("{done}\n"))
}

fn drain_time(text: &str) -> Result<Duration, String> {
    let limit = units::parse_duration(text).map_err(|advice| advice.to_string())?;
    (limit <= Duration::from_secs(3600)).then_some(limit).ok_or_else(|| "write 0s to 1h".to_owned())
}

/// A file that is named must be readable; the usual one helps where it is.
fn explain(arguments: &explain::ExplainArguments, mut daemon: RunningDaemon) -> Result<(), Failure> {
    let usual = Path::new(CONFIG_PATH);
    let config = match &daemon.config {
        Some(path) => Some(Config::load(path, &asking())?),
        None => Config::load(usual, &asking()).ok(),
    };
    let named = daemon.config.clone();
    if daemon.socket.is_none() && daemon.config.is_none() && config.is_some() {
        daemon.config = Some(usual.to_owned());
    }
    let ask = || reach(daemon.clone())?.stats();
    let daemon = explain::DaemonAccess {
        config: config.as_ref(),
        config_path: named.as_deref(),
        ask: &ask,
        is_named: daemon.socket.is_some(),
    };
    explain::execute(arguments, &daemon, &mut io::stdout().lock())
}

fn bench(command: Option<Bench>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match command {
        None => ladder::execute(&ladder::LadderArguments::default(), &mut out),
        Some(Bench::Ladder(arguments)) => ladder::execute(&arguments, &mut out),
        Some(Bench::Send(arguments)) => send::execute(&arguments, &mut out),
        Some(Bench::Recv(arguments)) => recv::execute(&arguments, &mut out),
        Some(Bench::Max(arguments)) => max::execute(&arguments, &mut out),
    }
}

fn steer(command: SteerCommand) -> Result<(), Failure> {
    let (action, arguments, forget) = match command {
        SteerCommand::Status(arguments) => (SteerAction::Status, arguments, false),
        SteerCommand::Plan(PlanArguments { steer, export: None }) => (SteerAction::Plan, steer, false),
        SteerCommand::Plan(PlanArguments { steer, export: Some(Form::Link) }) => {
            (SteerAction::Export(Export::Link), steer, false)
        }
        SteerCommand::Plan(PlanArguments { steer, export: Some(Form::Udev) }) => {
            (SteerAction::Export(Export::Udev), steer, false)
        }
        SteerCommand::Plan(PlanArguments { steer, export: Some(Form::Sh) }) => {
            (SteerAction::Export(Export::Shell), steer, false)
        }
        SteerCommand::Apply(ApplyArguments { steer, watch: false }) => (SteerAction::Apply, steer, false),
        SteerCommand::Apply(ApplyArguments { steer, watch: true }) => (SteerAction::Watch, steer, false),
        SteerCommand::Restore(RestoreArguments { steer, forget }) => (SteerAction::Restore, steer, forget),
    };
    let SteerArguments { interfaces, config, json, state } = arguments;
    let from_file = config.is_some();
    let config = match config {
        // Interfaces on the command line need no file.
        // What is saved is put back whatever a file says by now.
        None if action == SteerAction::Restore || !Path::new(CONFIG_PATH).exists() => None,
        config => {
            let waits = matches!(action, SteerAction::Apply | SteerAction::Watch);
            let may_come = if waits { MayCome::All } else { MayCome::None };
            Some(load_on(config, &HostView { may_come, ..asking() })?)
        }
    };
    let wish = config.as_ref().map_or_else(config::SteerConfig::default, |config| config.steer.clone());
    let config = config.as_ref();
    let task = SteerTask { action, interfaces, wish: &wish, config, from_file, state_folder: state, forget, json };
    steer::execute(&task, &mut io::stdout().lock())
}

/// The daemon behind the socket, or else behind the one of the configuration, or else behind a usual one.
fn reach(daemon: RunningDaemon) -> Result<Connection, Failure> {
    let RunningDaemon { config, socket } = daemon;
    if let Some(path) = socket {
        return Connection::open(&path);
    }
    let Some(file) = config else { return Connection::open_first(&control::default_paths()) };
    let chosen = load_on(Some(file.clone()), &asking())?.daemon.control_socket;
    match chosen.value {
        Some(path) if chosen.written => Connection::open(&path),
        None if chosen.written => {
            let cure = "write a path there and restart it";
            let message = format!("cannot ask the daemon of {}: its control_socket = \"\"; {cure}", file.display());
            Err(Failure::new(ExitCode::Unavailable, message))
        }
        // Another user's default is not ours.
        _ => Connection::open_first(&control::default_paths()),
    }
}

/// For who does without an interface of `[steer]` that is absent.
fn running() -> HostView {
    HostView { may_come: MayCome::Steered, ..HostView::default() }
}

/// For who only asks a daemon that runs, or looks after a card.
fn asking() -> HostView {
    HostView { lists: Lists::Leave, becomes_user: false, ..running() }
}

fn load_on(path: Option<PathBuf>, host: &HostView) -> Result<Config, Failure> {
    match path {
        Some(path) => Config::load(&path, host),
        None => {
            let path = PathBuf::from(CONFIG_PATH);
            if !path.exists() {
                return Err(check::no_configuration(&path));
            }
            Config::load(&path, host)
        }
    }
}

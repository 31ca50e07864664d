//! `udpd bench recv` as it is typed, and its report as it is printed.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::measure::{FLOWS_MAX, Task, run};
use super::report::{Progress, Report};
use super::show;
use crate::machine::Machine;
use crate::options::{percent, printed_json, seconds, usage};
use crate::output::Output;
use crate::rate;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging;
use udpd_base::logging::LogFormat;
use udpd_base::os::console;
use udpd_base::os::interrupt::stop_on_signal;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;
use udpd_engine::config::{ENGINES, EngineKind};

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// The most flows: every number there is.
const FLOWS_LIMIT: u64 = 1 << 24;

/// The options of `udpd bench recv`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Listen here
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// How many lanes [default: as many as `lanes = "auto"` gives]
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,
    /// How to receive
    #[arg(long, default_value = "auto", value_parser = engines())]
    engine: String,
    /// Take trains of equal datagrams in one buffer (UDP_GRO)
    #[arg(long, value_enum, default_value = "off")]
    gro: Switch,
    /// Handle datagrams on the receivers' own threads, as a sink with `inline = true` does
    #[arg(long)]
    inline: bool,
    /// Let datagrams gather this long after a short batch, such as 1ms
    #[arg(long, value_name = "D", default_value = "0ms")]
    gather: String,
    /// The longest payload to check in full
    #[arg(long, value_name = "SIZE", default_value = "2KiB")]
    max_length: String,
    /// End after this many seconds [default: when interrupted]
    #[arg(long, value_name = "S")]
    seconds: Option<String>,
    /// End after this many datagrams, or a second of silence once some have come
    #[arg(long, value_name = "N")]
    expect: Option<String>,
    /// Exit with 3 when more than this is lost, such as 0.5%
    #[arg(long, value_name = "LIMIT%")]
    loss: Option<String>,
    /// How many flows to follow, such as 1M: 8 KiB each up to 16,384, beyond that 128 MiB and 70 bytes each [default:
    /// 1024]
    #[arg(long, value_name = "N")]
    flows: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the figures of each second to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the arrivals of each millisecond into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Overwrite the files of --csv and --svg if they exist
    #[arg(long)]
    force: bool,
}

fn engines() -> PossibleValuesParser {
    // It listens on an address, and knows no interface.
    let of_sockets = ENGINES.iter().filter(|(_, engine)| *engine != Some(EngineKind::AfXdp));
    PossibleValuesParser::new(of_sockets.map(|(name, _)| name))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Arguments {
    pub fn task(&self) -> Result<Task, Failure> {
        let max_length = units::parse_size(&self.max_length).map_err(|advice| usage("--max-length", &advice))?;
        let max_length_bytes = usize::try_from(max_length).ok().filter(|bytes| (1..=65_535).contains(bytes));
        let expect = self.expect.as_deref().map(rate::parse_count).transpose();
        Ok(Task {
            lanes: self.lanes,
            engine: ENGINES.iter().find(|(name, _)| *name == self.engine).and_then(|(_, engine)| *engine),
            gro: self.gro == Switch::On,
            inline: self.inline,
            gather: units::parse_duration(&self.gather).map_err(|advice| usage("--gather", &advice))?,
            max_length_bytes: max_length_bytes.ok_or_else(|| {
                let what = format!("{:?} is outside 1 to 65535 bytes", self.max_length);
                usage("--max-length", &ValueAdvice::new(what, "leave it out for 2KiB"))
            })?,
            duration: self.seconds.as_deref().map(|text| seconds("--seconds", text)).transpose()?,
            expect: expect.map_err(|advice| usage("--expect", &advice))?,
            flows_max: self.flows_max()?,
            ..Task::new(&self.listen)
        })
    }

    fn flows_max(&self) -> Result<usize, Failure> {
        let Some(text) = &self.flows else { return Ok(FLOWS_MAX) };
        let flows = rate::parse_count(text).ok().filter(|flows| *flows <= FLOWS_LIMIT);
        flows.and_then(|flows| usize::try_from(flows).ok()).ok_or_else(|| {
            let what = format!("{text:?} is outside 1 to {FLOWS_LIMIT}");
            usage("--flows", &ValueAdvice::new(what, format!("leave it out for {FLOWS_MAX}, or write one such as 1M")))
        })
    }

    /// The limit of `--loss`, in percent.
    fn loss_limit(&self) -> Result<Option<f64>, Failure> {
        self.loss.as_deref().map(|text| percent("--loss", text)).transpose()
    }
}

/// Receives until the end that is asked for, prints the report, and fails when too much was lost.
pub fn execute(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (task, limit) = (arguments.task()?, arguments.loss_limit()?);
    let stop = stop_on_signal(|| ())?;
    let logger = logging::start(log::LevelFilter::Warn, LogFormat::Text, io::stderr(), &ThreadRegistry::new().0)?;
    let outcome = receive(arguments, &task, limit, &stop, out);
    logger.finish(LOG_LIMIT);
    outcome
}

fn receive(
    arguments: &Arguments,
    task: &Task,
    limit: Option<f64>,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let csv = Output::of("--csv", arguments.csv.as_ref(), arguments.force)?;
    let svg = Output::of("--svg", arguments.svg.as_ref(), arguments.force)?;
    let machine = Machine::read();
    let warnings = machine.warnings(Duration::ZERO);
    let is_terminal = io::stderr().is_terminal();
    let mut tell = |progress: Progress<'_>| {
        // Nobody may be looking any more, and that is no reason to stop.
        let _ = match progress {
            Progress::Ready(lanes) => writeln!(io::stderr(), "{}", show::ready(lanes)),
            Progress::Second(second) if is_terminal => writeln!(io::stderr(), "{}", show::progress(second)),
            Progress::Second(_) => Ok(()),
        };
    };
    let report = run(task, stop, &mut tell)?;
    let text = match arguments.json {
        true => json_text(task, &machine, &warnings, &report)?,
        false => show::text(&warnings, &report),
    };
    console::print(out, &text)?;
    if let Some(csv) = csv {
        csv.write(&show::seconds_table(&report).csv())?;
    }
    if let Some(svg) = svg {
        svg.write(&show::chart(&machine, &report))?;
    }
    limit.map_or(Ok(()), |limit| judge(&report, limit))
}

/// Whether the loss is within the limit. A run in which nothing came has not passed anything.
fn judge(report: &Report, limit: f64) -> Result<(), Failure> {
    let Report { counts, lost, loss_percent, .. } = report;
    if counts.received == 0 {
        let text = "received nothing, so there is no loss to judge; start the receiver first, then udpd bench send \
                    --to its address";
        return Err(Failure::new(ExitCode::Loss, text));
    }
    if *loss_percent > limit {
        let all = lost + counts.received;
        let text = format!(
            "lost {loss_percent:.4} % ({lost} of {all} datagrams), more than --loss {limit}%; the layers above say \
             where"
        );
        return Err(Failure::new(ExitCode::Loss, text));
    }
    Ok(())
}

fn json_text(task: &Task, machine: &Machine, warnings: &[String], report: &Report) -> Result<String, Failure> {
    let engine = task.engine.map_or("auto".to_owned(), |engine| engine.to_string());
    printed_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "warnings": warnings,
        "asked": {
            "listen": task.listen, "lanes": task.lanes, "engine": engine, "gro": task.gro,
            "inline": task.inline,
            "gather_us": task.gather.as_micros() as u64, "max_length": task.max_length_bytes,
            "seconds": task.duration.map(|duration| duration.as_secs_f64()), "expect": task.expect,
            "flows_max": task.flows_max,
        },
        "report": report,
    }))
}

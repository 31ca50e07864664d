//! `udpd bench max` as it is typed, and what it writes where.

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::measure::{Report, run};
use super::scratch::Scratches;
use super::search::Bounds;
use super::show;
use super::stage::Stage;
use super::subject::{Place, Subject};
use super::task::Task;
use super::trial::Trial;
use crate::cable;
use crate::machine::Machine;
use crate::options::{percent, printed_json, seconds, usage};
use crate::output::Output;
use crate::pacer::Amount;
use crate::rate;
use crate::rate::{RATE_MAX, Rate};
use crate::send::Load;
use crate::sizes::Sizes;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging;
use udpd_base::logging::LogFormat;
use udpd_base::os::console;
use udpd_base::os::interrupt::stop_on_signal;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;
use udpd_engine::config::{ENGINES, EngineKind};

/// How long the machine is looked at before anything is measured, and the last log lines may take.
const LOOK: Duration = Duration::from_millis(300);

/// The train of a sender on loopback, unless another one is asked for.
const TRAIN: usize = 20;

/// Where a search begins.
const LOWEST: u64 = 10_000;

/// The options of `udpd bench max`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Measure a sink like this one: null:  file:PATH  jsonl:PATH  pcapng:PATH  stdout:  udp:HOST:PORT  unix:PATH
    /// kafka://HOST:PORT/TOPIC; without --real-sinks nothing reaches it
    #[arg(long, value_name = "URI", required_unless_present = "config", conflicts_with = "config")]
    to: Option<String>,
    /// Measure a listener of this configuration on a port of loopback or a cable, with stand-ins for its sinks
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which listener of the configuration
    #[arg(long, value_name = "NAME", requires = "config")]
    listener: Option<String>,
    /// How the listener receives; af_xdp on a cable [default: as the configuration says, or auto]
    #[arg(long, value_name = "ENGINE", value_parser = engines())]
    engine: Option<String>,
    #[command(flatten)]
    cable: cable::Options,
    /// Use the sinks themselves: writes their files and sends to their destinations; first prints which
    #[arg(long)]
    real_sinks: bool,
    /// Where to begin and where to end [default: from 10k, without an end]
    #[arg(long, value_name = "MIN..MAX")]
    rate: Option<String>,
    /// How long each trial lasts, in seconds
    #[arg(long, value_name = "S", default_value = "2")]
    seconds: String,
    /// The loss to allow, such as 0.5%
    #[arg(long, value_name = "LIMIT%", default_value = "0%")]
    loss: String,
    /// How exact the answer has to be
    #[arg(long, value_name = "SHARE%", default_value = "2%")]
    precision: String,
    /// Exit with 3 when the answer is below this rate
    #[arg(long, value_name = "RATE")]
    expect: Option<String>,
    /// Payload bytes: 64, 64:1400 or imix
    #[arg(long, value_name = "BYTES", default_value = "64")]
    size: String,
    /// How many flows, each from a source port of its own, up to 65,536; on a cable up to 16M
    #[arg(long, value_name = "F", default_value = "16")]
    flows: String,
    /// Datagrams that the sender hands over as one train for the kernel to cut; 1: none [default: 20; on a cable none]
    #[arg(long, value_name = "N")]
    gso: Option<usize>,
    /// Sender threads
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: usize,
    /// The cores of the sender [default: those that no lane has]
    #[arg(long, value_name = "LIST")]
    cpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the trials to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Overwrite the file of --csv if it exists
    #[arg(long)]
    force: bool,
}

fn engines() -> PossibleValuesParser {
    PossibleValuesParser::new(ENGINES.iter().map(|(name, _)| name))
}

impl Arguments {
    fn task(&self) -> Result<Task, Failure> {
        let sizes = Sizes::parse(&self.size).map_err(|advice| usage("--size", &advice))?;
        let options = self.cable_options();
        let train = self.gso.unwrap_or(if options.is_wanted() { 1 } else { TRAIN });
        let gso = match sizes {
            Sizes::Fixed(_) => NonZeroUsize::new(train).filter(|train| train.get() > 1),
            _ => None,
        };
        let flows = rate::parse_count(&self.flows).ok().and_then(|flows| usize::try_from(flows).ok());
        let flows = flows.ok_or_else(|| {
            let what = format!("{:?} is not a number of flows", self.flows);
            usage("--flows", &ValueAdvice::new(what, "write one such as 16 or 1M"))
        })?;
        let cpus = self.cpu.as_deref().map(units::parse_cpus).transpose().map_err(|advice| usage("--cpu", &advice))?;
        let task = Task {
            bounds: self.bounds()?,
            duration: seconds("--seconds", &self.seconds)?,
            loss_percent: percent("--loss", &self.loss)?,
            sizes,
            flows,
            gso,
            threads: self.threads,
            cpus,
            cable: None,
        };
        // What cannot be sent at all is told before anything is started or laid.
        let amount = Amount::Seconds(task.duration);
        let to = ([127, 0, 0, 1], 9).into();
        let Task { sizes, flows, gso, threads, .. } = task;
        let load = Load { sizes, flows, gso, threads, ..Load::new(to, Rate::Steady(task.bounds.lowest), amount) };
        match options.is_wanted() {
            true => cable::check(&load)?,
            false => load.check()?,
        }
        if options.is_own() && self.real_sinks {
            let what = "a cable in a namespace of its own leads to no destination";
            let cure = "write --interface IF --from IF, or leave out --real-sinks";
            return Err(usage("--real-sinks", &ValueAdvice::new(what, cure)));
        }
        Ok(Task { cable: options.cable()?, ..task })
    }

    fn engine(&self) -> Option<Option<EngineKind>> {
        let name = self.engine.as_deref()?;
        ENGINES.iter().find(|(own, _)| *own == name).map(|(_, engine)| *engine)
    }

    /// AF_XDP needs a cable, also where none was asked for.
    fn cable_options(&self) -> cable::Options {
        match self.engine() {
            Some(Some(EngineKind::AfXdp)) => self.cable.with_cable(),
            _ => self.cable.clone(),
        }
    }

    fn bounds(&self) -> Result<Bounds, Failure> {
        let (lowest, highest) = match self.rate.as_deref().map(Rate::parse).transpose() {
            Err(advice) => return Err(usage("--rate", &advice)),
            Ok(None) => (LOWEST, RATE_MAX),
            Ok(Some(Rate::Ramp(lowest, highest))) if lowest < highest => (lowest, highest),
            Ok(Some(other)) => {
                let what = format!("{other} is not a range");
                return Err(usage(
                    "--rate",
                    &ValueAdvice::new(what, "write where to begin and to end, such as 10k..1M"),
                ));
            }
        };
        let precision = percent("--precision", &self.precision)? / 100.0;
        if precision < 0.001 {
            let advice = ValueAdvice::new(
                format!("{:?} is finer than a trial can measure", self.precision),
                "write 0.1% or more",
            );
            return Err(usage("--precision", &advice));
        }
        Ok(Bounds { lowest, highest, precision })
    }

    fn expect(&self) -> Result<Option<u64>, Failure> {
        self.expect.as_deref().map(rate::parse_number).transpose().map_err(|advice| usage("--expect", &advice))
    }

    fn subject(&self, task: &Task) -> Result<Subject, Failure> {
        let place = Place::of(task.cable.as_ref(), self.engine())?;
        match (&self.to, &self.config) {
            (Some(uri), _) => Subject::of_uri(uri, &place),
            (None, Some(path)) => Subject::of_file(path, self.listener.as_deref(), &place),
            (None, None) => Err(Failure::new(ExitCode::Usage, "write what to measure: --to URI or -c FILE")),
        }
    }
}

/// Searches, prints what was found, and fails when it is less than was expected.
pub fn execute(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (expect, task) = (arguments.expect()?, arguments.task()?);
    let subject = arguments.subject(&task)?;
    let scratches = Scratches::default();
    let own = scratches.clone();
    let stop = stop_on_signal(move || own.remove())?;
    let logger = logging::start(log::LevelFilter::Error, LogFormat::Text, io::stderr(), &ThreadRegistry::new().0)?;
    let outcome = measure(arguments, &task, expect, &subject, &scratches, &stop, out);
    logger.finish(LOOK);
    outcome
}

fn measure(
    arguments: &Arguments,
    task: &Task,
    expect: Option<u64>,
    subject: &Subject,
    scratches: &Scratches,
    stop: &Arc<AtomicBool>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let csv = Output::of("--csv", arguments.csv.as_ref(), arguments.force)?;
    let machine = Machine::read();
    let warnings = machine.warnings(LOOK);
    let is_terminal = io::stderr().is_terminal();
    let mut tell = |number: usize, trial: &Trial| {
        if is_terminal {
            // Nobody may be looking any more, and that is no reason to stop.
            let _ = writeln!(io::stderr(), "{}", show::progress(number, trial));
        }
    };
    let stage = Stage::set(subject, arguments.real_sinks, &ThreadRegistry::new().0, scratches)?;
    if arguments.real_sinks {
        say_what_is_touched(&stage);
    }
    let report = run(task, &stage, stop, &mut tell);
    // Standard output is itself again, and nothing of the bench's own is left.
    drop(stage);
    let report = report?;
    if let Some(csv) = csv {
        csv.write(&show::table(&report).csv())?;
    }
    let headroom = expect.map(|expected| (report.rate as f64 / expected as f64 - 1.0) * 100.0);
    let text = match arguments.json {
        true => json_text(arguments, task, &machine, &warnings, &report, expect, headroom)?,
        false => show::text(&report, &warnings, expect, headroom),
    };
    console::print(out, &text)?;
    match (expect, headroom) {
        (Some(expected), Some(headroom)) if headroom < 0.0 => {
            Err(Failure::new(ExitCode::Loss, show::shortfall(&report, expected)))
        }
        _ => Ok(()),
    }
}

/// Before it happens, and also where nobody looks at a terminal.
fn say_what_is_touched(stage: &Stage) {
    for line in stage.notes() {
        let _ = writeln!(io::stderr(), "note: {line}");
    }
}

fn json_text(
    arguments: &Arguments,
    task: &Task,
    machine: &Machine,
    warnings: &[String],
    report: &Report,
    expect: Option<u64>,
    headroom: Option<f64>,
) -> Result<String, Failure> {
    printed_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "warnings": warnings,
        "asked": {
            "to": arguments.to, "config": arguments.config, "real_sinks": arguments.real_sinks, "rate": arguments.rate,
            "seconds": arguments.seconds, "loss": arguments.loss, "precision": arguments.precision,
            "size": arguments.size, "flows": task.flows, "engine": arguments.engine, "cable": arguments.cable.as_json(),
            "gso": task.gso, "threads": arguments.threads, "cpu": arguments.cpu, "expect": expect,
        },
        "headroom_percent": headroom,
        "report": report,
    }))
}

//! `udpd bench max`: the highest rate that a whole pipeline takes without loss, with the user's own sinks and disk.
//! Here is the command line and what it prints: each trial as it ends, the table of all of them, the answer, and how
//! that compares with `--expect`.
//!
//! The sender runs in the same process, on cores that no lane has; where it cannot offer more, the answer is what it
//! did send, and not a limit.

#[cfg(feature = "kafka")]
mod cluster;
mod discarding_peer;
mod listener;
mod real_sink_files;
mod scratch;
mod search;
mod stand_ins;
mod trial;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde_json::json;

use self::listener::{ListenPlace, MeasuredListener};
use self::scratch::ScratchDirs;
use self::search::{Bounds, SearchLimit};
use self::stand_ins::SinkStandIns;
use self::trial::{MaxReport, MaxTask, MaxTrial, run};
use crate::cable;
use crate::output::{Output, OutputOptions, flows, percent, progress, seconds, usage};
use crate::pacer::{self, RATE_MAX, Rate, SendAmount};
use crate::send::SendLoad;
use crate::sizes::Sizes;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging::{self, LogFormat};
use udpd_base::os::console::stop_on_signal;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::tables::{TextTable, grouped, or_dash};
use udpd_base::text::units;
use udpd_engine::config::{ENGINES, EngineKind};

/// How long to watch how busy the machine is before anything is measured, and how long the last log lines may take.
const LOOK: Duration = Duration::from_millis(300);

/// The train of a sender on loopback, unless another one is asked for.
const TRAIN: usize = 20;

/// Where a search begins.
const LOWEST: u64 = 10_000;

#[derive(Debug, clap::Args)]
pub struct MaxArguments {
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
    cable: cable::CableOptions,
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
    #[command(flatten)]
    output: OutputOptions,
}

fn engines() -> PossibleValuesParser {
    PossibleValuesParser::new(ENGINES.iter().map(|(name, _)| name))
}

impl MaxArguments {
    fn task(&self) -> Result<MaxTask, Failure> {
        let sizes = Sizes::parse(&self.size).map_err(|advice| usage("--size", &advice))?;
        let options = self.cable_options();
        let train = self.gso.unwrap_or(if options.is_wanted() { 1 } else { TRAIN });
        let gso = match sizes {
            Sizes::Fixed(_) => NonZeroUsize::new(train).filter(|train| train.get() > 1),
            _ => None,
        };
        let cpus = self.cpu.as_deref().map(units::parse_cpus).transpose().map_err(|advice| usage("--cpu", &advice))?;
        let task = MaxTask {
            bounds: self.bounds()?,
            duration: seconds("--seconds", &self.seconds)?,
            loss_percent: percent("--loss", &self.loss)?,
            sizes,
            flows: flows(&self.flows)?,
            gso,
            threads: self.threads,
            cpus,
            cable: None,
        };
        // A load that cannot be sent is refused before anything is started.
        let amount = SendAmount::Seconds(task.duration);
        let to = ([127, 0, 0, 1], 9).into();
        let MaxTask { sizes, flows, gso, threads, .. } = task;
        let load =
            SendLoad { sizes, flows, gso, threads, ..SendLoad::new(to, Rate::Steady(task.bounds.lowest), amount) };
        match options.is_wanted() {
            true => cable::check(&load)?,
            false => load.check()?,
        }
        if options.is_own() && self.real_sinks {
            let what = "a cable in a namespace of its own leads to no destination";
            let cure = "write --interface IF --from IF, or leave out --real-sinks";
            return Err(usage("--real-sinks", &ValueAdvice::new(what, cure)));
        }
        Ok(MaxTask { cable: options.cable()?, ..task })
    }

    fn engine(&self) -> Option<Option<EngineKind>> {
        let name = self.engine.as_deref()?;
        ENGINES.iter().find(|(own, _)| *own == name).map(|(_, engine)| *engine)
    }

    /// AF_XDP needs a cable, also where none was asked for.
    fn cable_options(&self) -> cable::CableOptions {
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
        self.expect.as_deref().map(pacer::parse_number).transpose().map_err(|advice| usage("--expect", &advice))
    }

    fn subject(&self, task: &MaxTask) -> Result<MeasuredListener, Failure> {
        let place = ListenPlace::of(task.cable.as_ref(), self.engine())?;
        match (&self.to, &self.config) {
            (Some(uri), _) => MeasuredListener::of_uri(uri, &place),
            (None, Some(path)) => MeasuredListener::of_file(path, self.listener.as_deref(), &place),
            (None, None) => Err(Failure::new(ExitCode::Usage, "write what to measure: --to URI or -c FILE")),
        }
    }
}

/// Searches, prints what was found, and fails when it is less than was expected.
pub fn execute(arguments: &MaxArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (expect, task) = (arguments.expect()?, arguments.task()?);
    let subject = arguments.subject(&task)?;
    let scratches = ScratchDirs::default();
    let own = scratches.clone();
    let stop = stop_on_signal(move || own.remove())?;
    let logger = logging::start(log::LevelFilter::Error, LogFormat::Text, io::stderr(), &ThreadRegistry::new().0)?;
    let outcome = measure(arguments, &task, expect, &subject, &scratches, &stop, out);
    logger.finish(LOOK);
    outcome
}

fn measure(
    arguments: &MaxArguments,
    task: &MaxTask,
    expect: Option<u64>,
    subject: &MeasuredListener,
    scratches: &ScratchDirs,
    stop: &Arc<AtomicBool>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let output = Output::of(&arguments.output, None, LOOK)?;
    let mut tell = |number: usize, trial: &MaxTrial| progress(|| trial_line(number, trial) + "\n");
    let stand_ins = SinkStandIns::set(subject, arguments.real_sinks, &ThreadRegistry::new().0, scratches)?;
    if arguments.real_sinks {
        // Before it happens, also where stderr is no terminal.
        for line in stand_ins.notes() {
            let _ = writeln!(io::stderr(), "note: {line}");
        }
    }
    let report = run(task, &stand_ins, stop, &mut tell);
    // Restores standard output and removes everything that the bench has made.
    drop(stand_ins);
    let report = report?;
    output.write(|| table(&report).csv(), String::new)?;
    let headroom = expect.map(|expected| (report.rate as f64 / expected as f64 - 1.0) * 100.0);
    let asked = json!({
        "to": arguments.to, "config": arguments.config, "real_sinks": arguments.real_sinks, "rate": arguments.rate,
        "seconds": arguments.seconds, "loss": arguments.loss, "precision": arguments.precision,
        "size": arguments.size, "flows": task.flows, "engine": arguments.engine, "cable": arguments.cable.as_json(),
        "gso": task.gso, "threads": arguments.threads, "cpu": arguments.cpu, "expect": expect,
    });
    let whole = json!({ "asked": asked, "headroom_percent": headroom });
    output.print(out, whole, &report, || text(&report, expect, headroom))?;
    match (expect, headroom) {
        (Some(expected), Some(headroom)) if headroom < 0.0 => {
            Err(Failure::new(ExitCode::Loss, shortfall(&report, expected)))
        }
        _ => Ok(()),
    }
}

fn outcome(trial: &MaxTrial) -> &'static str {
    match (trial.kept, trial.offered) {
        (true, true) => "kept",
        (true, false) => "sender short",
        (false, true) => "lost",
        (false, false) => "lost, sender short",
    }
}

fn trial_line(number: usize, trial: &MaxTrial) -> String {
    format!(
        "trial {number:>2}: {} a second: {}, {} of {} lost",
        grouped(trial.rate),
        outcome(trial),
        grouped(trial.lost.total()),
        grouped(trial.sent)
    )
}

fn table(report: &MaxReport) -> TextTable {
    let mut table = TextTable::new([
        "trial",
        "asked/s",
        "sent/s",
        "sent",
        "delivered",
        "before",
        "kernel",
        "listener",
        "queue full",
        "sink error",
        "pipeline ns",
        "outcome",
    ]);
    for (place, trial) in report.trials.iter().enumerate() {
        let lost = trial.lost;
        table.row([
            (place + 1).to_string(),
            grouped(trial.rate),
            grouped(trial.sent_per_second.round() as u64),
            grouped(trial.sent),
            grouped(trial.delivered),
            grouped(lost.before_the_socket),
            grouped(lost.kernel),
            grouped(lost.listener),
            grouped(lost.queue_full),
            grouped(lost.sink_error),
            or_dash(trial.pipeline_ns.map(|ns| ns.round() as u64)),
            outcome(trial).to_owned(),
        ]);
    }
    table
}

fn text(report: &MaxReport, expect: Option<u64>, headroom: Option<f64>) -> String {
    let mut text: String = report.changed.iter().map(|change| format!("note: {change}\n")).collect();
    text += &format!("\n{}\n", table(report).text());
    text += &answer(report);
    if let (Some(expected), Some(headroom)) = (expect, headroom) {
        let word = if headroom < 0.0 { "short" } else { "headroom" };
        text += &format!("{:.1} % {word} against {}\n", headroom.abs(), grouped(expected));
    }
    text
}

fn answer(report: &MaxReport) -> String {
    let (rate, times) = (grouped(report.rate), report.repetitions);
    match report.limit {
        SearchLimit::Pipeline => {
            format!("{rate} datagrams a second without loss, {times} times in a row; above that the pipeline loses\n")
        }
        SearchLimit::Sender if report.rate == 0 => {
            format!("no rate: the sender could not reach even the lowest; begin lower with --rate, or {GIVE_MORE}\n")
        }
        SearchLimit::Sender => format!(
            "at least {rate} datagrams a second: the sender sent that many, and nothing was lost {times} times in a \
             row. The sender could not send more, so this is not the pipeline's limit; {GIVE_MORE}\n"
        ),
        SearchLimit::Asked => {
            format!("at least {rate} datagrams a second, the end of --rate, without loss {times} times in a row\n")
        }
        SearchLimit::Nothing => {
            "no rate: even the lowest loses; the table says where; begin lower with --rate\n".to_owned()
        }
        SearchLimit::Interrupted if report.rate == 0 => "interrupted: no rate was without loss until then\n".to_owned(),
        SearchLimit::Interrupted => format!("interrupted: {rate} datagrams a second were without loss until then\n"),
    }
}

const GIVE_MORE: &str = "give the sender more: --threads, a longer --gso train, cores of its own with --cpu";

/// Why the answer does not meet --expect; a rate that was never offered is not proved.
fn shortfall(report: &MaxReport, expected: u64) -> String {
    let rate = grouped(report.rate);
    let short = (1.0 - report.rate as f64 / expected as f64) * 100.0;
    let expected = grouped(expected);
    match report.limit {
        SearchLimit::Sender => format!(
            "--expect {expected}: not proved. The sender was short: it reached at most {} datagrams a second, and \
             {rate} were sent without loss often enough; {GIVE_MORE}",
            grouped(report.highest_sent)
        ),
        SearchLimit::Asked => {
            format!("--expect {expected}: not proved. The end of --rate was {rate} datagrams a second; raise it")
        }
        SearchLimit::Interrupted => format!("--expect {expected}: not proved, because the search was interrupted"),
        SearchLimit::Pipeline | SearchLimit::Nothing => format!(
            "{rate} datagrams a second, {short:.1} % short of --expect {expected}; the trials above say what was \
             lost where"
        ),
    }
}

//! `udpd bench ladder` as it is typed, and what it writes where.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::ground::Ground;
use super::measure::{Report, Task, run};
use super::show;
use super::step::Step;
use crate::cable;
use crate::machine::Machine;
use crate::options::{printed_json, seconds, usage};
use crate::output::Output;
use crate::rate;
use udpd_base::exit::Failure;
use udpd_base::os::console;
use udpd_base::os::interrupt::stop_on_signal;
use udpd_base::text::advice::ValueAdvice;

/// How long the machine is looked at before anything is measured.
const LOOK: Duration = Duration::from_millis(300);

/// The train of a sender on loopback, as far as its datagrams allow it.
const TRAIN: usize = 20;

/// The most rounds.
const ROUNDS_MAX: usize = 100;

/// The options of `udpd bench ladder`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Datagrams a second in every step [default: 1M, or what the sender can keep]
    #[arg(long, value_name = "N")]
    rate: Option<String>,
    /// How long to measure each step in each round, in seconds
    #[arg(long, value_name = "S", default_value = "0.7")]
    seconds: String,
    /// How often to measure each step
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Payload bytes, 32 to 65507
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    /// Datagrams that the sender hands over as one train for the kernel to cut, 1 to 128 [default: 20; on a cable 1]
    #[arg(long, value_name = "N")]
    gso: Option<usize>,
    #[command(flatten)]
    cable: cable::Options,
    /// Only these steps, such as recvmmsg,gather
    #[arg(long, value_name = "STEP,...", value_delimiter = ',')]
    steps: Vec<String>,
    /// Then repeat the last step over payloads from 32 to 65,507 bytes
    #[arg(long)]
    sizes: bool,
    /// Then repeat the last step with receiver and interrupt near and far
    #[arg(long)]
    placements: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw what a datagram costs in each step into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Overwrite the files of --csv and --svg if they exist
    #[arg(long)]
    force: bool,
}

impl Arguments {
    pub fn task(&self) -> Result<Task, Failure> {
        let refuse = |option: &str, what: String, cure: &str| Err(usage(option, &ValueAdvice::new(what, cure)));
        let rate = self.rate.as_deref().map(rate::parse_number).transpose();
        if !(1..=ROUNDS_MAX).contains(&self.rounds) {
            return refuse("--rounds", format!("{} is outside 1 to {ROUNDS_MAX}", self.rounds), "3 is the default");
        }
        if !(32..=65_507).contains(&self.size) {
            return refuse("--size", format!("{} is outside 32 to 65507 bytes", self.size), "64 is the default");
        }
        let is_cable = self.cable.is_wanted();
        let longest = if is_cable { 1 } else { (65_507 / self.size).clamp(1, 128) };
        let train = self.gso.unwrap_or(TRAIN.min(longest));
        if train == 0 || train > longest {
            let place = if is_cable { " over a cable" } else { "" };
            let what = format!("a train of {train} datagrams of {} bytes cannot be sent{place}", self.size);
            return refuse("--gso", what, &format!("write 1 to {longest}"));
        }
        if is_cable && self.sizes {
            let what = "frames on a cable end at its MTU".to_owned();
            return refuse("--sizes", what, "leave it out, and measure with several --size; or leave out --interface");
        }
        let step = |name: &String| {
            Step::ALL.into_iter().find(|step| step.name() == name).ok_or_else(|| {
                let names = Step::ALL.map(Step::name).join(",");
                usage(
                    "--steps",
                    &ValueAdvice::new(format!("there is no step {name:?}"), format!("write some of {names}")),
                )
            })
        };
        let steps: Vec<Step> = self.steps.iter().map(step).collect::<Result<_, _>>()?;
        // Nobody has asked for what loopback cannot have.
        let all = Step::ALL.into_iter().filter(|step| is_cable || !step.wants_cable());
        Ok(Task {
            steps: if steps.is_empty() { all.collect() } else { steps },
            rounds: self.rounds,
            duration: seconds("--seconds", &self.seconds)?,
            rate: rate.map_err(|advice| usage("--rate", &advice))?,
            size: self.size,
            train,
            sizes: self.sizes,
            placements: self.placements,
            ground: Ground::of(self.cable.cable()?),
        })
    }
}

/// What `udpd bench` does by itself.
impl Default for Arguments {
    fn default() -> Self {
        Self {
            rate: None,
            seconds: "0.7".to_owned(),
            rounds: 3,
            size: 64,
            gso: None,
            cable: cable::Options::default(),
            steps: Vec::new(),
            sizes: false,
            placements: false,
            json: false,
            csv: None,
            svg: None,
            force: false,
        }
    }
}

/// Measures, prints, writes the files that were asked for.
pub fn execute(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let task = arguments.task()?;
    let csv = Output::of("--csv", arguments.csv.as_ref(), arguments.force)?;
    let svg = Output::of("--svg", arguments.svg.as_ref(), arguments.force)?;
    let machine = Machine::read();
    let warnings = machine.warnings(LOOK);
    let stop = stop_on_signal(|| ())?;
    let is_terminal = io::stderr().is_terminal();
    let mut progress = |done: usize, all: usize, name: &str| {
        if is_terminal {
            // Nobody may be looking any more, and that is no reason to stop.
            let _ = write!(io::stderr(), "\r{done:>3} of {all}  {name:<24}");
        }
    };
    let outcome = run(&task, &stop, &mut progress);
    if is_terminal {
        let _ = write!(io::stderr(), "\r{:40}\r", "");
    }
    let report = outcome?;
    if let Some(csv) = csv {
        csv.write(&show::csv(&report))?;
    }
    if let Some(svg) = svg {
        svg.write(&show::svg(&task, &report, &machine))?;
    }
    let text = match arguments.json {
        true => json_text(&task, &machine, &warnings, &report)?,
        false => show::text(&task, &report, &machine, &warnings),
    };
    console::print(out, &text)
}

fn json_text(task: &Task, machine: &Machine, warnings: &[String], report: &Report) -> Result<String, Failure> {
    printed_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "warnings": warnings,
        "asked": {
            "steps": task.steps, "rounds": task.rounds, "seconds": task.duration.as_secs_f64(), "rate": task.rate,
            "size": task.size, "gso": task.train, "sizes": task.sizes, "placements": task.placements,
            "ground": task.ground.what(),
        },
        "report": report,
    }))
}

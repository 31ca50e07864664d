//! What the daemon costs above the least a program can do: CPU time for each datagram, against a bare recvmmsg loop in
//! C.
//!
//! ```text
//! cargo bench --bench against_c_loop [-- --pairs 5 --seconds 4 --only 1,000,000 --quick --before PROGRAM
//!                                   --record benches/runs/DATE-HOST]
//! ```
//!
//! The sender is pinned to CPU 0, the receiver to CPU 1, so this needs two cores and a machine that does little else.
//! `--before` lets another udpd take part, such as that of the commit before.
//!
//! The programs take turns within each pair, and the order turns round from pair to pair, so that neither profits from
//! a warmer or quieter moment. The C loop runs twice in each pair: its ratio to itself is the error of the others.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::c_program::{Compiled, compile};
use support::contender::{Contender, Offer, RECEIVER_CPU, Run, SENDER_CPU, SETTINGS, Setting, run};
use support::machine::facts;
use support::report::{Comparison, record, table};

const OFFERS: [Offer; 4] = [
    Offer::new("300,000/s", 300_000, None),
    Offer::new("600,000/s", 600_000, None),
    Offer::new("1,000,000/s in trains of 20", 1_000_000, Some(20)),
    Offer::new("1,500,000/s in trains of 20", 1_500_000, Some(20)),
];

struct Options {
    pairs: usize,
    seconds: f64,
    /// Only the offers whose name has this in it.
    only: String,
    /// Another udpd, lent for as long as the program runs.
    before: Option<&'static str>,
    record: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { pairs: 5, seconds: 4.0, only: String::new(), before: None, record: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            // cargo adds this one.
            "--bench" => {}
            "--quick" => (options.pairs, options.seconds) = (1, 1.0),
            "--pairs" => options.pairs = value()?.parse().map_err(|error| format!("--pairs: {error}"))?,
            "--seconds" => options.seconds = value()?.parse().map_err(|error| format!("--seconds: {error}"))?,
            "--only" => options.only = value()?,
            "--before" => options.before = Some(value()?.leak()),
            "--record" => options.record = Some(value()?.into()),
            _ => {
                return Err(format!(
                    "unknown argument {argument}: --pairs N, --seconds S, --only NAME, --before PROGRAM, --quick, \
                     --record DIR"
                ));
            }
        }
    }
    if options.pairs == 0 || options.seconds.is_nan() || options.seconds <= 0.0 {
        return Err("--pairs and --seconds must be above 0".to_owned());
    }
    Ok(options)
}

/// Where the sender makes trains, udpd may find that out by itself.
const AUTO: Setting = Setting { gro: "auto", ..SETTINGS[0] };

/// One pair: the C loop, udpd with each setting (the one before first), the C loop again; the other way round every
/// second time.
fn pair(number: usize, c_loop: &Path, offer: Offer, options: &Options) -> Vec<(Contender, Run)> {
    let mut order = vec![Contender::CLoop];
    let by_itself = offer.segment.map(|_| AUTO);
    for setting in SETTINGS.into_iter().chain(by_itself).filter(|setting| setting.is_possible()) {
        order.extend(options.before.map(|program| Contender::Before(program, setting)));
        order.push(Contender::Udpd(setting));
    }
    order.push(Contender::CLoopAgain);
    if number % 2 == 1 {
        order.reverse();
    }
    order.into_iter().map(|contender| (contender, run(contender, c_loop, offer, options.seconds))).collect()
}

/// What stands in the way of a meaningful comparison, if anything does.
fn obstacle() -> Option<String> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let allowed = |cpu| cores.iter().any(|core| core.id == cpu);
    let both = allowed(SENDER_CPU) && allowed(RECEIVER_CPU);
    (!both).then(|| format!("needs CPU {SENDER_CPU} for the sender and CPU {RECEIVER_CPU} for the receiver"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut out = io::stdout().lock();
    if let Some(obstacle) = obstacle() {
        writeln!(out, "SKIPPED: {obstacle}")?;
        return Ok(());
    }
    if let Err(refusal) = mmsg::Uring::supported() {
        writeln!(out, "WITHOUT io_uring: {refusal}")?;
    }
    let Compiled::Program(c_loop) = compile("recvmmsg_loop")? else {
        writeln!(out, "SKIPPED: there is no C compiler (cc) to build the loop that udpd is compared with")?;
        return Ok(());
    };
    if cfg!(debug_assertions) {
        writeln!(out, "WARNING: a debug build; these figures mean nothing. Use `cargo bench`.")?;
    }
    let mut comparisons = Vec::new();
    for offer in OFFERS.into_iter().filter(|offer| offer.name.contains(&options.only)) {
        let mut pairs = Vec::new();
        for number in 0..options.pairs {
            writeln!(out, "{}: pair {} of {}", offer.name, number + 1, options.pairs)?;
            pairs.push(pair(number, &c_loop, offer, &options));
        }
        comparisons.push(Comparison { offer, pairs });
    }
    let summary = format!(
        "# udpd against a bare recvmmsg loop\n\
         \n\
         {} pairs of {} s, 32-byte payloads from 16 ports, over loopback; medians.\n\
         `ratio` is the cost divided by the C loop's, pair by pair; the C loop's to itself is the error of this \
         machine.\n\
         \n\
         {}\n\
         {}",
        options.pairs,
        options.seconds,
        table(&comparisons),
        facts()
    );
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        record(folder, &comparisons, &summary)
            .map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
        writeln!(out, "recorded in {}", folder.display())?;
    }
    Ok(())
}

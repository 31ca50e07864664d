//! The highest rate without loss, null sink, beside that of the bare loop in C.
//!
//! ```text
//! cargo bench --bench highest_rate [-- --pairs 5 --seconds 1 --quick --record DIR]
//! ```
//!
//! The sender cuts trains (UDP_SEGMENT), because one core cannot send so many datagrams one by one. Each search halves
//! the distance between a rate that was kept and one that was not, so it cannot be unlucky in only one direction; where
//! the sender does not keep up, its own limit is the end of the search and the table says so.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::c_program::{Compiled, compile};
use support::contender::{Contender, Offer, SETTINGS, run};
use support::machine::facts;
use support::options::Options;
use support::report::median;

/// Both ends of the search, and how often the distance is halved.
const LOWEST_PER_SECOND: u64 = 200_000;
const HIGHEST_PER_SECOND: u64 = 3_400_000;
const HALVINGS: usize = 6;
const QUICK_HALVINGS: usize = 2;

/// A sender that keeps less of its rate than this is at its limit.
const KEPT: f64 = 0.98;

/// What a search found.
struct Found {
    /// The highest rate, as really sent, at which nothing was lost.
    per_second: f64,
    /// Above it the sender could not keep the rate, so the receiver's limit was not seen.
    is_senders_limit: bool,
}

fn search(contender: Contender, c_loop: &Path, options: &Options) -> Found {
    let mut found = Found { per_second: 0.0, is_senders_limit: false };
    let (mut low, mut high) = (LOWEST_PER_SECOND, HIGHEST_PER_SECOND);
    for _ in 0..if options.quick { QUICK_HALVINGS } else { HALVINGS } {
        let rate = low.midpoint(high);
        let run = run(contender, c_loop, Offer::new("search", rate, Some(64)), options.seconds);
        let kept = run.sent_per_second() >= KEPT * rate as f64;
        if run.lost() == 0 && run.sent_per_second() > found.per_second {
            found = Found { per_second: run.sent_per_second(), is_senders_limit: !kept };
        }
        if run.lost() == 0 && kept { low = rate } else { high = rate }
    }
    found
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(1.0, 0.3)?;
    let mut out = io::stdout().lock();
    if core_affinity::get_core_ids().unwrap_or_default().len() < 2 {
        writeln!(out, "SKIPPED: needs a core for the sender and one for the receiver")?;
        return Ok(());
    }
    let Compiled::Program(c_loop) = compile("recvmmsg_loop")? else {
        writeln!(out, "SKIPPED: there is no C compiler (cc) to build the loop that udpd is compared with")?;
        return Ok(());
    };
    let mut contenders = vec![(Contender::CLoop, "C loop".to_owned())];
    for setting in SETTINGS.into_iter().filter(|setting| setting.is_possible()) {
        contenders.push((Contender::Udpd(setting), format!("udpd {} {}", setting.engine, setting.gather)));
    }
    contenders.push((Contender::CLoopAgain, "C loop again".to_owned()));
    let mut found: Vec<Vec<Found>> = contenders.iter().map(|_| Vec::new()).collect();
    for pair in 0..options.pairs {
        writeln!(out, "pair {} of {}", pair + 1, options.pairs)?;
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for place in order {
            found[place].push(search(contenders[place].0, &c_loop, &options));
        }
    }
    let mut summary = format!(
        "# The highest rate without loss\n\
         \n\
         {} pairs, trials of {} s, 32 bytes in trains of 64 over loopback; medians.\n\
         \n\
         | program | highest/s without loss | ratio | searches that ended at the sender's limit |\n\
         |---|---|---|---|\n",
        options.pairs, options.seconds
    );
    for (place, (_, name)) in contenders.iter().enumerate() {
        let rates = || found[place].iter().map(|one| one.per_second);
        let ratios = rates().zip(&found[0]).map(|(rate, floor)| rate / floor.per_second.max(1.0)).collect();
        let at_limit = found[place].iter().filter(|one| one.is_senders_limit).count();
        let (rate, ratio) = (median(rates().collect()), median(ratios));
        writeln!(summary, "| {name} | {rate:.0} | {ratio:.2} | {at_limit} of {} |", options.pairs)?;
    }
    write!(summary, "\n{}", facts())?;
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("highest.md"), &summary)?;
    }
    Ok(())
}

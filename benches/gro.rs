//! What GRO saves where it can: one flow of equal datagrams from a sender that segments, taken as trains and one by
//! one.
//!
//! ```text
//! cargo bench --bench gro [-- --pairs 5 --seconds 2 --quick --record DIR]
//! ```
//!
//! The figure is datagrams for each second of the daemon's CPU time. Without GRO the kernel cuts each train at the
//! socket, so both see the same datagrams. The run without GRO is repeated in each pair: its ratio to itself is the
//! error of the other.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::contender::{Contender, Offer, Run, SETTINGS, Setting, run};
use support::machine::facts;
use support::options::Options;
use support::report::median;

/// Trains as long as one IP packet holds, at rates that the sender keeps.
const OFFERS: [Offer; 2] = [
    Offer { name: "1,200 bytes in trains of 50", rate_per_second: 0, segment: Some(50), flows: 1, payload_bytes: 1200 },
    Offer { name: "32 bytes in trains of 128", rate_per_second: 0, segment: Some(128), flows: 1, payload_bytes: 32 },
];

const OFF: Setting = Setting { gro: "off", ..SETTINGS[0] };
const ON: Setting = Setting { gro: "on", ..SETTINGS[0] };

/// Datagrams for each second of CPU time.
fn per_cpu_second(run: &Run) -> f64 {
    1e9 / run.process_ns_each()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(2.0, 0.5)?;
    let mut out = io::stdout().lock();
    if core_affinity::get_core_ids().unwrap_or_default().len() < 2 {
        writeln!(out, "SKIPPED: needs a core for the sender and one for the receiver")?;
        return Ok(());
    }
    let mut summary = format!(
        "# GRO on against GRO off\n\
         \n\
         {} pairs of {} s, one flow over loopback; medians.\n\
         \n\
         | offered | gro | sent/s | lost | datagrams per CPU-second | ratio | machine ns each |\n\
         |---|---|---|---|---|---|---|\n",
        options.pairs, options.seconds
    );
    for offer in OFFERS {
        let (mut off, mut on, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..options.pairs {
            writeln!(out, "{}: pair {} of {}", offer.name, pair + 1, options.pairs)?;
            let one = |setting| run(Contender::Udpd(setting), Path::new(""), offer, options.seconds);
            off.push(one(OFF));
            on.push(one(ON));
            again.push(one(OFF));
        }
        for (name, runs) in [("off", &off), ("on", &on), ("off again", &again)] {
            let each = |figure: fn(&Run) -> f64| median(runs.iter().map(figure).collect());
            let ratios = runs.iter().zip(&off).map(|(run, off)| per_cpu_second(run) / per_cpu_second(off)).collect();
            writeln!(
                summary,
                "| {} | {name} | {:.0} | {} | {:.0} | {:.2} | {:.0} |",
                offer.name,
                each(Run::sent_per_second),
                runs.iter().map(Run::lost).sum::<i64>(),
                each(per_cpu_second),
                median(ratios),
                each(Run::machine_ns_each),
            )?;
        }
    }
    write!(summary, "\n{}", facts())?;
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("gro.md"), &summary)?;
    }
    Ok(())
}

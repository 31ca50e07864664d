//! How a comparison is written down: a table for the eye, every run as CSV, to check it.
//!
//! Ratios are taken pair by pair and the median is shown: a machine that slows down for a minute slows both halves of a
//! pair. The ratio of the C loop to itself says how far any ratio of this machine can be trusted.

use std::fmt::Write as _;
use std::path::Path;

use super::contender::{Contender, Offer, Run, Setting};

/// All pairs of one offer.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// What was offered.
    pub(crate) offer: Offer,
    /// One entry a pair, and in it every contender once.
    pub(crate) pairs: Vec<Vec<(Contender, Run)>>,
}

impl Comparison {
    /// All contenders, the C loop first and its repetition last.
    fn contenders(&self) -> Vec<Contender> {
        let mut all: Vec<Contender> = self.pairs[0].iter().map(|(contender, _)| *contender).collect();
        all.sort_by_key(|contender| match contender {
            Contender::CLoop => (0, None),
            Contender::Udpd(setting) => (1, Some((setting.engine != "recvmmsg", setting.gather))),
            Contender::Before(_, setting) => (2, Some((setting.engine != "recvmmsg", setting.gather))),
            Contender::CLoopAgain => (3, None),
        });
        all
    }

    fn runs(&self, wanted: Contender) -> Vec<&Run> {
        self.pairs.iter().flatten().filter(|(contender, _)| *contender == wanted).map(|(_, run)| run).collect()
    }

    /// The median over the pairs of a contender's cost divided by the C loop's.
    fn ratio(&self, contender: Contender, cost: fn(&Run) -> f64) -> f64 {
        self.ratio_to(Contender::CLoop, contender, cost)
    }

    /// The median over the pairs of one contender's cost divided by another's.
    fn ratio_to(&self, floor: Contender, contender: Contender, cost: fn(&Run) -> f64) -> f64 {
        let floor = self.runs(floor);
        median(self.runs(contender).iter().zip(floor).map(|(run, floor)| cost(run) / cost(floor)).collect())
    }
}

/// The table of medians.
pub(crate) fn table(comparisons: &[Comparison]) -> String {
    let mut text = String::from(
        "| offered | program | sent/s | received | lost | kernel says | per call | process ns each | ratio | machine \
         ns each | ratio |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for comparison in comparisons {
        for contender in comparison.contenders() {
            let runs = comparison.runs(contender);
            let total = |count: fn(&Run) -> i64| runs.iter().map(|run| count(run)).sum::<i64>();
            let each = |cost: fn(&Run) -> f64| median(runs.iter().map(|run| cost(run)).collect());
            writeln!(
                text,
                "| {} | {} | {:.0} | {} | {} | {} | {:.1} | {:.0} | {:.3} | {:.0} | {:.3} |",
                comparison.offer.name,
                name(contender),
                each(Run::sent_per_second),
                total(|run| run.received.cast_signed()),
                total(Run::lost),
                total(|run| run.kernel_dropped.cast_signed()),
                each(Run::datagrams_per_call),
                each(Run::process_ns_each),
                comparison.ratio(contender, Run::process_ns_each),
                each(Run::machine_ns_each),
                comparison.ratio(contender, Run::machine_ns_each),
            )
            .expect("a String takes everything");
        }
    }
    text + &against_before(comparisons)
}

/// What each setting costs against the udpd of before, pair by pair, where that took part.
fn against_before(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        for contender in comparison.contenders() {
            let Contender::Before(_, setting) = contender else { continue };
            let ratio = |cost| comparison.ratio_to(contender, Contender::Udpd(setting), cost);
            let (process, machine) = (ratio(Run::process_ns_each), ratio(Run::machine_ns_each));
            let (offer, udpd) = (comparison.offer.name, name(Contender::Udpd(setting)));
            let _ = writeln!(text, "\n{offer}, {udpd} against before: process {process:.3}, machine {machine:.3}");
        }
    }
    text
}

/// Writes raw.csv and summary.md.
pub(crate) fn record(folder: &Path, comparisons: &[Comparison], summary: &str) -> std::io::Result<()> {
    let mut csv =
        String::from("offered,pair,program,sent,seconds,received,calls,kernel_dropped,process_ns,machine_ns\n");
    for comparison in comparisons {
        for (pair, runs) in comparison.pairs.iter().enumerate() {
            for (contender, run) in runs {
                let Run { sent, seconds, received, calls, kernel_dropped, process_ns, machine_ns } = run;
                let (offer, program) = (comparison.offer.name, name(*contender));
                writeln!(
                    csv,
                    "{offer},{pair},{program},{sent},{seconds:.3},{received},{calls},\
                     {kernel_dropped},{process_ns},{machine_ns}"
                )
                .expect("a String takes everything");
            }
        }
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("raw.csv"), csv)?;
    std::fs::write(folder.join("summary.md"), summary)
}

fn name(contender: Contender) -> String {
    match contender {
        Contender::CLoop => "C loop".to_owned(),
        Contender::Udpd(setting) => format!("udpd {}", way(setting)),
        Contender::Before(_, setting) => format!("udpd before {}", way(setting)),
        Contender::CLoopAgain => "C loop again".to_owned(),
    }
}

fn way(Setting { engine, gather, gro }: Setting) -> String {
    let trains = if gro == "off" { String::new() } else { format!(" gro {gro}") };
    format!("{engine} {gather}{trains}")
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

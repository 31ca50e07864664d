//! `udpd bench send`: numbered, timed datagrams at a rate that is kept, and a report of what was really sent. Here is
//! the command line, and the report as it is printed.

mod frames;
mod link;
mod load;
mod report;
mod run;

use std::io::Write;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;

use self::frames::{parse_mac, parse_network};
use self::report::InterfaceSent;
use crate::output::{Output, flows, progress, seconds, usage};
use crate::pacer::{self, Rate, SendAmount};
use crate::sizes::Sizes;
use udpd_base::exit::Failure;
use udpd_base::os::console::stop_on_signal;
use udpd_base::os::lookup;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::tables::{TextTable, grouped, or_dash};
use udpd_base::text::units;

pub(super) use frames::{FrameLoad, SendEngine, benchmark_networks, parse_mix, run_frames};
pub(super) use link::{LinkInfo, Mac};
pub(super) use load::SendLoad;
pub(super) use report::{SendSecond, SenderReport};
pub(super) use run::run;

/// How long to send by default, so that a sender that was forgotten does not flood a host for a night.
const UNASKED: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct SendArguments {
    /// Where to send; a name is looked up once
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Datagrams a second: 5000, 10k, 1.5M, a ramp such as 10k..1M, or max
    #[arg(long, value_name = "RATE", default_value = "1k")]
    rate: String,
    /// Stop after this many seconds [default: 60, without --count]
    #[arg(long, value_name = "S", conflicts_with = "count")]
    seconds: Option<String>,
    /// Stop after this many datagrams
    #[arg(long, value_name = "N")]
    count: Option<String>,
    /// Payload bytes: one size, an even range such as 64:1400, or imix (18, 548 and 1472, 7 to 4 to 1)
    #[arg(long, value_name = "SIZE", default_value = "64")]
    size: String,
    /// Flows, each from a source port of its own, up to 65,536; with --engine xdp or packet up to 16M
    #[arg(long, value_name = "F", default_value = "16")]
    flows: String,
    /// Local addresses to send from, in turn; with --engine xdp or packet one network such as 198.18.0.0/15
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    sources: Vec<String>,
    /// Who sends: sockets, or frames that go past them for rates and flows that no socket reaches
    #[arg(long, value_enum, default_value = "socket")]
    engine: SendEngine,
    /// By which interface frames leave, with --engine xdp or packet
    #[arg(long, value_name = "IF", required_if_eq_any = [("engine", "xdp"), ("engine", "packet")])]
    interface: Option<String>,
    /// Send frames by --interface although a default route leaves by it
    #[arg(long, requires = "interface")]
    despite_default_route: bool,
    /// The hardware address that frames go to [default: the next hop's, from the neighbour table]
    #[arg(long, value_name = "MAC", requires = "interface")]
    destination_mac: Option<String>,
    /// Which flow a frame is of: uniform, round-robin, hot:20% (one flow with that share), zipf:1.1 [default: uniform]
    #[arg(long, value_name = "MIX", requires = "interface")]
    mix: Option<String>,
    /// Leave the UDP checksum of frames out, which only IPv4 allows
    #[arg(long, requires = "interface")]
    no_checksum: bool,
    /// Hand the kernel trains of this many datagrams to cut (UDP_SEGMENT)
    #[arg(long, value_name = "N")]
    gso: Option<NonZeroUsize>,
    /// Sender threads, which share the flows and the rate
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: usize,
    /// Send this many at once, or smooth: each when it is due
    #[arg(long, value_name = "N|smooth", default_value = "smooth")]
    burst: String,
    /// Pin the threads to these cores, in turn
    #[arg(long, value_name = "LIST")]
    cpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SendRequest {
    Datagrams(SendLoad),
    Frames(Box<FrameLoad>),
}

impl SendRequest {
    fn load(&self) -> &SendLoad {
        match self {
            Self::Datagrams(load) => load,
            Self::Frames(frames) => &frames.load,
        }
    }
}

impl SendArguments {
    pub fn asked(&self) -> Result<SendRequest, Failure> {
        let mut load = self.load()?;
        let Some(interface) = self.interface.as_ref().filter(|_| self.engine != SendEngine::Socket) else {
            if self.interface.is_some() {
                let advice =
                    ValueAdvice::new("sockets send by the route", "add --engine xdp or packet, or leave it out");
                return Err(usage("--interface", &advice));
            }
            load.sources = self.sources.iter().map(|text| source(text)).collect::<Result<_, _>>()?;
            load.check()?;
            return Ok(SendRequest::Datagrams(load));
        };
        let network = match self.sources.as_slice() {
            [] => None,
            [one] => Some(parse_network(one).map_err(|advice| usage("--sources", &advice))?),
            _ => {
                let advice = ValueAdvice::new("several addresses", "write one network such as 198.18.0.0/15");
                return Err(usage("--sources", &advice));
            }
        };
        let mac = self.destination_mac.as_deref().map(parse_mac).transpose();
        let frames = FrameLoad {
            load,
            engine: self.engine,
            interface: interface.clone(),
            mac: mac.map_err(|advice| usage("--destination-mac", &advice))?,
            mix: parse_mix(self.mix.as_deref().unwrap_or("uniform")).map_err(|advice| usage("--mix", &advice))?,
            sources: network,
            checksum: !self.no_checksum,
            despite_default_route: self.despite_default_route,
        };
        frames.check()?;
        Ok(SendRequest::Frames(Box::new(frames)))
    }

    /// What sockets and frames have in common.
    fn load(&self) -> Result<SendLoad, Failure> {
        let to = lookup::destination("--to", &self.to)?.address;
        let rate = Rate::parse(&self.rate).map_err(|advice| usage("--rate", &advice))?;
        let amount = match (&self.seconds, &self.count) {
            (Some(text), _) => SendAmount::Seconds(seconds("--seconds", text)?),
            (None, Some(text)) => {
                SendAmount::Count(pacer::parse_count(text).map_err(|advice| usage("--count", &advice))?)
            }
            // A ramp needs an end that the operator chooses.
            (None, None) if matches!(rate, Rate::Ramp(..)) => SendAmount::UntilStopped,
            (None, None) => SendAmount::Seconds(UNASKED),
        };
        Ok(SendLoad {
            sizes: Sizes::parse(&self.size).map_err(|advice| usage("--size", &advice))?,
            flows: flows(&self.flows)?,
            gso: self.gso,
            threads: self.threads,
            burst: self.burst()?,
            cpus: self
                .cpu
                .as_deref()
                .map_or(Ok(Vec::new()), |list| units::parse_cpus(list).map_err(|advice| usage("--cpu", &advice)))?,
            ..SendLoad::new(to, rate, amount)
        })
    }

    fn burst(&self) -> Result<Option<NonZeroUsize>, Failure> {
        match self.burst.as_str() {
            "smooth" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let what = format!("{text:?} is not a number of datagrams");
                usage("--burst", &ValueAdvice::new(what, "write one such as 32, or smooth"))
            }),
        }
    }
}

fn source(text: &str) -> Result<IpAddr, Failure> {
    text.parse().map_err(|_| {
        let what = format!("{text:?} is not an IP address");
        usage(
            "--sources",
            &ValueAdvice::new(what, "write addresses of this host without ports, such as 127.0.0.2,127.0.0.3"),
        )
    })
}

/// Sends what is asked for until it is done or interrupted, and prints the report.
pub fn execute(arguments: &SendArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let asked = arguments.asked()?;
    let output = Output::new(arguments.json, Duration::ZERO);
    let stop = stop_on_signal(|| ())?;
    let mut each_second = |second: &SendSecond| progress(|| second_line(second) + "\n");
    let report = match &asked {
        SendRequest::Datagrams(load) => run(load, &stop, &mut each_second)?,
        SendRequest::Frames(frames) => run_frames(frames, &stop, &mut each_second)?,
    };
    let (load, is_frames) = (asked.load(), matches!(asked, SendRequest::Frames(_)));
    let engine = arguments.engine.to_possible_value().map(|value| value.get_name().to_owned());
    let asked = json!({
        "to": load.to, "rate": load.rate.to_string(), "size": load.sizes.to_string(), "flows": load.flows,
        // As they were written: for frames a network.
        "sources": arguments.sources,
        "gso": load.gso, "threads": load.threads, "burst": load.burst, "cpus": load.cpus,
        "engine": engine, "interface": arguments.interface,
        "mix": is_frames.then(|| arguments.mix.as_deref().unwrap_or("uniform")),
        "checksum": is_frames.then_some(!arguments.no_checksum),
    });
    output.print(out, json!({ "asked": asked }), &report, || text(load, &report))
}

fn second_line(second: &SendSecond) -> String {
    let SendSecond { second: number, asked, sent, refused, .. } = second;
    format!("{number:>4} s: sent {}, asked {}, refused {refused}", grouped(*sent), or_dash(*asked))
}

fn text(load: &SendLoad, report: &SenderReport) -> String {
    let mut seconds = TextTable::new(["second", "asked", "sent", "refused", "calls"]);
    for second in &report.each_second {
        seconds.row([
            second.second.to_string(),
            or_dash(second.asked),
            grouped(second.sent),
            grouped(second.refused),
            grouped(second.calls),
        ]);
    }
    let mut text = seconds.text();
    text += &format!(
        "\nsent {} datagrams to {} in {:.3} s: {} a second, {:.1} Mbit/s of payload, run {:04x}\n",
        grouped(report.sent),
        load.to,
        report.seconds,
        grouped(report.rate.round() as u64),
        report.bytes as f64 * 8.0 / report.seconds / 1e6,
        report.run,
    );
    if let (Some(asked), Some(error)) = (report.asked, report.pacing_error_percent) {
        text += &format!("asked {}, pacing error {error:.3} %", grouped(asked));
        if let Some(late) = &report.lateness {
            text += &format!(
                "; late by {:.1} us p50, {:.1} us p99, {:.1} us at most",
                late.p50_us, late.p99_us, late.max_us
            );
        }
        text.push('\n');
    }
    text += &format!(
        "{} calls, {:.1} datagrams each; {:.3} s of CPU, {:.0} ns a datagram\n",
        grouped(report.calls),
        report.sent as f64 / report.calls.max(1) as f64,
        report.cpu_seconds,
        report.cpu_seconds * 1e9 / report.sent.max(1) as f64,
    );
    if report.long_calls {
        text += "each call waited for all cores, so frames came in groups; with CAP_SYS_ADMIN calls are short\n";
    }
    if let Some(InterfaceSent { name, packets, errors, dropped }) = &report.interface {
        text += &format!(
            "{name} counted {} packets sent, {} errors, {} dropped, those of others included\n",
            grouped(*packets),
            grouped(*errors),
            grouped(*dropped),
        );
    }
    text += &list("refused", "datagrams; the receiver misses their sequences", &report.refused);
    text += &list("answered", "times, about datagrams sent before", &report.answers);
    text += &list("repeated", "calls, because the kernel had no buffers", &report.repeated);
    if report.segmentation_refused {
        text += "the route cannot cut trains: the datagrams of --gso went out one by one\n";
    }
    text
}

fn list(what: &str, of: &str, counts: &std::collections::BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{what}: {name}, {} {of}\n", grouped(*count))).collect()
}

//! What the crate `mmsg` costs above the bare system call: a filled socket is drained, so that neither a sender nor a
//! wake-up is in the picture, beside the same in C.
//!
//! ```text
//! cargo bench --bench against_c_drain [-- --pairs 9 --queued 500 --rounds 2000 --quick --record DIR]
//! ```
//!
//! The two take turns, and the C loop runs twice in each pair: its ratio to itself is the error of the other.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Family, RecvBatch, SendBatch, Socket, Wait};

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::c_program::{Compiled, compile};
use support::machine::facts;
use support::report::median;

const CPU: usize = 1;
const BATCH: usize = 64;
const PAYLOAD: [u8; 32] = [0; 32];

struct Options {
    pairs: usize,
    queued: usize,
    rounds: usize,
    record: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { pairs: 9, queued: 500, rounds: 2_000, record: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|error| format!("{argument} {text}: {error}"));
        match argument.as_str() {
            "--bench" => {}
            "--quick" => (options.pairs, options.rounds) = (1, 100),
            "--pairs" => options.pairs = number(value()?)?.max(1),
            "--queued" => options.queued = number(value()?)?.max(1),
            "--rounds" => options.rounds = number(value()?)?.max(1),
            "--record" => options.record = Some(value()?.into()),
            _ => {
                return Err(format!(
                    "unknown argument {argument}: --pairs N, --queued N, --rounds N, --quick, --record DIR"
                ));
            }
        }
    }
    Ok(options)
}

/// The C loop's nanoseconds for each datagram.
fn c_loop(program: &Path, options: &Options) -> f64 {
    let arguments = [options.queued.to_string(), options.rounds.to_string(), CPU.to_string(), BATCH.to_string()];
    let output = Command::new(program).args(arguments).output().expect("the C loop starts");
    assert!(output.status.success(), "the C loop: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("the C loop prints one number")
}

/// The same with `mmsg`, on a thread of its own because it is pinned.
fn with_mmsg(options: &Options) -> f64 {
    std::thread::scope(|scope| scope.spawn(|| drain_rounds(options)).join().expect("the thread ends"))
}

fn drain_rounds(options: &Options) -> f64 {
    assert!(core_affinity::set_for_current(core_affinity::CoreId { id: CPU }), "pinned to CPU {CPU}");
    let receiver = Socket::new(Family::V4).expect("a socket");
    receiver.set_receive_buffer(64 << 20).expect("a receive buffer");
    receiver.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let sender = Socket::new(Family::V4).expect("a socket");
    sender.connect(receiver.local_addr().expect("bound")).expect("connected");
    let shape = BatchShape::new(BATCH, 2048);
    let mut batch = RecvBatch::new(&shape).expect("a batch");
    let mut outgoing = SendBatch::new(BATCH, PAYLOAD.len()).expect("a batch");
    let mut took = Duration::ZERO;
    let mut sum = 0;
    for _ in 0..options.rounds {
        fill(&sender, &mut outgoing, options.queued);
        let begun = Instant::now();
        let mut left = options.queued;
        while left > 0 {
            left -= batch.receive(&receiver, Wait::No).expect("what was queued");
            sum +=
                batch.datagrams().map(|datagram| datagram.length() + usize::from(datagram.payload()[0])).sum::<usize>();
        }
        took += begun.elapsed();
    }
    std::hint::black_box(sum);
    took.as_nanos() as f64 / (options.queued * options.rounds) as f64
}

fn fill(sender: &Socket, batch: &mut SendBatch, mut count: usize) {
    while count > 0 {
        while count > 0 && !batch.is_full() {
            batch.push(&PAYLOAD, None).expect("room");
            count -= 1;
        }
        batch.flush(sender).expect("sent").all_sent().expect("all sent");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut out = io::stdout().lock();
    let program = match compile("drain_loop")? {
        Compiled::Program(program) => program,
        Compiled::NoCompiler => {
            writeln!(out, "SKIPPED: there is no C compiler (cc) to build the loop that mmsg is compared with")?;
            return Ok(());
        }
    };
    if !core_affinity::get_core_ids().unwrap_or_default().iter().any(|core| core.id == CPU) {
        writeln!(out, "SKIPPED: needs CPU {CPU}")?;
        return Ok(());
    }
    let (mut floor, mut again, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..options.pairs {
        writeln!(out, "pair {} of {}", pair + 1, options.pairs)?;
        floor.push(c_loop(&program, &options));
        ours.push(with_mmsg(&options));
        again.push(c_loop(&program, &options));
    }
    let ratio = |runs: &[f64]| median(runs.iter().zip(&floor).map(|(run, floor)| run / floor).collect());
    let mut summary = format!(
        "# mmsg against recvmmsg in C, drained socket\n\
         \n\
         {} pairs of {} rounds, {} datagrams of {} bytes queued, batches of {BATCH}; medians.\n\
         \n\
         | program | ns each | ratio |\n\
         |---|---|---|\n",
        options.pairs,
        options.rounds,
        options.queued,
        PAYLOAD.len()
    );
    for (name, runs) in [("C loop", &floor), ("mmsg", &ours), ("C loop again", &again)] {
        writeln!(summary, "| {name} | {:.1} | {:.3} |", median(runs.clone()), ratio(runs))?;
    }
    write!(summary, "\n{}", facts())?;
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("drain.md"), &summary)?;
    }
    Ok(())
}

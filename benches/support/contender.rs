//! The programs that are compared, driven and measured in the same way.
//!
//! Both are measured from outside, by the CPU clock of the process, from the moment they are ready to the moment they
//! have taken the last datagram: starting and ending are not what is compared.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;

use super::machine::busy_ns;
use crate::util::ledger::{count, list};
use crate::util::load::{Amount, Load, LoadReport};
use crate::util::{Daemon, free_address};

/// The core of the sender and that of the receiver.
pub(crate) const SENDER_CPU: usize = 0;
pub(crate) const RECEIVER_CPU: usize = 1;
/// What both ask of the kernel.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Far longer than the receiver needs for what is left in its socket when the sender has ended.
const SETTLE: Duration = Duration::from_millis(30);
/// The C loop ends by itself after this long, if nothing ends it before.
const C_LOOP_SECONDS_MAX: &str = "600";

/// Who takes the datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// benches/baseline/recvmmsg_loop.c.
    CLoop,
    /// The daemon: one lane, null sink.
    Udpd(Setting),
    /// Another udpd, such as that of the commit before, by the path of its program.
    Before(&'static str, Setting),
    /// The C loop again: what differs between the two is what the machine adds by itself.
    CLoopAgain,
}

/// What is set differently from run to run of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The key `engine`.
    pub(crate) engine: &'static str,
    /// The key `gather`.
    pub(crate) gather: &'static str,
    /// The key `gro`.
    pub(crate) gro: &'static str,
}

impl Setting {
    /// Without GRO, because the loop has none.
    const fn new(engine: &'static str, gather: &'static str) -> Self {
        Self { engine, gather, gro: "off" }
    }

    /// Whether this machine has the engine.
    pub(crate) fn is_possible(self) -> bool {
        self.engine == "recvmmsg" || mmsg::Uring::supported().is_ok()
    }
}

/// The settings that are compared; the first is what a listener has by itself.
pub(crate) const SETTINGS: [Setting; 4] = [
    Setting::new("recvmmsg", "0ms"),
    Setting::new("recvmmsg", "1ms"),
    Setting::new("io_uring", "0ms"),
    Setting::new("io_uring", "1ms"),
];

/// How the datagrams are offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// For the table.
    pub(crate) name: &'static str,
    /// Datagrams a second.
    pub(crate) rate_per_second: u64,
    /// Datagrams in a UDP_SEGMENT train.
    pub(crate) segment: Option<u16>,
    /// Source ports.
    pub(crate) flows: usize,
    /// Length of each datagram.
    pub(crate) payload_bytes: usize,
}

impl Offer {
    /// 32 bytes from 16 ports.
    pub(crate) const fn new(name: &'static str, rate_per_second: u64, segment: Option<u16>) -> Self {
        Self { name, rate_per_second, segment, flows: 16, payload_bytes: 32 }
    }
}

/// What one run came to.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// How long that took.
    pub(crate) seconds: f64,
    /// Datagrams the program says it received.
    pub(crate) received: u64,
    /// Receive calls that returned datagrams.
    pub(crate) calls: u64,
    /// Datagrams the program says the kernel dropped.
    pub(crate) kernel_dropped: u64,
    /// CPU time of the process.
    pub(crate) process_ns: u64,
    /// CPU time of the whole machine, the sender's included.
    pub(crate) machine_ns: u64,
}

impl Run {
    /// Datagrams sent and not received, whatever the program says.
    pub(crate) fn lost(&self) -> i64 {
        self.sent.cast_signed() - self.received.cast_signed()
    }

    /// Datagrams that really were sent in a second: a sender may be slower than it is asked to be.
    pub(crate) fn sent_per_second(&self) -> f64 {
        self.sent as f64 / self.seconds
    }

    /// Datagrams for each receive call.
    pub(crate) fn datagrams_per_call(&self) -> f64 {
        self.received as f64 / self.calls.max(1) as f64
    }

    /// CPU time of the process for each datagram received.
    pub(crate) fn process_ns_each(&self) -> f64 {
        self.process_ns as f64 / self.received.max(1) as f64
    }

    /// CPU time of the machine for each datagram received.
    pub(crate) fn machine_ns_each(&self) -> f64 {
        self.machine_ns as f64 / self.received.max(1) as f64
    }
}

/// Runs one contender once.
pub(crate) fn run(contender: Contender, c_loop: &Path, offer: Offer, seconds: f64) -> Run {
    let address = free_address();
    let mut load = Load::new(address, Amount::Seconds(seconds));
    load.overruns = true;
    load.rate_per_second = offer.rate_per_second;
    load.segment = offer.segment;
    (load.flows, load.payload_bytes) = (offer.flows, offer.payload_bytes);
    load.cpu = Some(SENDER_CPU);
    match contender {
        Contender::CLoop | Contender::CLoopAgain => {
            let running = CLoop::start(c_loop, address.port());
            let Cost { sent, seconds, process_ns, machine_ns } = measure(running.child.id(), load);
            let result = running.end();
            let (received, kernel_dropped) = (count(&result, "received"), count(&result, "kernel_dropped"));
            let calls = count(&result, "calls");
            Run { sent, seconds, received, calls, kernel_dropped, process_ns, machine_ns }
        }
        Contender::Udpd(setting) | Contender::Before(_, setting) => {
            let text = configuration(&address.to_string(), setting);
            let daemon = match contender {
                Contender::Before(program, _) => Daemon::with_config_of(program, &text),
                _ => Daemon::with_config(&text),
            };
            let Cost { sent, seconds, process_ns, machine_ns } = measure(daemon.pid(), load);
            let ended = daemon.terminate();
            assert!(ended.status.success(), "udpd ended with {}: {}", ended.status, ended.stderr);
            let listener = &list(&ended.ledger, "listeners")[0];
            let (received, kernel_dropped) = (count(listener, "received"), count(listener, "kernel_dropped"));
            let calls = list(listener, "lanes").iter().map(|lane| count(lane, "calls")).sum();
            Run { sent, seconds, received, calls, kernel_dropped, process_ns, machine_ns }
        }
    }
}

/// What was sent in which time, and the CPU time that passed meanwhile in the process and in the whole machine.
pub(crate) struct Cost {
    pub(crate) sent: u64,
    pub(crate) seconds: f64,
    pub(crate) process_ns: u64,
    pub(crate) machine_ns: u64,
}

/// Sends the load and measures what that costs.
pub(crate) fn measure(process_id: u32, load: Load) -> Cost {
    let (process_before, machine_before) = (process_ns(process_id), busy_ns());
    let LoadReport { sent, seconds, .. } = load.send();
    std::thread::sleep(SETTLE);
    Cost { sent, seconds, process_ns: process_ns(process_id) - process_before, machine_ns: busy_ns() - machine_before }
}

fn pid(process_id: u32) -> Pid {
    Pid::from_raw(i32::try_from(process_id).expect("a process id fits i32"))
}

/// CPU time of all threads of a process, to the nanosecond.
pub(crate) fn process_ns(process_id: u32) -> u64 {
    let clock = clock_getcpuclockid(pid(process_id)).expect("the process has a CPU clock");
    let time = Duration::from(clock_gettime(clock).expect("the CPU clock of the process can be read"));
    u64::try_from(time.as_nanos()).expect("less than 584 years")
}

/// The same work as the C loop's: one socket, batches of 64, the same buffer, each datagram counted and forgotten.
fn configuration(address: &str, setting: Setting) -> String {
    let Setting { engine, gather, gro } = setting;
    format!(
        r#"
[[listener]]
name = "bench"
address = "{address}"
lanes = 1
engine = "{engine}"
gather = "{gather}"
gro = "{gro}"
batch_size = 64
receive_buffer = {RECEIVE_BUFFER_BYTES}
sinks = ["nothing"]

[sink.nothing]
type = "null"

"#
    )
}

/// The bare loop as a child.
struct CLoop {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl CLoop {
    /// Starts it and waits for its "ready".
    fn start(program: &Path, port: u16) -> Self {
        let mut child = Command::new(program)
            .args([&port.to_string(), C_LOOP_SECONDS_MAX, &RECEIVE_BUFFER_BYTES.to_string(), &RECEIVER_CPU.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cannot start the C loop");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the C loop's stdout can be read");
        assert_eq!(line, "ready\n", "the C loop did not start, see its message above");
        Self { child, stdout }
    }

    /// Ends it and returns what it printed.
    fn end(mut self) -> Value {
        kill(pid(self.child.id()), Signal::SIGTERM).expect("the C loop is running");
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).expect("the C loop's stdout can be read");
        serde_json::from_str(&text).expect("the C loop prints one line of JSON")
    }
}

impl Drop for CLoop {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

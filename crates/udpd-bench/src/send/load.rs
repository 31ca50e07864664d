//! What is to be sent, and whether it can be.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use mmsg::MAX_SEGMENTS;

use crate::pacer::{Rate, SendAmount};
use crate::payload::PAYLOAD_MAX;
use crate::sizes::Sizes;
use udpd_base::exit::{ExitCode, Failure};

/// Messages in one call at the highest rate, and the most of what a smooth sender owes.
pub(super) const MESSAGES_PER_CALL: usize = 64;

/// The most messages of a burst that go in one call.
const MESSAGES_PER_CALL_MAX: usize = 1024;

/// Flows are numbered in 16 bits.
pub(super) const FLOWS_MAX: usize = 1 << 16;

const THREADS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct SendLoad {
    pub to: SocketAddr,
    pub rate: Rate,
    pub amount: SendAmount,
    pub sizes: Sizes,
    /// How many flows, each from a source port of its own.
    pub flows: usize,
    /// The local addresses that they take in turn; empty: the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// Datagrams in a UDP_SEGMENT train.
    pub gso: Option<NonZeroUsize>,
    pub threads: usize,
    /// Datagrams that are sent together; `None`: each when it is due.
    pub burst: Option<NonZeroUsize>,
    /// The cores of the threads, in turn; empty: any.
    pub cpus: Vec<usize>,
    /// The number of the run in every payload; `None`: a random one.
    pub run: Option<u16>,
}

impl SendLoad {
    /// 64-byte payloads in 16 flows from one thread, smooth.
    pub fn new(to: SocketAddr, rate: Rate, amount: SendAmount) -> Self {
        Self {
            to,
            rate,
            amount,
            sizes: Sizes::Fixed(64),
            flows: 16,
            sources: Vec::new(),
            gso: None,
            threads: 1,
            burst: None,
            cpus: Vec::new(),
            run: None,
        }
    }

    /// Refuses what is impossible; a run calls it first.
    pub fn check(&self) -> Result<(), Failure> {
        let Self { flows, threads, sizes, .. } = self;
        let refuse = |text: String| Err(Failure::new(ExitCode::Usage, text));
        if self.to.port() == 0 {
            return refuse(format!(
                "--to: {} has port 0, on which no program can listen; write the receiver's port",
                self.to
            ));
        }
        if !(1..=FLOWS_MAX).contains(flows) {
            return refuse(format!("--flows: {flows} is outside 1 to {FLOWS_MAX}; 16 is the default"));
        }
        if !(1..=THREADS_MAX).contains(threads) {
            return refuse(format!("--threads: {threads} is outside 1 to {THREADS_MAX}; 1 is the default"));
        }
        if threads > flows {
            return refuse(format!(
                "--threads: {threads} threads cannot share {flows} flows; write --flows {threads} or more"
            ));
        }
        if let Some(source) = self.sources.iter().find(|source| source.is_ipv4() != self.to.is_ipv4()) {
            return refuse(format!(
                "--sources: {source} and --to {} are of different families; use one family",
                self.to
            ));
        }
        if matches!(self.rate, Rate::Ramp(..)) && self.amount == SendAmount::UntilStopped {
            return refuse(format!("--rate: the ramp {} needs an end; add --seconds or --count", self.rate));
        }
        if let Some(gso) = self.gso {
            let Sizes::Fixed(size) = *sizes else {
                return refuse(format!(
                    "--gso: a train has datagrams of one size, and --size is {sizes}; write one size"
                ));
            };
            let most = PAYLOAD_MAX.checked_div(size).map_or(1, |fitting| fitting.min(MAX_SEGMENTS));
            if gso.get() > most {
                return refuse(format!(
                    "--gso: a train of {gso} datagrams of {size} bytes is too long; write {most} or less"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn train(&self) -> usize {
        self.gso.map_or(1, NonZeroUsize::get)
    }

    pub(super) fn unit(&self) -> usize {
        self.burst.map_or(1, NonZeroUsize::get).max(self.train())
    }

    /// Messages that go in one call at most.
    pub(super) fn messages_per_call(&self) -> usize {
        self.unit().div_ceil(self.train()).clamp(MESSAGES_PER_CALL, MESSAGES_PER_CALL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> SendLoad {
        SendLoad::new("127.0.0.1:9".parse().expect("valid"), Rate::Max, SendAmount::Count(1))
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_the_option_and_the_cure() {
        let count = |count: usize| NonZeroUsize::new(count);
        for (load, words) in [
            (SendLoad { flows: 0, ..load() }, "--flows"),
            (SendLoad { flows: 65_537, ..load() }, "1 to 65536"),
            (SendLoad { threads: 3, flows: 2, ..load() }, "--flows 3"),
            (SendLoad { threads: 0, ..load() }, "--threads"),
            (SendLoad { to: "127.0.0.1:0".parse().expect("valid"), ..load() }, "port 0"),
            (SendLoad { sources: vec!["::1".parse().expect("valid")], ..load() }, "one family"),
            (SendLoad { gso: count(8), sizes: Sizes::Imix, ..load() }, "write one size"),
            (SendLoad { gso: count(129), ..load() }, "128 or less"),
            (SendLoad { gso: count(44), sizes: Sizes::Fixed(1500), ..load() }, "43 or less"),
            (SendLoad { rate: Rate::Ramp(1, 2), amount: SendAmount::UntilStopped, ..load() }, "--seconds or --count"),
        ] {
            let failure = load.check().expect_err(words);
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(failure.message.contains(words), "{failure}");
        }
        assert!(load().check().is_ok());
        assert!(SendLoad { gso: count(43), sizes: Sizes::Fixed(1500), ..load() }.check().is_ok());
    }

    #[test]
    fn a_call_holds_a_whole_burst_as_far_as_the_kernel_takes_it() {
        let burst = |burst, gso| SendLoad { burst: NonZeroUsize::new(burst), gso: NonZeroUsize::new(gso), ..load() };
        assert_eq!(burst(0, 0).messages_per_call(), 64);
        assert_eq!(burst(500, 0).messages_per_call(), 500);
        assert_eq!(burst(5000, 0).messages_per_call(), 1024);
        assert_eq!(burst(500, 5).messages_per_call(), 100);
        assert_eq!((burst(0, 20).unit(), burst(32, 20).unit()), (20, 32));
    }
}

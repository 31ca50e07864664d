//! From what is written of a sink of type `kafka` to an open one.

use super::settings::{KafkaError, KafkaSettings, QUEUE_KIBIBYTES};
#[cfg(feature = "kafka")]
use super::{library, sink::KafkaSink};
use crate::exit::{ExitCode, Failure};
use crate::sink::settings::{Opened, Opening, SinkSettings, Target};
use crate::text::advice::Advice;

impl KafkaSettings {
    /// Whether this build has a library for such a sink.
    pub fn check_build() -> Result<(), Advice> {
        match cfg!(feature = "kafka") {
            true => Ok(()),
            false => Err(Advice::new(
                "this udpd was built without Kafka",
                "build it with: cargo build --release --features kafka",
            )),
        }
    }

    /// Whether the library takes these settings, as far as it can tell without a broker.
    pub fn check(&self) -> Result<(), KafkaError> {
        #[cfg(feature = "kafka")]
        library::check(self)?;
        Ok(())
    }
}

impl SinkSettings for KafkaSettings {
    fn target(&self) -> Target<'_> {
        Target::Elsewhere(format!("the topic {} of {}", self.topic, self.brokers))
    }

    fn records_arrival(&self) -> bool {
        true
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        consumers * QUEUE_KIBIBYTES * 1024
    }

    #[cfg(feature = "kafka")]
    fn open(&self, opening: Opening<'_>) -> Result<Opened, Failure> {
        let sink = KafkaSink::open(opening.sink, self, opening.listeners);
        let fail = |error: KafkaError| {
            let message = format!("[sink.{}] {error}; docs/kafka.md says more", opening.sink);
            Failure::new(ExitCode::Configuration, message)
        };
        sink.map(Opened::new).map_err(fail)
    }

    #[cfg(not(feature = "kafka"))]
    fn open(&self, opening: Opening<'_>) -> Result<Opened, Failure> {
        let fail = |advice| Failure::new(ExitCode::Configuration, format!("[sink.{}] {advice}", opening.sink));
        Err(Self::check_build().map_err(fail).expect_err("a build without Kafka"))
    }
}

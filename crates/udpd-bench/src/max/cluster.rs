//! A Kafka cluster for the bench alone: the library's own mock of one, which speaks the real protocol on loopback, in
//! this process (cargo feature `kafka`).
//!
//! Of the operator's properties only those go along that shape batches and queues, and so the cost. All others are
//! about who and where the cluster is, or would have the library reach for keys, plugins and servers.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use udpd_base::exit::{ExitCode, Failure};
use udpd_sinks::kafka::KafkaSettings;

/// The thread of the mock, whose time is not the pipeline's.
pub(super) const THREAD: &str = "rdk:mock";

/// Prefixes of the properties that the mock gets.
const SHAPING: &[&str] = &[
    "linger.ms",
    "batch.",
    "queue.buffering.",
    "queuing.strategy",
    "message.max.bytes",
    "message.copy.max.bytes",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "max.in.flight",
    "enable.idempotence",
    "retries",
    "message.send.max.retries",
    "retry.backoff.",
    "request.timeout.ms",
    "request.required.acks",
    "partitioner",
    "sticky.partitioning.linger.ms",
    "socket.send.buffer.bytes",
    "socket.nagle.disable",
];

/// Partitions of the topic; how many the real one has is not known here.
const PARTITIONS: i32 = 4;

pub(super) struct Cluster(MockCluster<'static, DefaultProducerContext>);

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Cluster").field(&self.0.bootstrap_servers()).finish()
    }
}

impl Cluster {
    /// One broker with the topic of a sink; where each listener has one of its own, the mock makes them when it is
    /// asked.
    pub(super) fn start(topic: &str) -> Result<Self, Failure> {
        let start = || {
            let cluster = MockCluster::new(1)?;
            if !topic.contains('{') {
                cluster.create_topic(topic, PARTITIONS, 1)?;
            }
            Ok(cluster)
        };
        start().map(Self).map_err(|error: rdkafka::error::KafkaError| {
            Failure::new(ExitCode::Failure, format!("cannot start the mock of a Kafka cluster: {error}"))
        })
    }

    /// The sink, sent there; returns the names of the keys and properties that stay behind. The mock has no TLS, and
    /// asks for no password.
    pub(super) fn take(&self, sink: &mut KafkaSettings) -> Vec<String> {
        sink.brokers = self.0.bootstrap_servers();
        let keys = std::mem::take(&mut sink.security).written();
        let shapes = |name: &str| SHAPING.iter().any(|begin| name.starts_with(begin));
        let properties = sink.properties.iter().filter(|(name, _)| !shapes(name)).map(|(name, _)| name.clone());
        let left = keys.into_iter().map(str::to_owned).chain(properties).collect();
        sink.properties.retain(|(name, _)| shapes(name));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_sinks::kafka::Security;

    #[test]
    fn a_sink_is_sent_to_loopback_with_what_shapes_its_cost_and_nothing_else() {
        let property = |name: &str| (name.to_owned(), "x".to_owned());
        let mut sink = KafkaSettings {
            compression: "zstd",
            properties: ["linger.ms", "plugin.library.paths", "batch.size", "ssl.ca.pem"].map(property).to_vec(),
            ..KafkaSettings::new("192.0.2.1:9092", "syslog")
        };
        (sink.security.tls, sink.security.username) = (true, "udpd".to_owned());
        let left = Cluster::start("syslog").expect("a cluster").take(&mut sink);
        assert_eq!(left, ["tls", "username", "plugin.library.paths", "ssl.ca.pem"]);
        assert_eq!(sink.properties, ["linger.ms", "batch.size"].map(property));
        assert_eq!((sink.compression, sink.security), ("zstd", Security::default()));
        assert!(sink.brokers.starts_with("127.0.0.1:"), "{}", sink.brokers);
    }
}

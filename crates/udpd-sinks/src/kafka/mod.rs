//! Messages in a topic of a Kafka cluster, one for each datagram, through librdkafka (cargo feature `kafka`).
//!
//! **The ledger.** Delivered is what the brokers have acknowledged as `acks` asks; failed is what the library reports
//! as lost after its own retries, which may have reached a broker whose answer did not reach us. Between the two a
//! datagram is pending, also after `flush`: a flush sends nothing earlier than the library would and waits for nothing.
//! Instead the sink is due every few milliseconds while anything is under way, takes the reports, and the consumer
//! publishes them. The consumer's thread does all of it, so the counters keep their one writer; the library's own
//! threads only talk to brokers. With nothing under way it is due once a second, because the library also reports about
//! connections then, and unread reports would pile up.
//!
//! **A broker that is away or slow.** The library's queue is bounded in messages and bytes. While it is full, `accept`
//! waits for room: the consumer takes nothing more, its channel fills, and `when_full` decides what that means for the
//! receivers. Nothing is lost without a count and no other sink waits. The wait has an end: after `message.timeout.ms`
//! (five minutes unless `properties` say otherwise; 0 means never) the library gives up the oldest messages, which are
//! then failed, and there is room. Reconnecting, with a growing pause, is the library's.
//!
//! **Stopping.** `finish` waits for what is under way, at most four seconds, and publishes what is acknowledged as it
//! learns of it; then it takes the rest back and counts it as failed. A consumer that is in `accept` when the daemon
//! stops does not see it, as the trait has no way to tell; the daemon waits for it as for any sink that takes nothing,
//! and then counts what it has not settled as its failure. So the ledger closes either way.
//!
//! **Identity.** The keys say how udpd recognizes the brokers (TLS) and authenticates to them (SASL); passwords stand
//! in files. The library reads certificates once for each client, so a reload takes a changed file for a changed sink.
//! A broker that refuses udpd, or that udpd does not trust, is named once with the cause, and tried again for as long
//! as it takes.
//!
//! **A batch that is refused for its size** is sent again in smaller ones; only a message that is refused alone counts
//! as refused. With a spill that takes rounds (`rounds.rs`), which keep the order. Without one the client is replaced
//! by one with smaller batches, and nothing new is handed over until what came back is under way again.
//!
//! **A client that fails for good**, which an idempotent one does when a broker has lost messages that it acknowledged,
//! is replaced by a new one. What was under way is failed; the daemon goes on.

#[cfg(feature = "kafka-tls")]
mod certificate_diagnosis;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod client_properties;
#[cfg(feature = "kafka")]
mod context;
#[cfg(feature = "kafka")]
mod log_lines;
#[cfg(feature = "kafka")]
mod message;
#[cfg(feature = "kafka")]
mod rounds;
mod security;
mod settings;
#[cfg(feature = "kafka")]
mod sink;
#[cfg(feature = "kafka")]
mod tokens;

pub use security::{Sasl, Security};
pub use settings::{KafkaError, KafkaSettings};

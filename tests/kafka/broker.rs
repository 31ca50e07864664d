//! The rig's broker: where it is, and the script that stops and starts it.

#[cfg(feature = "kafka-tls")]
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::util::{not_checked, until};

/// Only what never comes takes this long.
const DEADLINE: Duration = Duration::from_secs(60);

/// A broker that can be stopped and started.
pub(crate) struct Broker {
    address: String,
    control: String,
}

impl Broker {
    /// The broker that the rig has brought; without one it says that a test did not run.
    pub(crate) fn of_the_rig() -> Option<Self> {
        match (std::env::var("UDPD_KAFKA_BROKER"), std::env::var("UDPD_KAFKA_CONTROL")) {
            (Ok(address), Ok(control)) => Some(Self { address, control }),
            _ => {
                not_checked("what needs a broker; tests/rigs/kafka_broker.sh brings one");
                None
            }
        }
    }

    /// Its `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where it wants a certificate (`MUTUAL`), a password or a token (`SECRET`), or shows a certificate that has
    /// expired until it is renewed (`RENEWABLE`).
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn address_of(&self, listener: &str) -> String {
        std::env::var(format!("UDPD_KAFKA_{listener}")).expect("the rig says where its listeners are")
    }

    /// Certificates, keys and the password of the user `udpd`.
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(std::env::var("UDPD_KAFKA_FILES").expect("the rig says where its files are")).join(name)
    }

    /// Starts it, if it does not run, and returns when it answers.
    pub(crate) fn start(&self) {
        self.control("start");
    }

    /// Ends it in order, and returns when it has ended.
    pub(crate) fn stop(&self) {
        self.control("stop");
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&self) {
        self.control("kill");
    }

    fn control(&self, action: &str) {
        self.run(&[action]);
    }

    fn run(&self, arguments: &[&str]) {
        let status =
            Command::new(&self.control).args(arguments).stdin(Stdio::null()).status().expect("the rig's script runs");
        assert!(status.success(), "{} {arguments:?}: {status}", self.control);
    }

    /// Sets what a topic has, as kafka-configs does.
    pub(crate) fn configure(&self, topic: &str, settings: &str) {
        self.run(&["configs", "--alter", "--topic", topic, "--add-config", settings]);
    }

    /// The same from this program, which takes less time. What was set before is as it was at first.
    pub(crate) fn set(&self, topic: &str, name: &str, value: &str) {
        let config = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
        let set = wait_for(self.admin().alter_configs([&config], &AdminOptions::new()));
        set.expect("the broker answers")[0].as_ref().expect("it is set");
    }

    /// Adds or removes a rule about what a user may do, as kafka-acls does.
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn rule(&self, arguments: &[&str]) {
        self.run(&[&["acls"], arguments].concat());
    }

    /// Makes a topic, and returns when it has leaders.
    pub(crate) fn make_topic(&self, topic: &str, partitions: i32) {
        let (admin, replication) = (self.admin(), TopicReplication::Fixed(1));
        let topics = [NewTopic::new(topic, partitions, replication)];
        let made = wait_for(admin.create_topics(&topics, &AdminOptions::new())).expect("the broker answers");
        made[0].as_ref().expect("it is made");
        until("a leader of each partition", || {
            let metadata = admin.inner().fetch_metadata(Some(topic), DEADLINE).expect("the broker answers");
            let partitions_there = metadata.topics()[0].partitions();
            partitions_there.len() == usize::try_from(partitions).expect("a count")
                && partitions_there.iter().all(|partition| partition.leader() >= 0)
        });
    }

    /// Deletes a topic.
    pub(crate) fn delete_topic(&self, topic: &str) {
        let deleted = wait_for(self.admin().delete_topics(&[topic], &AdminOptions::new()));
        deleted.expect("the broker answers")[0].as_ref().expect("it is deleted");
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", &self.address).create().expect("a client")
    }
}

/// Waits for what the library promises.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

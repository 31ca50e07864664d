//! The sink against the library's own mock of a cluster, which speaks the real protocol in this process: what is in the
//! topic afterwards, and that the ledger closes, whatever the brokers do.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Control, Family, RecvBatch, Socket, Wait};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::*;
use udpd_base::ledger::CounterTable as _;
use udpd_base::ledger::counter_list::{SinkDropped, SinkTally};
use udpd_spill::spilling::{Spill, Spilling};

/// Nothing here takes that long unless it never comes.
const DEADLINE: Duration = Duration::from_secs(60);

const TOPIC: &str = "syslog";

/// One datagram that no broker takes.
const TOO_LARGE: SinkDropped = SinkDropped {
    queue_full: 0,
    sink_error: 0,
    too_large: 1,
    refused: 0,
    against_policy: 0,
    spill_full: 0,
    spill_torn: 0,
};

/// What a broker says of a batch that is larger than it takes.
const BATCH_TOO_LARGE: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;

type Cluster = MockCluster<'static, rdkafka::producer::DefaultProducerContext>;

fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic(TOPIC, 1, 1).expect("a topic");
    cluster
}

fn settings(brokers: &str, properties: &[(&str, &str)]) -> KafkaSettings {
    let properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    KafkaSettings { properties, ..KafkaSettings::new(brokers, TOPIC) }
}

/// A sink and its ledger, called as a consumer calls it, with datagrams that came through a real socket.
struct Bench<S = KafkaSink> {
    sink: S,
    tallies: Tallies,
    socket: Socket,
    sender: UdpSocket,
}

impl Bench {
    fn new(settings: &KafkaSettings) -> Self {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
        sender.connect(socket.local_addr().expect("an address")).expect("a destination");
        let sink = KafkaSink::open("stream", settings, &["idle".to_owned(), "in".to_owned()], ThreadRegistry::new().0)
            .expect("right settings");
        Self { sink, tallies: Tallies::new(0..2), socket, sender }
    }

    /// The same with a spill in this directory.
    fn with_spill(settings: &KafkaSettings, directory: &std::path::Path) -> Bench<Spilling<KafkaSink>> {
        let spill = Spill { path: Some(directory.to_owned()), bytes: 64 << 20 };
        let Self { sink, tallies, socket, sender } = Self::new(&KafkaSettings { spill, ..settings.clone() });
        Bench { sink: Spilling::of_listener(sink, (1, "in"), directory), tallies, socket, sender }
    }
}

impl<S: Sink> Bench<S> {
    /// Gives the sink one batch with these payloads, of which the first `slot_bytes` are kept.
    fn accept(&mut self, payloads: &[&[u8]], slot_bytes: usize) {
        let shape = BatchShape::new(payloads.len(), slot_bytes);
        let mut datagrams = RecvBatch::new(&shape).expect("memory for a batch");
        for payload in payloads {
            self.sender.send(payload).expect("loopback takes it");
        }
        let mut received = datagrams.receive(&self.socket, Wait::Block).expect("datagrams");
        while received < payloads.len() {
            received += datagrams.receive_more(&self.socket, Wait::Block).expect("datagrams");
        }
        let count = payloads.len() as u64;
        assert_eq!(datagrams.summary().datagrams, count);
        self.tallies[1].taken += count;
        self.tallies[1].pending += count;
        self.sink.accept(&LaneBatch::received(datagrams, 1, 0), &mut self.tallies);
        self.sink.flush(&mut self.tallies);
    }

    /// Does what is due until `enough` says so.
    fn until(&mut self, what: &str, enough: impl Fn(&SinkTally) -> bool) {
        let start = Instant::now();
        while !enough(&self.tallies[1]) {
            assert!(start.elapsed() < DEADLINE, "{what} never came: {:?}", self.tallies[1]);
            let due = self.sink.due().expect("a Kafka sink is always due");
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.sink.when_due(&mut self.tallies);
        }
    }

    /// The end; the ledger is closed and has so many as delivered and as failed.
    #[track_caller]
    fn finish(self, delivered: u64, failed: u64) {
        self.finish_with(delivered, SinkDropped { sink_error: failed, ..SinkDropped::default() });
    }

    /// The same with these reasons.
    #[track_caller]
    fn finish_with(mut self, delivered: u64, dropped: SinkDropped) {
        self.sink.finish(&mut self.tallies, &mut |_| {});
        let expected = SinkTally { taken: delivered + dropped.total(), delivered, dropped, ..SinkTally::default() };
        assert_eq!([self.tallies[0], self.tallies[1]], [SinkTally::default(), expected]);
    }
}

/// What a reader of the topic gets.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    payload: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    timestamp_ms: Option<i64>,
    headers: Vec<(String, String)>,
}

impl Seen {
    fn new(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().expect("every message has headers").iter();
        let text = |value: Option<&[u8]>| String::from_utf8(value.expect("a value").to_vec()).expect("text");
        Self {
            payload: message.payload().map(<[u8]>::to_vec),
            key: message.key().map(<[u8]>::to_vec),
            timestamp_ms: message.timestamp().to_millis(),
            headers: headers.map(|header| (header.key.to_owned(), text(header.value))).collect(),
        }
    }
}

/// The first `count` messages of the topic, and that there is none after them.
fn read(cluster: &Cluster, count: usize) -> Vec<Seen> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "reader");
    config.set("enable.partition.eof", "true").set("enable.auto.commit", "false");
    let consumer = BaseConsumer::from_config(&config).expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset(TOPIC, 0, Offset::Beginning).expect("a partition");
    consumer.assign(&partitions).expect("an assignment");
    let mut seen = Vec::new();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < DEADLINE, "{} of {count} messages came", seen.len());
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => seen.push(Seen::new(&message)),
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) if seen.len() >= count => break,
            _ => {}
        }
    }
    assert_eq!(seen.len(), count, "more in the topic than was delivered");
    seen
}

fn payloads(seen: &[Seen]) -> Vec<&[u8]> {
    seen.iter().map(|seen| seen.payload.as_deref().expect("a payload")).collect()
}

#[test]
fn a_message_is_the_datagram_with_who_when_and_where() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    let source = bench.sender.local_addr().expect("an address").to_string();
    let before = since_epoch();
    bench.accept(&[b"whole", b"", b"longer than its slot"], 8);
    let after = since_epoch();
    bench.until("delivery", |tally| tally.delivered == 3);
    bench.finish(3, 0);

    let seen = read(&cluster, 3);
    assert_eq!(
        payloads(&seen),
        [&b"whole"[..], b"", b"longer t"],
        "an empty datagram is an empty message, not a deletion"
    );
    for message in &seen {
        assert_eq!(message.key.as_deref(), Some(&b"127.0.0.1"[..]));
        let time: u128 = message.headers[0].1.parse().expect("a number");
        assert!((before.as_nanos()..=after.as_nanos()).contains(&time), "{message:?}");
        assert_eq!(message.timestamp_ms, Some(i64::try_from(time / 1_000_000).expect("a time")));
        let named = [("source".to_owned(), source.clone()), ("listener".to_owned(), "in".to_owned())];
        assert_eq!(message.headers[1..3], named);
        assert_eq!(message.headers[0].0, "time");
    }
    assert_eq!(seen[0].headers.len(), 3, "what is whole has no mark");
    assert_eq!(seen[2].headers[3], ("truncated".to_owned(), "20".to_owned()));
}

#[test]
fn the_kernels_time_of_arrival_goes_before_ours() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    bench.socket.set_timestamps(true).expect("timestamps");
    bench.sender.send(b"early").expect("loopback takes it");
    let control = Control::new().timestamps(true);
    let mut datagrams = RecvBatch::new(&BatchShape::new(1, 64).control(control)).expect("memory");
    datagrams.receive(&bench.socket, Wait::Block).expect("a datagram");
    let arrival = datagrams.datagrams().next().and_then(|datagram| datagram.arrival_since_epoch()).expect("a time");
    bench.tallies[1] = SinkTally { taken: 1, pending: 1, ..SinkTally::default() };
    bench.sink.accept(&LaneBatch::received(datagrams, 1, 0), &mut bench.tallies);
    bench.finish(1, 0);
    let seen = read(&cluster, 1);
    assert_eq!(seen[0].headers[0], ("time".to_owned(), arrival.as_nanos().to_string()));
}

#[test]
fn without_a_key_there_is_none() {
    let cluster = cluster();
    let without = KafkaSettings { key_by_source: false, ..settings(&cluster.bootstrap_servers(), &[]) };
    let mut bench = Bench::new(&without);
    bench.accept(&[b"one"], 64);
    bench.finish(1, 0);
    assert_eq!(read(&cluster, 1)[0].key, None);
}

#[test]
fn what_a_broker_refuses_for_a_while_arrives_once_and_in_order() {
    let cluster = cluster();
    let errors = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 3];
    cluster.request_errors(RDKafkaApiKey::Produce, &errors);
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[("batch.num.messages", "10")]));
    let texts: Vec<String> = (0..500).map(|number| format!("{number}")).collect();
    let bytes: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    for part in bytes.chunks(50) {
        bench.accept(part, 64);
    }
    bench.until("delivery", |tally| tally.delivered == 500);
    bench.finish(500, 0);
    assert_eq!(payloads(&read(&cluster, 500)), bytes);
}

#[test]
fn a_broker_that_comes_late_gets_everything() {
    let cluster = cluster();
    cluster.broker_down(1).expect("down");
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[("reconnect.backoff.max.ms", "200")]));
    bench.accept(&[b"first", b"second"], 64);
    for _ in 0..5 {
        Sink::when_due(&mut bench.sink, &mut bench.tallies);
        assert_eq!(bench.tallies[1].pending, 2, "they wait");
    }
    cluster.broker_up(1).expect("up");
    bench.until("delivery", |tally| tally.delivered == 2);
    bench.finish(2, 0);
    assert_eq!(payloads(&read(&cluster, 2)), [&b"first"[..], b"second"]);
}

#[test]
fn a_full_queue_waits_for_room_and_loses_nothing() {
    let cluster = cluster();
    let bounds = [("queue.buffering.max.messages", "7"), ("linger.ms", "0")];
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &bounds));
    let texts: Vec<String> = (0..300).map(|number| format!("{number}")).collect();
    let bytes: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    for part in bytes.chunks(60) {
        bench.accept(part, 64);
        assert!(bench.tallies[1].pending <= 7, "no more than the queue holds is pending: {:?}", bench.tallies[1]);
    }
    bench.until("delivery", |tally| tally.delivered == 300);
    bench.finish(300, 0);
    assert_eq!(payloads(&read(&cluster, 300)), bytes);
}

#[test]
fn where_no_broker_ever_comes_a_full_queue_gives_up_its_oldest_and_goes_on() {
    let bounds = [("queue.buffering.max.messages", "5"), ("message.timeout.ms", "1200"), ("linger.ms", "0")];
    // No process listens there.
    let mut bench = Bench::new(&settings("127.0.0.1:9", &bounds));
    bench.accept(&[&b"x"[..]; 12], 64);
    assert!(bench.tallies[1].dropped.sink_error >= 7, "5 of 12 can wait, so 7 have failed: {:?}", bench.tallies[1]);
    bench.until("the end of the others", |tally| tally.dropped.sink_error == 12);
    bench.finish(0, 12);
}

#[test]
fn the_end_does_not_wait_for_a_broker_that_never_comes() {
    let mut bench = Bench::new(&settings("127.0.0.1:9", &[]));
    bench.accept(&[&b"x"[..]; 12], 64);
    assert_eq!(bench.tallies[1].pending, 12);
    bench.finish(0, 12);
}

#[test]
fn the_end_waits_for_what_is_under_way() {
    let cluster = cluster();
    cluster.broker_round_trip_time(1, Duration::from_millis(300)).expect("a slow broker");
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    bench.accept(&[&b"x"[..]; 12], 64);
    assert_eq!(bench.tallies[1].pending, 12);
    bench.finish(12, 0);
    assert_eq!(read(&cluster, 12).len(), 12);
}

#[test]
fn a_datagram_that_is_too_long_for_the_brokers_fails_alone() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[("message.max.bytes", "1000")]));
    let long = [b'x'; 2_000];
    bench.accept(&[b"before", &long, b"after"], 4_096);
    assert_eq!(bench.tallies[1].dropped.too_large, 1, "the library does not even take it");
    bench.until("delivery", |tally| tally.delivered == 2);
    bench.finish_with(2, TOO_LARGE);
    assert_eq!(payloads(&read(&cluster, 2)), [&b"before"[..], b"after"]);
}

#[test]
fn a_client_that_has_failed_for_good_is_replaced_and_the_ledger_closes() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    bench.accept(&[b"before"], 64);
    bench.until("delivery", |tally| tally.delivered == 1);
    // To the first request under way this says that the broker has lost acknowledged messages.
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
    bench.accept(&[b"lost"], 64);
    let first = bench.sink.client.born();
    bench.until("the failure", |tally| tally.dropped.sink_error == 1);
    bench.accept(&[b"after"], 64);
    assert!(bench.sink.client.born() > first, "there is another client");
    bench.until("delivery by the new client", |tally| tally.delivered == 2);
    bench.finish(2, 1);
    assert_eq!(payloads(&read(&cluster, 2)), [&b"before"[..], b"after"]);
}

#[test]
fn a_topic_that_does_not_exist_fails_with_its_reason_and_nothing_is_left_pending() {
    let cluster = cluster();
    cluster.topic_error("absent", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).expect("an error");
    let absent = KafkaSettings {
        topic: "absent".to_owned(),
        ..settings(&cluster.bootstrap_servers(), &[("topic.metadata.propagation.max.ms", "0")])
    };
    let mut bench = Bench::new(&absent);
    bench.accept(&[&b"x"[..]; 3], 64);
    bench.until("the failure", |tally| tally.dropped.sink_error == 3);
    bench.finish(0, 3);
}

#[test]
fn an_idle_sink_is_due_once_a_second() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    bench.accept(&[b"one"], 64);
    let soon = Sink::due(&bench.sink).expect("due");
    assert!(soon <= Instant::now() + REPORT_WAIT_MIN, "a report is looked for soon");
    bench.until("delivery", |tally| tally.delivered == 1);
    let before = Instant::now();
    Sink::when_due(&mut bench.sink, &mut bench.tallies);
    assert!(Sink::due(&bench.sink).expect("due") >= before + IDLE_WAIT);
    bench.finish(1, 0);
}

#[test]
fn two_sinks_of_one_daemon_share_nothing() {
    let cluster = cluster();
    let shared = Arc::new(settings("127.0.0.1:9", &[]));
    let mut stuck = Bench::new(&shared);
    let mut other = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    stuck.accept(&[b"x"], 64);
    other.accept(&[b"y"], 64);
    other.until("delivery", |tally| tally.delivered == 1);
    assert_eq!(stuck.tallies[1].pending, 1);
    other.finish(1, 0);
    stuck.finish(0, 1);
}

#[test]
fn what_would_linger_for_a_minute_is_sent_at_the_end() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[("linger.ms", "60000")]));
    bench.accept(&[&b"x"[..]; 12], 64);
    assert_eq!(bench.tallies[1].pending, 12);
    bench.finish(12, 0);
}

fn numbered(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| number.to_string().into_bytes()).collect()
}

fn slices(payloads: &[Vec<u8>]) -> Vec<&[u8]> {
    payloads.iter().map(Vec::as_slice).collect()
}

#[test]
fn while_the_broker_is_down_what_comes_waits_on_the_disk_and_is_in_the_topic_once_and_in_order_afterwards() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let mut bench = Bench::with_spill(&settings(&cluster.bootstrap_servers(), &[]), directory.path());
    let all = numbered(0..400);
    bench.accept(&slices(&all[..100]), 64);
    bench.until("delivery", |tally| tally.delivered == 100);
    cluster.broker_down(1).expect("down");
    for part in all[100..].chunks(100) {
        bench.accept(&slices(part), 64);
    }
    assert_eq!((bench.tallies[1].delivered, bench.tallies[1].spilled, bench.tallies[1].pending), (100, 300, 0));
    cluster.broker_up(1).expect("up");
    bench.until("delivery of what waited", |tally| tally.delivered == 400);
    assert_eq!(bench.tallies[1].spilled, 0);
    bench.finish(400, 0);
    assert_eq!(payloads(&read(&cluster, 400)), slices(&all));
}

#[test]
fn what_no_broker_has_at_the_end_is_sent_by_the_next_client() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let settings = settings(&cluster.bootstrap_servers(), &[]);
    cluster.broker_down(1).expect("down");
    let all = numbered(0..50);
    let mut bench = Bench::with_spill(&settings, directory.path());
    bench.accept(&slices(&all), 64);
    bench.sink.finish(&mut bench.tallies, &mut |_| {});
    assert_eq!((bench.tallies[1].spilled, bench.tallies[1].dropped), (50, SinkDropped::default()));
    drop(bench);
    cluster.broker_up(1).expect("up");
    let mut bench = Bench::with_spill(&settings, directory.path());
    bench.until("delivery", |tally| tally.delivered == 50);
    assert_eq!((bench.tallies[1].spilled, bench.tallies[1].spilled_again), (0, 50));
    bench.sink.finish(&mut bench.tallies, &mut |_| {});
    assert_eq!(payloads(&read(&cluster, 50)), slices(&all));
}

#[test]
fn of_a_batch_that_is_refused_for_its_size_everything_is_in_the_topic_once_and_in_order() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let mut bench = Bench::with_spill(&settings(&cluster.bootstrap_servers(), &[]), directory.path());
    let all = numbered(0..400);
    bench.accept(&slices(&all[..100]), 64);
    bench.until("delivery", |tally| tally.delivered == 100);
    cluster.request_errors(RDKafkaApiKey::Produce, &[BATCH_TOO_LARGE; 4]);
    for part in all[100..].chunks(100) {
        bench.accept(&slices(part), 64);
    }
    bench.until("delivery of the parts", |tally| tally.delivered == 400);
    bench.finish(400, 0);
    assert_eq!(payloads(&read(&cluster, 400)), slices(&all));
}

#[test]
fn what_is_refused_alone_is_counted_by_reason_and_what_is_behind_it_goes_on() {
    for (error, dropped) in [
        (BATCH_TOO_LARGE, TOO_LARGE),
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            SinkDropped { too_large: 0, against_policy: 1, ..TOO_LARGE },
        ),
    ] {
        let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
        cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
        let mut bench = Bench::with_spill(&settings(&cluster.bootstrap_servers(), &[]), directory.path());
        let all = numbered(0..20);
        // The first round is a single one.
        bench.accept(&slices(&all), 64);
        bench.until("the end of the others", |tally| tally.delivered == 19);
        bench.finish_with(19, dropped);
        assert_eq!(payloads(&read(&cluster, 19)), slices(&all[1..]));
    }
}

#[test]
fn without_a_spill_too_everything_of_a_batch_that_is_refused_for_its_size_is_sent_again_and_once() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    cluster.request_errors(RDKafkaApiKey::Produce, &[BATCH_TOO_LARGE; 4]);
    let all = numbered(0..500);
    for part in all.chunks(50) {
        bench.accept(&slices(part), 64);
    }
    bench.until("delivery of the parts", |tally| tally.delivered == 500);
    bench.finish(500, 0);
    let (seen, mut expected) = (read(&cluster, 500), slices(&all));
    let mut seen = payloads(&seen);
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn without_a_spill_too_only_what_is_refused_alone_is_counted_as_too_large() {
    let cluster = cluster();
    let mut bench = Bench::new(&settings(&cluster.bootstrap_servers(), &[]));
    // The second time it is known to be alone.
    cluster.request_errors(RDKafkaApiKey::Produce, &[BATCH_TOO_LARGE; 2]);
    bench.accept(&[b"alone"], 64);
    bench.until("its refusal", |tally| tally.dropped.too_large == 1);
    bench.accept(&[b"after"], 64);
    bench.until("delivery", |tally| tally.delivered == 1);
    bench.finish_with(1, TOO_LARGE);
    assert_eq!(payloads(&read(&cluster, 1)), [b"after"]);
}

#[test]
fn a_topic_that_is_not_there_or_not_open_to_udpd_is_waited_for_with_a_spill() {
    for error in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
    ] {
        let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
        cluster.topic_error(TOPIC, error).expect("an error");
        // What is not there is known not to be at once, and what is there again, too.
        let settings = settings(&cluster.bootstrap_servers(), &[("topic.metadata.propagation.max.ms", "0")]);
        let mut bench = Bench::with_spill(&settings, directory.path());
        let all = numbered(0..300);
        for part in all.chunks(100) {
            bench.accept(&slices(part), 64);
        }
        let refusals = std::cell::Cell::new(0);
        bench.until("more tries", |tally| {
            refusals.set(refusals.get() + 1);
            assert_eq!((tally.spilled, tally.delivered, tally.dropped), (300, 0, SinkDropped::default()));
            refusals.get() > 12
        });
        cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("none");
        bench.until("delivery", |tally| tally.delivered == 300);
        bench.finish(300, 0);
        assert_eq!(payloads(&read(&cluster, 300)), slices(&all));
    }
}

#[test]
fn what_too_few_replicas_have_waits_on_the_disk_and_is_in_the_topic_once_and_in_order_afterwards() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let mut bench = Bench::with_spill(&settings(&cluster.bootstrap_servers(), &[]), directory.path());
    // The library asks again for as long as it takes: after 100 ms at first, then after a second.
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 8]);
    let all = numbered(0..200);
    for part in all.chunks(100) {
        bench.accept(&slices(part), 64);
    }
    assert_eq!((bench.tallies[1].spilled, bench.tallies[1].dropped), (200, SinkDropped::default()));
    bench.until("delivery", |tally| tally.delivered == 200);
    bench.finish(200, 0);
    assert_eq!(payloads(&read(&cluster, 200)), slices(&all));
}

//! What is in a topic, read back by a consumer that has nothing in common with the sink but the protocol.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Only what never comes takes this long.
const DEADLINE: Duration = Duration::from_secs(120);

/// One record, as far as it matters: its place, its sender and what the load has numbered it.
struct Record {
    partition: i32,
    key: String,
    source: String,
    payload: String,
}

impl Record {
    /// What the load has numbered it: "f03 s0000001234 xxx".
    fn number(&self) -> u64 {
        self.payload[5..15].parse().expect("the load numbers its datagrams")
    }
}

/// All records of a topic, each partition in order.
pub(crate) struct Topic {
    records: Vec<Record>,
}

/// Reads a topic from its beginning to the end of every partition.
pub(crate) fn read(broker: &str, topic: &str) -> Topic {
    read_of(broker, topic, "in")
}

/// The same of what came by this listener.
pub(crate) fn read_of(broker: &str, topic: &str, listener: &str) -> Topic {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker).set("group.id", "reader").set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let metadata = consumer.fetch_metadata(Some(topic), DEADLINE).expect("the broker answers");
    let partitions = metadata.topics()[0].partitions().len();
    assert!(partitions > 0, "the topic {topic} is not there");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        let partition = i32::try_from(partition).expect("a partition");
        assignment.add_partition_offset(topic, partition, Offset::Beginning).expect("a partition");
    }
    consumer.assign(&assignment).expect("an assignment");
    let (mut records, mut ended, start) = (Vec::new(), HashSet::new(), Instant::now());
    while ended.len() < partitions {
        assert!(start.elapsed() < DEADLINE, "{} records came and no end", records.len());
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => records.push(record(&message, listener)),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            Some(Err(error)) => panic!("cannot read {topic}: {error}"),
            None => {}
        }
    }
    Topic { records }
}

fn record(message: &BorrowedMessage<'_>, listener: &str) -> Record {
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.expect("it is there").to_vec()).expect("text");
    let headers = message.headers().expect("every record has headers");
    let header = |name: &str| text(headers.iter().find(|header| header.key == name).expect(name).value);
    assert_eq!(header("listener"), listener);
    assert!(header("time").parse::<u64>().expect("nanoseconds") > 1_600_000_000_000_000_000);
    Record {
        partition: message.partition(),
        key: message.key().map(|key| text(Some(key))).unwrap_or_default(),
        source: header("source"),
        payload: text(message.payload()),
    }
}

impl Topic {
    /// How many records there are.
    pub(crate) fn len(&self) -> u64 {
        self.records.len() as u64
    }

    /// How many of them this sender has sent.
    pub(crate) fn count_of(&self, sender: IpAddr) -> u64 {
        self.records.iter().filter(|record| record.key == sender.to_string()).count() as u64
    }

    /// Checks that there are `delivered` records, none twice.
    #[track_caller]
    pub(crate) fn assert_exactly_once(&self, delivered: u64) {
        let numbered: HashSet<_> = self.records.iter().map(|record| (&record.source, &record.payload[..15])).collect();
        assert_eq!((numbered.len() as u64, self.len()), (delivered, delivered), "different ones, and all");
    }

    /// Checks that of each flow there is everything from some number on, once and in order, up to its last one, where
    /// all flows together have sent so many. Returns how many records there are.
    #[track_caller]
    pub(crate) fn assert_each_flow_whole_from_some_number_on(&self, sent: u64) -> u64 {
        self.assert_exactly_once_in_order(self.len());
        let mut flows: HashMap<_, Vec<u64>> = HashMap::new();
        for record in &self.records {
            flows.entry((&record.source, &record.payload[..3])).or_default().push(record.number());
        }
        for (flow, numbers) in &flows {
            assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{flow:?} has a gap");
        }
        let ends = flows.values().map(|numbers| numbers[numbers.len() - 1] + 1);
        assert_eq!(ends.sum::<u64>(), sent, "each flow is there up to its end");
        self.len()
    }

    /// Checks that there are `delivered` records, none twice, each sender's in one partition and each flow's in the
    /// order in which it was sent.
    #[track_caller]
    pub(crate) fn assert_exactly_once_in_order(&self, delivered: u64) {
        let mut partition_of = HashMap::new();
        let mut last_of = HashMap::new();
        for record in &self.records {
            let Record { partition, key, source, payload } = record;
            assert_eq!(source.rsplit_once(':').map(|(address, _)| address), Some(key.as_str()));
            assert_eq!(partition_of.entry(key).or_insert(partition), &partition, "{key} is in one partition");
            // A number that grows, so none is there twice.
            let number = record.number();
            if let Some(last) = last_of.insert((source, &payload[..3]), number) {
                assert!(number > last, "{source} {payload}: after {last}");
            }
        }
        assert_eq!(self.records.len() as u64, delivered, "records in the topic (left) and delivered (right)");
    }
}

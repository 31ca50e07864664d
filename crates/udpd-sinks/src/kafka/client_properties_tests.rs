//! Wrong settings are refused with key, value and reason; right ones say to the library what they mean.

use super::*;
use udpd_spill::spilling::Spill;

fn settings() -> KafkaSettings {
    KafkaSettings::new("127.0.0.1:9092", "syslog")
}

fn with(properties: &[(&str, &str)]) -> KafkaSettings {
    let properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    KafkaSettings { properties, ..settings() }
}

fn effective(settings: &KafkaSettings, key: &str) -> String {
    let config = client_config(settings, Purpose::Use).expect("right settings");
    config.create_native_config().expect("right settings").get(key).expect("a property of the library")
}

fn error_of(settings: &KafkaSettings) -> String {
    let error = match client_config(settings, Purpose::Use) {
        Err(error) => error,
        Ok(config) => {
            let producer: Result<rdkafka::producer::BaseProducer, _> = config.create();
            refusal(settings, producer.err().expect("these settings are wrong"))
        }
    };
    error.to_string()
}

#[test]
fn the_defaults_are_bounded_and_without_repeats() {
    assert_eq!(effective(&settings(), "queue.buffering.max.messages"), "100000");
    assert_eq!(effective(&settings(), "queue.buffering.max.kbytes"), "65536");
    assert_eq!(effective(&settings(), "enable.idempotence"), "true");
    assert_eq!(effective(&settings(), "acks"), "-1");
    assert_eq!(effective(&settings(), "client.id"), "udpd");
    assert_eq!(effective(&settings(), "reconnect.backoff.max.ms"), "2000");
}

#[test]
fn fewer_acknowledgements_go_without_protection_from_repeats() {
    for (acks, library) in [("1", "1"), ("0", "0"), ("2", "2")] {
        let settings = KafkaSettings { acks: acks.to_owned(), ..settings() };
        assert_eq!(effective(&settings, "enable.idempotence"), "false");
        assert_eq!(effective(&settings, "acks"), library);
    }
    assert_eq!(effective(&KafkaSettings { acks: "-1".to_owned(), ..settings() }, "enable.idempotence"), "true");
}

#[test]
fn properties_go_before_what_we_would_choose() {
    let settings =
        with(&[("queue.buffering.max.messages", "7"), ("enable.idempotence", "false"), ("client.id", "edge-3")]);
    assert_eq!(effective(&settings, "queue.buffering.max.messages"), "7");
    assert_eq!(effective(&settings, "enable.idempotence"), "false");
    assert_eq!(effective(&settings, "client.id"), "edge-3");
}

#[test]
fn a_property_that_the_library_does_not_have_is_named() {
    let error = error_of(&with(&[("linger.mss", "5")]));
    assert!(error.starts_with("properties.\"linger.mss\" = \"5\": "), "{error}");
}

#[test]
fn a_value_that_the_library_does_not_take_is_named() {
    let error = error_of(&with(&[("linger.ms", "soon")]));
    assert!(error.starts_with("properties.\"linger.ms\" = \"soon\": "), "{error}");
    let error = error_of(&KafkaSettings { acks: "most".to_owned(), ..settings() });
    assert!(error.starts_with("acks = \"most\": "), "{error}");
}

#[test]
fn every_codec_is_in_every_build() {
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let settings = KafkaSettings { compression, ..settings() };
        assert_eq!(check(&settings), Ok(()), "{compression}");
        assert_eq!(effective(&settings, "compression.codec"), compression);
    }
}

#[test]
fn idempotence_and_few_acknowledgements_contradict_each_other() {
    let settings = KafkaSettings { acks: "1".to_owned(), ..with(&[("enable.idempotence", "true")]) };
    let error = error_of(&settings);
    assert!(error.starts_with("acks = \"1\": ") && error.contains("acks = \"all\""), "{error}");
}

#[test]
fn what_contradicts_an_idempotent_client_is_named_with_the_way_out() {
    for (key, value) in [("max.in.flight", "6"), ("retries", "0"), ("queuing.strategy", "lifo")] {
        let error = check(&with(&[(key, value)])).expect_err("a contradiction").to_string();
        assert!(error.starts_with(&format!("properties.\"{key}\" = \"{value}\": ")), "{error}");
        assert!(error.contains("properties.\"enable.idempotence\" = \"false\""), "{error}");
        assert_eq!(check(&with(&[(key, value), ("enable.idempotence", "false")])), Ok(()), "the way out");
    }
    for (key, value) in [("max.in.flight", "5"), ("retries", "1"), ("queuing.strategy", "fifo")] {
        let producer: Result<rdkafka::producer::BaseProducer, _> =
            client_config(&with(&[(key, value)]), Purpose::Use).expect("right settings").create();
        assert!(producer.is_ok(), "the library agrees: {:?}", producer.err());
    }
}

#[test]
fn what_could_bring_datagrams_twice_or_out_of_order_from_a_spill_is_refused() {
    let spill = Spill { path: Some("/var/spool/udpd/stream".into()), bytes: 1 << 30 };
    let with_spill = |key, value| KafkaSettings { spill: spill.clone(), ..with(&[(key, value)]) };
    for (key, value) in [("message.timeout.ms", "6000"), ("delivery.timeout.ms", "6000"), ("linger.ms", "0.5")] {
        let error = check(&with_spill(key, value)).expect_err("a contradiction").to_string();
        assert!(error.contains("contradicts a spill, which needs ") && error.contains(key), "{error}");
        assert_eq!(check(&with(&[(key, value)])), Ok(()), "without a spill it is right");
    }
    for (key, value) in [("message.timeout.ms", "0"), ("queue.buffering.max.ms", "5")] {
        assert_eq!(check(&with_spill(key, value)), Ok(()));
    }
}

#[test]
fn properties_that_only_the_library_can_compare_are_passed_on_with_its_reason() {
    let error = error_of(&with(&[("linger.ms", "5000"), ("message.timeout.ms", "1000")]));
    assert!(error.contains("message.timeout.ms") && error.contains("linger.ms"), "{error}");
}

#[test]
fn what_the_sink_has_keys_for_is_set_there_and_nowhere_else() {
    for (key, own) in [
        ("bootstrap.servers", "brokers"),
        ("metadata.broker.list", "brokers"),
        ("acks", "acks"),
        ("request.required.acks", "acks"),
        ("compression.type", "compression"),
        ("security.protocol", "tls or sasl"),
        ("sasl.mechanism", "sasl"),
        ("sasl.password", "password_file"),
        ("ssl.ca.location", "tls_ca_file"),
    ] {
        let error = error_of(&with(&[(key, "1")]));
        assert!(error.contains(&format!("the key {own} ")), "{error}");
    }
}

#[test]
fn nothing_takes_the_delivery_reports_away() {
    for key in ["delivery.report.only.error", "transactional.id", "log.queue"] {
        let error = error_of(&with(&[(key, "true")]));
        assert!(error.contains(key) && error.contains("cannot be set"), "{error}");
    }
}

#[test]
fn one_property_under_two_names_is_refused() {
    let error = error_of(&with(&[("linger.ms", "5"), ("queue.buffering.max.ms", "6")]));
    assert!(error.contains("queue.buffering.max.ms") && error.contains("linger.ms"), "{error}");
}

#[test]
fn an_address_that_is_none_is_named() {
    for brokers in ["", "a:9092,", "a:9092, ,b", ":9092", "a:0", "a:70000", "a:b", "[::1", "[::1]9092", "a b:1", "::1"]
    {
        let error = error_of(&KafkaSettings { brokers: brokers.to_owned(), ..settings() });
        assert!(error.starts_with(&format!("brokers = {brokers:?}: ")), "{error}");
    }
    for brokers in ["a", "a:9092", "a:9092, b:9093", "[::1]:9092", "[::1]", "10.0.0.5:9092,b"] {
        assert_eq!(check_brokers(brokers), Ok(()));
    }
}

#[test]
fn a_user_in_an_address_is_refused_with_the_key_for_it_wherever_it_stands_and_never_repeated() {
    let error = error_of(&with(&[("bootstrap.servers", "udpd:hunter2@a:9092")]));
    assert!(error.contains("brokers") && !error.contains("hunter2"), "{error}");
    let error = error_of(&KafkaSettings { brokers: "SASL_SSL://udpd:hunter2@a:9092".to_owned(), ..settings() });
    assert!(error.contains("password_file") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_topic_that_no_broker_can_have_is_named() {
    for topic in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(250)] {
        let error = error_of(&KafkaSettings { topic: topic.to_owned(), ..settings() });
        assert!(error.starts_with(&format!("topic = {topic:?}: ")), "{error}");
    }
}

#[test]
fn no_value_of_a_property_is_shown_by_debug() {
    let shown = format!("{:?}", with(&[("ssl.ca.pem", "hunter2")]));
    assert!(shown.contains("ssl.ca.pem") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn what_the_library_refuses_only_when_it_makes_a_client_is_said_by_the_check_and_of_the_property() {
    for (properties, key, words) in [
        (vec![("linger.ms", "5000"), ("message.timeout.ms", "1000")], "linger.ms", "`message.timeout.ms`"),
        (vec![("reconnect.backoff.ms", "9000")], "reconnect.backoff.ms", "must be >="),
    ] {
        let error = check(&with(&properties)).expect_err(key);
        assert_eq!(error.key(), Some(key), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_refusal_shows_no_password() {
    let error = check(&with(&[("sasl.password", "hunter2")])).expect_err("there is a key for it");
    assert!(!format!("{error} {error:?} {}", error.what()).contains("hunter2"), "{error}");
    assert_eq!(error.key(), Some("sasl.password"), "{error}");
}

#[test]
fn a_listener_has_a_topic_of_its_own_where_the_name_says_so() {
    assert_eq!(expand_topic("udp.{listener}.{sink}", "syslog", "stream"), "udp.syslog.stream");
    assert_eq!(expand_topic("all", "syslog", "stream"), "all");
}

#[test]
fn what_no_broker_can_have_is_refused_whatever_the_names_are() {
    for (topic, words) in [
        ("", "no broker"),
        (".", "no broker"),
        ("a/b", "no broker"),
        ("ä", "no broker"),
        ("{lane}", "{listener} and {sink}"),
        ("{listener", "{listener} and {sink}"),
        (&"x".repeat(250), "250 bytes"),
        (&format!("{}{{listener}}", "x".repeat(186)), "250 bytes"),
    ] {
        let error = check_topic(topic).expect_err(topic).to_string();
        assert!(error.starts_with(&format!("topic = {topic:?}: ")) && error.contains(words), "{error}");
    }
    assert_eq!(check_topic(&"x".repeat(249)), Ok(()));
    assert_eq!(check_topic("net.flow_v9-{listener}"), Ok(()));
}

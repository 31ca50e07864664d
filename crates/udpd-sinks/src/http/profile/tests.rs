//! Records as each server gets them, read back, and how long they can be.

use super::*;
use crate::http::request::BatchId;
use crate::http::{Pair, PayloadParse};
use HttpProfile::{Clickhouse, Elasticsearch, Loki, Ndjson, Otlp, SplunkHec};
use seeds::Chance;
use serde_json::{Value, json};
use std::time::Duration;
use udpd_base::settings::TableSettings;
use udpd_base::text::base64;

const ALL: [HttpProfile; 6] = [Clickhouse, Otlp, SplunkHec, Elasticsearch, Loki, Ndjson];
const ID: BatchId = BatchId { origin: 0xabc, begin: 0x10 };

fn record(payload: &[u8]) -> DatagramRecord<'_> {
    DatagramRecord {
        listener: "syslog",
        lane: 3,
        arrival: Duration::new(1_795_243_341, 7),
        is_time_of_batch: false,
        source: "192.0.2.7:40000".parse().expect("an address"),
        destination: "10.0.0.1:514".parse().expect("an address"),
        payload,
        length: payload.len(),
    }
}

fn settings(profile: HttpProfile) -> HttpSettings {
    HttpSettings { profile, ..HttpSettings::defaults() }
}

fn parsing(profile: HttpProfile) -> HttpSettings {
    HttpSettings { parse: PayloadParse::Syslog, ..settings(profile) }
}

fn batch_of(settings: &HttpSettings, records: &[DatagramRecord<'_>]) -> RequestBatch {
    let (mut writer, mut batch) = (BodyWriter::new(settings), RequestBatch::new(0));
    batch.id = ID;
    writer.begin(&mut batch);
    records.iter().for_each(|record| writer.append(&mut batch, record));
    writer.end(&mut batch);
    assert_eq!((batch.id, batch.records()), (ID, records.len()));
    batch
}

#[test]
fn any_records_of_a_batch_make_a_batch_that_the_server_reads() {
    let payloads = [&b"one"[..], b"two", b",[3", b"four"];
    for profile in ALL {
        let settings = settings(profile);
        let all = batch_of(&settings, &payloads.map(record));
        let values = values_of(profile, std::str::from_utf8(&all.body).expect("text"));
        for places in [&[0, 1][..], &[2, 3], &[1], &[0, 3], &[0, 1, 2, 3]] {
            let mut some = RequestBatch::new(0);
            BodyWriter::new(&settings).pick(&all, places, &mut some);
            let expected: Vec<_> = places.iter().map(|place| values[*place].clone()).collect();
            assert_eq!(values_of(profile, std::str::from_utf8(&some.body).expect("text")), expected, "{profile:?}");
            assert_eq!((some.id.begin, some.records()), (ID.begin + places[0] as u64, places.len()));
        }
    }
}

fn body_of(settings: &HttpSettings, records: &[DatagramRecord<'_>]) -> String {
    String::from_utf8(batch_of(settings, records).body).expect("text")
}

/// The objects of records, whichever profile wrote them.
fn values_of(profile: HttpProfile, body: &str) -> Vec<Value> {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    match profile {
        Otlp => value(body)["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().expect("records").clone(),
        Loki => value(body)["streams"][0]["values"].as_array().expect("values").clone(),
        Elasticsearch => body.lines().skip(1).step_by(2).map(value).collect(),
        Clickhouse | SplunkHec | Ndjson => body.lines().map(value).collect(),
    }
}

/// The value of an attribute of OTLP.
fn attribute(record: &Value, key: &str) -> Value {
    let attributes = record["attributes"].as_array().expect("attributes");
    let found: Vec<&Value> = attributes.iter().filter(|attribute| attribute["key"] == key).collect();
    assert!(found.len() < 2, "{key} is there twice");
    found.first().map_or(Value::Null, |attribute| attribute["value"].clone())
}

/// The bytes that a record keeps of its datagram.
fn payload_of(profile: HttpProfile, value: &Value) -> Vec<u8> {
    let text = |value: &Value| value.as_str().map(|text| text.as_bytes().to_vec());
    let bytes = |value: &Value| value.as_str().and_then(base64::decode);
    let is_base64 = |fields: &Value| fields["encoding"] == "base64";
    match profile {
        Clickhouse => {
            text(&value["raw"]).or_else(|| text(&value["message"])).or_else(|| bytes(&value["message_base64"]))
        }
        Otlp => text(&attribute(value, "log.record.original")["stringValue"])
            .or_else(|| text(&value["body"]["stringValue"]))
            .or_else(|| bytes(&value["body"]["bytesValue"])),
        SplunkHec if is_base64(&value["fields"]) => bytes(&value["event"]),
        SplunkHec => text(&value["event"]).or_else(|| text(&value["event"]["payload"])),
        Elasticsearch => text(&value["event"]["original"])
            .or_else(|| text(&value["message"]))
            .or_else(|| bytes(&value["udpd"]["payload_base64"])),
        Loki if is_base64(&value[2]) => bytes(&value[1]),
        Loki => text(&value[1]),
        Ndjson => text(&value["payload"]).or_else(|| bytes(&value["payload_base64"])),
    }
    .unwrap_or_else(|| panic!("no payload in {value}"))
}

#[test]
fn a_row_of_clickhouse_has_a_column_for_each_fact() {
    assert_eq!(
        body_of(&settings(Clickhouse), &[record(b"a \"line\""), record(b"\xff")]),
        "{\"time\":\"2026-11-21T06:42:21.000000007Z\",\"source\":\"192.0.2.7\",\"source_port\":40000,\
         \"destination\":\"10.0.0.1\",\"destination_port\":514,\"listener\":\"syslog\",\
         \"message\":\"a \\\"line\\\"\",\"length\":8}\n\
         {\"time\":\"2026-11-21T06:42:21.000000007Z\",\"source\":\"192.0.2.7\",\"source_port\":40000,\
         \"destination\":\"10.0.0.1\",\"destination_port\":514,\"listener\":\"syslog\",\
         \"message_base64\":\"/w==\",\"length\":1}\n"
    );
}

#[test]
fn a_record_of_otlp_has_the_names_of_the_conventions_and_its_resource_the_labels() {
    let pair = |name: &str, value: &str| Pair { name: name.to_owned(), value: value.to_owned() };
    let labels = vec![pair("host.name", "gate"), pair("deployment.environment", "a\"b")];
    let body = body_of(&HttpSettings { labels, ..settings(Otlp) }, &[record(b"text"), record(b"\xff")]);
    let value: Value = serde_json::from_str(&body).expect("JSON");
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let number = |key: &str, value: &str| json!({"key": key, "value": {"intValue": value}});
    let of_resource = [text("service.name", "udpd"), text("host.name", "gate"), text("deployment.environment", "a\"b")];
    assert_eq!(value["resourceLogs"][0]["resource"]["attributes"], json!(of_resource));
    let mut expected = json!({
        "timeUnixNano": "1795243341000000007",
        "observedTimeUnixNano": "1795243341000000007",
        "body": {"stringValue": "text"},
        "attributes": [
            text("source.address", "192.0.2.7"),
            number("source.port", "40000"),
            text("destination.address", "10.0.0.1"),
            number("destination.port", "514"),
            text("udpd.listener", "syslog"),
        ],
    });
    let records = values_of(Otlp, &body);
    assert_eq!(records[0], expected);
    expected["body"] = json!({"bytesValue": "/w=="});
    assert_eq!(records[1], expected);

    let named = HttpSettings { labels: vec![pair("service.name", "mine")], ..settings(Otlp) };
    let value: Value = serde_json::from_str(&body_of(&named, &[])).expect("JSON");
    assert_eq!(value["resourceLogs"][0]["resource"]["attributes"], json!([text("service.name", "mine")]));
}

#[test]
fn an_event_of_splunk_has_its_time_host_and_source_and_is_never_blank() {
    let written = HttpSettings { index: "main".to_owned(), source_type: "syslog".to_owned(), ..settings(SplunkHec) };
    assert_eq!(
        body_of(&written, &[record(b"text")]),
        "{\"time\":1795243341.000000007,\"host\":\"192.0.2.7\",\"source\":\"udp:514\",\"sourcetype\":\"syslog\",\
         \"index\":\"main\",\"event\":\"text\",\"fields\":{\"source_port\":\"40000\",\"destination\":\"10.0.0.1\",\
         \"destination_port\":\"514\",\"listener\":\"syslog\"}}\n"
    );
    let body = body_of(&settings(SplunkHec), &[record(b""), record(b" \n"), record(b"\xff")]);
    let events = values_of(SplunkHec, &body);
    assert!(events.iter().all(|event| event.get("index").is_none() && event.get("sourcetype").is_none()));
    assert_eq!(events[0]["event"], json!({"payload": ""}));
    assert_eq!(events[1]["event"], json!({"payload": " \n"}));
    assert_eq!((&events[2]["event"], &events[2]["fields"]["encoding"]), (&json!("/w=="), &json!("base64")));
}

#[test]
fn a_document_of_elasticsearch_is_created_under_the_id_of_its_batch_and_its_place() {
    assert_eq!(
        body_of(&settings(Elasticsearch), &[record(b"text"), record(b"\xff")]),
        "{\"create\":{\"_id\":\"2748-16\"}}\n\
         {\"@timestamp\":\"2026-11-21T06:42:21.000000007Z\",\"source\":{\"ip\":\"192.0.2.7\",\"port\":40000},\
         \"destination\":{\"ip\":\"10.0.0.1\",\"port\":514},\"udpd\":{\"listener\":\"syslog\"},\
         \"message\":\"text\"}\n\
         {\"create\":{\"_id\":\"2748-17\"}}\n\
         {\"@timestamp\":\"2026-11-21T06:42:21.000000007Z\",\"source\":{\"ip\":\"192.0.2.7\",\"port\":40000},\
         \"destination\":{\"ip\":\"10.0.0.1\",\"port\":514},\
         \"udpd\":{\"listener\":\"syslog\",\"payload_base64\":\"/w==\"}}\n"
    );
}

#[test]
fn an_entry_of_loki_is_in_the_stream_of_its_labels() {
    assert_eq!(
        body_of(&settings(Loki), &[record(b"text"), record(b"\xff")]),
        "{\"streams\":[{\"stream\":{\"job\":\"udpd\"},\"values\":[\
         [\"1795243341000000007\",\"text\",{\"source\":\"192.0.2.7\",\"source_port\":\"40000\",\
         \"destination\":\"10.0.0.1\",\"destination_port\":\"514\",\"listener\":\"syslog\"}],\
         [\"1795243341000000007\",\"/w==\",{\"source\":\"192.0.2.7\",\"source_port\":\"40000\",\
         \"destination\":\"10.0.0.1\",\"destination_port\":\"514\",\"listener\":\"syslog\",\
         \"encoding\":\"base64\"}]]}]}"
    );
    let pair = |name: &str| Pair { name: name.to_owned(), value: "v".to_owned() };
    let labels = vec![pair("job"), pair("host.name"), pair("2-x")];
    let body = body_of(&HttpSettings { labels, ..settings(Loki) }, &[]);
    let value: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(value["streams"][0]["stream"], json!({"job": "v", "host_name": "v", "_2_x": "v"}));
}

#[test]
fn a_line_of_ndjson_is_one_of_the_format_jsonl() {
    let mut line = Vec::new();
    udpd_base::format::jsonl::append(&mut line, &record(b"text"));
    assert_eq!(body_of(&settings(Ndjson), &[record(b"text")]).as_bytes(), line);
    assert_eq!(body_of(&parsing(Ndjson), &[record(b"text")]).as_bytes(), line, "it is no line of syslog");
}

const LINE: &str =
    "<165>1 2026-11-21T07:42:21.5+01:00 gate su 8710 ID47 [a@1 x=\"1\" ip=\"\\\"q\" ip=\"b\"][b] the \"message\"\n";

#[test]
fn the_fields_of_a_line_of_syslog_have_the_names_of_each_server() {
    let value = |profile| values_of(profile, &body_of(&parsing(profile), &[record(LINE.as_bytes())])).remove(0);
    let data = json!({"a@1": {"x": "1", "ip": ["\"q", "b"]}, "b": {}});
    let as_text = |value: &Value| serde_json::from_str::<Value>(value.as_str().expect("text")).expect("JSON");
    let message = "the \"message\"";

    let row = value(Clickhouse);
    assert_eq!((&row["message"], &row["raw"]), (&json!(message), &json!(LINE)));
    let columns = ["severity", "facility", "hostname", "app", "procid", "msgid"].map(|name| row[name].clone());
    assert_eq!(json!(columns), json!([5, 20, "gate", "su", "8710", "ID47"]));
    assert_eq!(as_text(&row["structured_data"]), data);

    let log = value(Otlp);
    assert_eq!(log["timeUnixNano"], "1795243341500000000");
    assert_eq!(log["observedTimeUnixNano"], "1795243341000000007");
    assert_eq!((&log["severityNumber"], &log["severityText"]), (&json!(10), &json!("notice")));
    assert_eq!(log["body"]["stringValue"], message);
    for (key, expected) in [
        ("syslog.hostname", "gate"),
        ("syslog.appname", "su"),
        ("syslog.procid", "8710"),
        ("syslog.msgid", "ID47"),
        ("log.record.original", LINE),
    ] {
        assert_eq!(attribute(&log, key)["stringValue"], expected, "{key}");
    }
    assert_eq!(attribute(&log, "syslog.facility")["intValue"], "20");
    assert_eq!(as_text(&attribute(&log, "syslog.structured_data")["stringValue"]), data);

    let document = value(Elasticsearch);
    assert_eq!((&document["message"], &document["event"]["original"]), (&json!(message), &json!(LINE)));
    assert_eq!(
        document["log"],
        json!({"level": "notice", "syslog": {
            "priority": 165,
            "severity": {"code": 5, "name": "notice"},
            "facility": {"code": 20, "name": "local4"},
            "hostname": "gate", "appname": "su", "procid": "8710", "msgid": "ID47",
            "structured_data": data,
        }})
    );

    for fields in [value(SplunkHec)["fields"].clone(), value(Loki)[2].clone()] {
        let told = ["severity", "facility", "hostname", "app", "procid", "msgid"].map(|name| fields[name].clone());
        assert_eq!(json!(told), json!(["notice", "local4", "gate", "su", "8710", "ID47"]));
        assert_eq!(as_text(&fields["structured_data"]), data);
    }

    let parsed = &value(Ndjson)["syslog"];
    assert_eq!((&parsed["message"], &parsed["hostname"]), (&json!(message), &json!("gate")));
    assert_eq!(as_text(&parsed["structured_data"]), data);
}

#[test]
fn a_record_of_a_truncated_datagram_says_so_and_how_long_it_was() {
    let cut = DatagramRecord { length: 9000, ..record(b"begun") };
    let value = |profile| values_of(profile, &body_of(&settings(profile), &[cut])).remove(0);
    for fields in [value(Clickhouse), value(Elasticsearch)["udpd"].clone(), value(Ndjson)] {
        assert_eq!((&fields["truncated"], &fields["length"]), (&json!(true), &json!(9000)));
    }
    for fields in [value(SplunkHec)["fields"].clone(), value(Loki)[2].clone()] {
        assert_eq!((&fields["truncated"], &fields["length"]), (&json!("true"), &json!("9000")));
    }
    let log = value(Otlp);
    assert_eq!(attribute(&log, "udpd.truncated"), json!({"boolValue": true}));
    assert_eq!(attribute(&log, "udpd.length"), json!({"intValue": "9000"}));
}

#[test]
fn what_is_known_of_the_place_is_that_of_each_record() {
    let others = [
        record(b"1"),
        DatagramRecord { destination: "[2001:db8::1]:515".parse().expect("an address"), ..record(b"2") },
        DatagramRecord { listener: "other", ..record(b"3") },
        DatagramRecord { source: "[fe80::7%3]:1".parse().expect("an address"), ..record(b"4") },
        DatagramRecord { source: "[::ffff:192.0.2.9]:1".parse().expect("an address"), ..record(b"5") },
    ];
    let rows = values_of(Clickhouse, &body_of(&settings(Clickhouse), &others));
    let told = |name: &str| rows.iter().map(|row| row[name].as_str().expect("text")).collect::<Vec<_>>();
    assert_eq!(told("destination"), ["10.0.0.1", "2001:db8::1", "10.0.0.1", "10.0.0.1", "10.0.0.1"]);
    assert_eq!(told("listener"), ["syslog", "syslog", "other", "syslog", "syslog"]);
    assert_eq!(told("source"), ["192.0.2.7", "192.0.2.7", "192.0.2.7", "fe80::7", "192.0.2.9"]);
}

#[test]
fn records_end_where_they_say_and_stand_alone_but_for_otlp_and_loki() {
    for profile in ALL {
        let records = [record(b"one"), record(b"\xff two"), record(b"<13>three")];
        let batch = batch_of(&parsing(profile), &records);
        let body = String::from_utf8(batch.body).expect("text");
        assert_eq!(values_of(profile, &body).len(), 3, "{profile:?}");
        if matches!(profile, Otlp | Loki) {
            assert!(batch.ends.iter().all(|&end| body[..end].ends_with(['}', ']'])));
            assert_eq!(values_of(profile, &body_of(&settings(profile), &[])).len(), 0);
            continue;
        }
        let begins = std::iter::once(&0).chain(&batch.ends);
        for ((&begin, &end), record) in begins.zip(&batch.ends).zip(&records) {
            let values = values_of(profile, &body[begin..end]);
            assert_eq!(values.iter().map(|value| payload_of(profile, value)).collect::<Vec<_>>(), [record.payload]);
        }
    }
}

/// A payload by chance: bytes, text that needs escapes, and lines of syslog that are nearly right.
fn payload_by_chance(chance: &mut Chance) -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "<13>1 - - - - - ",
        "<165>1 2026-11-21T07:42:21.5+01:00 ",
        "<34>Oct 11 22:14:15 ",
        "[a b=\"",
        "\" c=\"",
        "\"]",
        "[e]",
        "\" b=\"",
        " ",
        "-",
        "\"",
        "\\",
        "\\\"",
        "\\\\",
        "]",
        "\n",
        "\0",
        "\x7f",
        "\u{85}",
        "\u{202e}",
        "ü",
        "😀",
        "host ",
        "app[1]: text",
    ];
    if chance.happens(1, 4) {
        let mut bytes = vec![0; chance.index(40)];
        chance.fill(&mut bytes);
        return bytes;
    }
    let count = chance.index(24);
    (0..count).flat_map(|_| chance.pick(&WORDS).bytes()).collect()
}

#[test]
fn whatever_a_payload_is_it_comes_back_and_its_record_keeps_to_its_bound() {
    let name = "x".repeat(64);
    let mut chance = Chance::new(7);
    for round in 0..if cfg!(debug_assertions) { 300 } else { 60_000 } {
        let payload = payload_by_chance(&mut chance);
        let facts = match round % 2 {
            0 => record(&payload),
            _ => longest_facts(&name, &payload),
        };
        for profile in ALL {
            for settings in [settings(profile), parsing(profile)] {
                let batch = batch_of(&settings, &[facts, facts]);
                let body = String::from_utf8(batch.body).expect("text");
                let (second, bound) = (body.len() - batch.ends[0], record_bytes_max(profile, payload.len()));
                assert!(second <= bound, "{profile:?}: {second} > {bound} of {payload:?}");
                let values = values_of(profile, &body);
                assert_eq!(values.len(), 2, "{profile:?} {payload:?}");
                values.iter().for_each(|value| assert_eq!(payload_of(profile, value), payload, "{profile:?}"));
            }
        }
    }
}

/// The facts that take the most room.
fn longest_facts<'r>(name: &'r str, payload: &'r [u8]) -> DatagramRecord<'r> {
    let long = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().expect("an address");
    DatagramRecord {
        listener: name,
        lane: usize::MAX,
        is_time_of_batch: true,
        arrival: Duration::new(99_999_999_999, 999_999_999),
        source: long,
        destination: long,
        length: 65_535,
        ..record(payload)
    }
}

/// How long the second record is of two with the longest facts and words, and such a payload.
fn longest_record(profile: HttpProfile, payload: &[u8]) -> usize {
    let (name, word) = ("x".repeat(64), "w".repeat(255));
    let settings = HttpSettings { index: word.clone(), source_type: word, ..parsing(profile) };
    let facts = longest_facts(&name, payload);
    let (mut writer, mut batch) = (BodyWriter::new(&settings), RequestBatch::new(0));
    batch.id = BatchId { origin: u64::MAX, begin: u64::MAX };
    writer.begin(&mut batch);
    writer.append(&mut batch, &facts);
    let begin = batch.body.len();
    writer.append(&mut batch, &facts);
    writer.end(&mut batch);
    batch.body.len() - begin
}

#[test]
fn what_is_not_of_the_payload_fits_the_fixed_part_of_a_bound_closely() {
    // A priority of three digits, and the number of a record in a batch has seven at most.
    const DIGITS: usize = 8;
    let line = b"<84>1 - h a p m [e n=\"v\"] x";
    for profile in ALL {
        let message = usize::from(!matches!(profile, SplunkHec | Loki));
        let data = if profile == Elasticsearch { r#""e":{"n":"v"}"# } else { r#"\"e\":{\"n\":\"v\"}"# };
        let of_payload = line.len() + 4 + "hapm".len() + message + data.len();
        let fixed = longest_record(profile, line) - of_payload + DIGITS;
        let bound = record_bytes_max(profile, 0);
        assert!((bound - 64..=bound).contains(&fixed), "{profile:?}: {fixed} of {bound}");
    }
}

#[test]
fn the_longest_record_there_is_fits_its_bound_and_needs_nearly_all_of_it() {
    let fill = |begin: &str, end: &str| begin.to_owned() + &"\x01".repeat(65_507 - begin.len() - end.len()) + end;
    let lines =
        [fill("<191>1 - h a p m [e n=\"", "\"]"), fill("<191>1 - h a p m - ", ""), fill("<191>1 - h a p ", " -")];
    let many: String = (0..16).map(|nth| format!("[{nth:x} a=\"\" a=\"\" b=\"\"]")).collect();
    for profile in ALL {
        let bound = record_bytes_max(profile, 65_507);
        let longest = lines.iter().map(|line| longest_record(profile, line.as_bytes())).max().expect("some");
        assert!((bound - 1024..=bound).contains(&longest), "{profile:?}: {longest} of {bound}");
        let line = format!("<191>1 - h a p m {many}");
        assert!(longest_record(profile, line.as_bytes()) <= record_bytes_max(profile, line.len()));
    }
}

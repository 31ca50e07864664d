//! docs/jsonl.md against the encoder: whatever a datagram is, its line has the keys of the page's table and no others,
//! in that order, with those types, and only when the page says so.

use std::time::Duration;

use serde_json::Value;
use udpd_base::format::DatagramRecord;
use udpd_base::format::jsonl;

/// A row of the table.
struct Row {
    key: String,
    kind: String,
    when: String,
}

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/jsonl.md")).expect("docs/jsonl.md")
}

fn rows(page: &str) -> Vec<Row> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let key = cells[0].trim_end_matches('`').to_owned();
        Row { key, kind: cells[1].to_owned(), when: cells[2].to_owned() }
    };
    rows.map(row).collect()
}

fn line(payload: &[u8], length: usize, source: &str) -> String {
    line_of(payload, length, source, false)
}

fn line_of(payload: &[u8], length: usize, source: &str, is_time_of_batch: bool) -> String {
    let mut line = Vec::new();
    let record = DatagramRecord {
        is_time_of_batch,
        listener: "syslog",
        lane: 3,
        arrival: Duration::new(1_795_243_341, 7),
        source: source.parse().expect("an address"),
        destination: "10.0.0.1:514".parse().expect("an address"),
        payload,
        length,
    };
    jsonl::append(&mut line, &record);
    String::from_utf8(line).expect("UTF-8")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        _ => "something else",
    }
}

#[test]
fn each_line_has_the_keys_that_the_page_says_in_their_order_and_with_their_types() {
    let rows = rows(&page());
    assert_eq!(rows.len(), 10, "the table of docs/jsonl.md");
    let (text, bytes) = (b"<13>host: \x1b[2J\"\n".as_slice(), b"\xff\x00".as_slice());
    for (payload, length) in [(text, text.len()), (bytes, 2), (text, 9000), (bytes, 9000), (b"", 0)] {
        for (source, is_of_batch) in [("192.0.2.7:40000", false), ("[2001:db8::7]:40000", true)] {
            let line = line_of(payload, length, source, is_of_batch);
            let object: Value = serde_json::from_str(&line).expect("JSON");
            let is_there = |row: &&Row| match row.when.as_str() {
                "always" => true,
                "if `truncated`" => length > payload.len(),
                "if it is UTF-8" => str::from_utf8(payload).is_ok(),
                "if it is not UTF-8" => str::from_utf8(payload).is_err(),
                "if not from the kernel" => is_of_batch,
                other => panic!("docs/jsonl.md says {other:?}, of which this test does not know"),
            };
            let expected: Vec<&Row> = rows.iter().filter(is_there).collect();
            assert_eq!(object.as_object().expect("an object").len(), expected.len(), "{line}");
            let mut at = 0;
            for row in expected {
                assert_eq!(kind(&object[&row.key]), row.kind, "{} in {line}", row.key);
                let place = line.find(&format!("\"{}\":", row.key)).expect("in the line");
                assert!(place >= at, "{} in {line}", row.key);
                at = place;
            }
            assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line:?}");
        }
    }
}

#[test]
fn the_example_of_the_page_is_a_line_as_it_is_written() {
    let page = page();
    let (_, behind) = page.split_once("```json\n").expect("an example");
    let (example, _) = behind.split_once("```").expect("its end");
    let written = line(b"<13>host: a message", 19, "192.0.2.7:40000").replace("\"lane\":3", "\"lane\":0");
    assert_eq!(example.replace('\n', ""), written.trim_end());
}

//! What holds for the whole of the configuration: the documented file, the examples, the defaults.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file::keys;
use super::{Absorb, Config, DaemonConfig, HostView, Lists};
use udpd_base::settings::{Chosen, KeyDeclaration};
use udpd_sinks::kafka::KafkaSettings;

/// The least that works, with the values that `config/udpd.toml` has where there is no default.
const LEAST: &str = r#"
[[listener]]
name = "syslog"
address = "0.0.0.0:514"
sinks = ["archive"]

[sink.archive]
type = "file"
path = "/var/log/udpd/{listener}-{consumer}.log"
"#;

fn documentation() -> String {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("config/udpd.toml");
    fs::read_to_string(path).expect("config/udpd.toml")
}

fn parse(text: &str) -> Config {
    Config::parse(text, "test.toml", &HostView::default()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The messages about `text`, without the name of the file.
fn problems(text: &str, host: &HostView) -> Vec<String> {
    let problems = Config::parse(text, "f", host).expect_err("the text is wrong");
    problems.list().iter().map(ToString::to_string).collect()
}

#[test]
fn the_documented_file_shows_the_defaults_of_the_code() {
    let mut documented = parse(&documentation());
    let packaged = PathBuf::from("/run/udpd/control.sock");
    assert_eq!(documented.daemon.control_socket, Chosen { value: Some(packaged), written: true });
    let least = parse(LEAST);
    // Where the socket is by default depends on who runs the test; that it is written is all that differs otherwise.
    documented.daemon.control_socket = least.daemon.control_socket.clone();
    documented.daemon.metrics_address.written = false;
    assert_eq!(format!("{documented:#?}"), format!("{least:#?}"));
    assert_eq!(least.daemon, DaemonConfig::default());
}

/// Every setting of the documented file by its path: its value as written, and whether it is commented out.
fn documented_settings() -> BTreeMap<String, (String, bool)> {
    let mut named = BTreeMap::new();
    let mut table = String::new();
    for line in documentation().lines() {
        // A setting that is commented out stands directly behind the #, prose behind a space.
        let (line, shown) = line.strip_prefix('#').map_or((line, true), |behind| (behind, false));
        let path = |key: &str| format!("{table}.{key}");
        if let Some(header) = line.strip_prefix('[') {
            let name = header.trim_matches(['[', ']']);
            table = if name.starts_with("sink.") { "sink.*".to_owned() } else { name.to_owned() };
        } else if let Some((key, value)) = line.split_once(" = ")
            && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            let pairs = value.strip_prefix("{ ").and_then(|inner| inner.strip_suffix(" }")).into_iter();
            let inner = pairs.flat_map(|inner| inner.split(", ")).filter_map(|pair| pair.split_once(" = "));
            named.extend(inner.map(|(own, value)| (path(&format!("{key}.{own}")), (value.to_owned(), shown))));
            named.entry(path(key)).or_insert((value.to_owned(), shown));
        }
    }
    named
}

#[test]
fn the_documented_file_explains_every_key_and_shows_its_default() {
    let mut named = documented_settings();
    let keys = keys().0;
    let mut wrong = Vec::new();
    for KeyDeclaration { path, default, .. } in keys.iter().filter(|key| key.path.contains('.')) {
        match (named.remove(path), default) {
            (None, _) => wrong.push(format!("{path} is not explained")),
            (Some((value, true)), Some(default)) if value != *default => {
                wrong.push(format!("{path} = {value} is shown as the default, which is {default}"));
            }
            _ => {}
        }
    }
    wrong.extend(named.keys().map(|path| format!("{path} is explained, and the reader does not know it")));
    assert!(wrong.is_empty(), "config/udpd.toml:\n{}", wrong.join("\n"));
}

#[test]
fn the_examples_are_valid() {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("config/examples");
    let files: Vec<_> = fs::read_dir(directory).expect("config/examples").flatten().collect();
    assert!(files.len() >= 3, "the examples are gone");
    for file in files {
        match Config::load(&file.path(), &HostView::default()) {
            Ok(_) => {}
            // Another build has it.
            Err(failure) if !cfg!(feature = "kafka") && failure.message.contains("--features kafka") => {}
            Err(failure) => panic!("{failure}"),
        }
    }
}

#[test]
fn the_example_of_every_key_is_right_in_its_place() {
    // What is written as the cure of a message must not be the next mistake.
    for key in keys().0.iter().filter(|key| key.path.starts_with("listener.") || key.path.starts_with("daemon.")) {
        let (table, name) = key.path.split_once('.').expect("a table and a key");
        if ["name", "address", "sinks", "interface", "proxy_from", "silence"].contains(&name) {
            continue;
        }
        let line = format!("{name} = {}\n", key.example);
        let text = match table {
            "daemon" => format!("[daemon]\n{line}{LEAST}"),
            _ => LEAST.replace("[[listener]]\n", &format!("[[listener]]\n{line}")),
        };
        // Whose files need not be there.
        let host = HostView { lists: Lists::Leave, ..HostView::default() };
        Config::parse(&text, "test.toml", &host).unwrap_or_else(|problems| panic!("{problems}"));
    }
}

#[test]
fn a_written_default_is_told_from_one_that_is_not() {
    let config = parse(&format!("[daemon]\nmetrics_address = \"\"\n{LEAST}"));
    assert_eq!(config.daemon.metrics_address, Chosen { value: None, written: true });
    assert!(!config.daemon.control_socket.written);
}

#[test]
fn a_written_absorb_is_told_from_the_default_even_where_both_are_equal() {
    let absorb = |line: &str| parse(&LEAST.replace("sinks", &format!("{line}\nsinks"))).listeners[0].absorb;
    let default = Absorb { rate: 200_000, stall: Duration::from_millis(250), size_bytes: 512, is_written: false };
    assert_eq!(absorb(""), default);
    for written in ["absorb = {}", "absorb.stall = \"250ms\"", "absorb = { rate = 200000, size = 512 }"] {
        assert_eq!(absorb(written), Absorb { is_written: true, ..default }, "{written}");
    }
}

#[test]
fn no_datagram_is_taken_for_longer_than_what_is_kept_of_it() {
    let assumed =
        |lines: &str| parse(&LEAST.replace("sinks", &format!("{lines}\nsinks"))).listeners[0].absorbed_bytes();
    assert_eq!(assumed(""), 512);
    assert_eq!(assumed("max_length = 100"), 100);
    assert_eq!(assumed("max_length = 100\nabsorb = { size = 100 }"), 100);
    assert_eq!(assumed("max_length = \"9KiB\"\nabsorb = { size = \"9KiB\" }"), 9216);
}

#[test]
fn a_queue_is_read_in_bytes_and_in_its_older_spelling_as_batches_of_32_kib() {
    let read = |line: &str| {
        let config = parse(&format!("{LEAST}{line}\n"));
        (config.sinks[0].queue_bytes, config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    for (line, bytes) in [
        ("", None),
        ("queue_bytes = \"auto\"", None),
        ("queue_bytes = \"64KiB\"", Some(64 << 10)),
        ("queue_bytes = 65537", Some(65_537)),
        ("queue_bytes = \"1024GiB\"", Some(1 << 40)),
    ] {
        assert_eq!(read(line), (bytes, Vec::new()), "{line}");
    }
    for (batches, bytes, size) in
        [(1, 64 << 10, "64KiB"), (2, 64 << 10, "64KiB"), (3, 96 << 10, "96KiB"), (65_536, 2 << 30, "2GiB")]
    {
        let said = format!(
            "test.toml:10:1: sink.archive.queue_batches: is the older spelling of queue_bytes; udpd reads {batches} \
             batches as {size}; write queue_bytes = \"{size}\" instead"
        );
        assert_eq!(read(&format!("queue_batches = {batches}")), (Some(bytes), vec![said]));
    }
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_text() {
    let text = "[[listener]]\nname = \"a b\"\nbatch_size = 0\nsinks = [\"x\"]\n[sink.y]\ntype = \"null\"\ncolour = 1\n";
    let lines = problems(text, &HostView::default());
    let places: Vec<_> = lines.iter().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    let expected =
        ["f:1:1 listener.address", "f:2:8 listener.name", "f:3:14 listener.batch_size", "f:4:10 listener.sinks"];
    assert_eq!(places[..4], expected);
    assert_eq!(places[4..], ["f:7:1 sink.y.colour"]);
}

#[test]
fn sinks_keep_the_order_of_the_file_and_listeners_point_to_them() {
    let text = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\nsinks = [\"a\", \"z\"]\n\
                [sink.z]\ntype = \"null\"\n[sink.a]\ntype = \"stdout\"\n";
    let config = parse(text);
    let names: Vec<_> = config.sinks.iter().map(|sink| sink.name.as_str()).collect();
    assert_eq!(names, ["z", "a"]);
    assert_eq!(config.listeners[0].sinks, [1, 0]);
}

#[test]
fn the_queues_of_an_interface_count_as_lanes_when_files_are_compared() {
    let root = tempfile::tempdir().expect("a temporary directory");
    for queue in ["rx-0", "rx-1"] {
        fs::create_dir_all(root.path().join("class/net/eth0/queues").join(queue)).expect("a queue");
    }
    let host = HostView { sys_root: root.path().to_owned(), ..HostView::default() };
    let text = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\ninterface = \"eth0\"\nsinks = [\"s\"]\n\
                [sink.s]\ntype = \"file\"\npath = \"/nonexistent/{listener}\"\nconsumers = \"per_lane\"\n";
    let lines = problems(text, &host);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("2 consumers would write the same file"), "{lines:?}");
}

#[test]
fn a_kafka_sink_is_taken_by_a_build_that_has_one_and_refused_by_one_that_has_not() {
    let text = LEAST.replace(
        "type = \"file\"\npath = \"/var/log/udpd/{listener}-{consumer}.log\"\n",
        "type = \"kafka\"\nbrokers = \"10.0.0.5:9092\"\ntopic = \"syslog\"\nacks = \"1\"\n\
         [sink.archive.properties]\n\"linger.ms\" = 20\n\"socket.keepalive.enable\" = true\n",
    );
    if cfg!(feature = "kafka") {
        let config = parse(&text);
        let kafka: &KafkaSettings = config.sinks[0].settings.of_type().expect("a sink of type kafka");
        assert_eq!((kafka.topic.as_str(), kafka.acks.as_str(), kafka.key_by_source), ("syslog", "1", true));
        let properties: Vec<_> = kafka.properties.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(properties, [("linger.ms", "20"), ("socket.keepalive.enable", "true")]);
    } else {
        let lines = problems(&text, &HostView::default());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("built without Kafka") && lines[0].contains("--features kafka"), "{lines:?}");
    }
}

#[test]
fn every_destination_of_a_relay_to_all_is_a_sink_of_its_own() {
    let text = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\nsinks = [\"relay\", \"z\"]\n\
                [sink.relay]\ntype = \"udp\"\ndestinations = [\"10.0.0.8:514\", \"[fd00::9]:514\"]\n\
                queue_bytes = \"7MiB\"\n\
                [sink.z]\ntype = \"null\"\n";
    let config = parse(text);
    let names: Vec<_> = config.sinks.iter().map(|sink| sink.name.as_str()).collect();
    assert_eq!(names, ["relay@10.0.0.8:514", "relay@[fd00::9]:514", "z"]);
    assert_eq!(config.listeners[0].sinks, [0, 1, 2]);
    assert_eq!(config.sinks[1].queue_bytes, Some(7 << 20));
    let by_source = parse(&text.replace("queue_bytes = \"7MiB\"", "distribute = \"by_source\""));
    assert_eq!(by_source.sinks.len(), 2);
    assert_eq!(by_source.sinks[0].name, "relay");
}

#[test]
fn the_page_of_the_keys_is_what_the_declarations_say() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/keys.md");
    let page = super::manual::page();
    if std::env::var_os("UDPD_WRITE_DOCS").is_some() {
        fs::write(&path, &page).expect("docs/keys.md");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/keys.md is not as declared; UDPD_WRITE_DOCS=1 cargo test -p udpd-engine config writes it"
    );
}

#[test]
fn buffers_have_room_for_the_headers_that_proxies_put_before_datagrams() {
    let absorbed = |keys: &str| {
        let text = format!("[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:514\"\nsinks = [\"x\"]\n{keys}\n");
        let text = format!("{text}[sink.x]\ntype = \"null\"\n");
        Config::parse(&text, "f", &HostView::default()).expect("valid").listeners[0].absorbed_bytes()
    };
    let proxied = "proxy_protocol = \"v2\"\nproxy_from = [\"127.0.0.1/32\"]";
    assert_eq!([absorbed(""), absorbed(proxied)], [512, 564]);
    assert_eq!(absorbed(&format!("{proxied}\nmax_length = 520")), 520, "no more than is kept");
}

#[test]
fn habits_from_elsewhere_are_answered_with_what_is_right_here() {
    let with = |keys: &str| format!("{LEAST}{keys}\n");
    for (text, words) in [
        (with("prefix = \"time\"\nformat = \"jsonl\""), "only lines have a prefix"),
        (with("strip = \"nul\"\nformat = \"pcapng\""), "only lines have a strip; remove it"),
        (with("timezone = \"local\""), "what is timezone elsewhere is time here: time = \"utc\""),
        (LEAST.replace("/var/log/udpd", "$HOME"), "is not filled in: there is no shell and no home here"),
        (LEAST.replace("/var/log/udpd", "~/log"), "is not filled in"),
        (LEAST.replace("0.0.0.0:514", "udp://0.0.0.0:514"), "has a scheme, udp:, and an address has none"),
        (LEAST.replace("/var/log/udpd", "/l/{host}{source_port}"), "two senders could have one file"),
    ] {
        let found = problems(&text, &HostView::default());
        assert!(found.iter().any(|one| one.contains(words)), "{text}: {found:?}");
    }
    let [unknown] = &problems(&with("colour = 1"), &HostView::default())[..] else { panic!("one problem") };
    assert!(unknown.contains("strip") && unknown.contains("consumers"), "its own keys: {unknown}");
    assert!(!unknown.contains("destinations") && !unknown.contains("brokers"), "no keys of other types: {unknown}");
    let warned = |text: &str| parse(text).warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(warned(&LEAST.replace("/var/log", "/var/$USER")).contains("holds $USER, which is no variable here"));
    for plain in ["/var/log$", "/var/log/$1", "/var/a$$b"] {
        assert_eq!(warned(&LEAST.replace("/var/log", plain)).contains("no variable here"), plain.ends_with("$b"));
    }
    let both = parse(&with("time = \"utc\"\nstrip = \"nul\"\nprefix = \"time\""));
    assert!(both.sinks[0].settings.records_arrival(), "a time in front of a line");
}

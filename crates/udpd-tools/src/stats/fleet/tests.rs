//! The sum of ledgers against members that answer rightly, wrongly, late, in part and not at all.

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use super::*;
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::{LedgerWithStreams, ListenerStreams, NumberSpan, StreamSnapshot};
use udpd_base::ledger::testing::{example, stream as example_stream, upstream};

/// A program at an address of its own that answers one request with these bytes, and then hangs up.
fn answering(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("it connects");
        let mut request = Vec::new();
        let mut buffer = [0; 1024];
        while !request.ends_with(b"\r\n\r\n") {
            let count = client.read(&mut buffer).expect("a request");
            request.extend_from_slice(&buffer[..count]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        // The double of a member with a token.
        let is_refused = answer.contains("TOKEN") && !request.contains("Authorization: Bearer sesame\r\n");
        let refusal = "HTTP/1.1 401 Unauthorized\r\n\r\nno".to_owned();
        let answer = if is_refused { refusal } else { answer.replace("TOKEN", "") };
        assert!(request.starts_with("GET /ledger HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("Host: {address}\r\n")), "{request}");
        client.write_all(answer.as_bytes()).expect("it reads");
    });
    format!("http://{address}")
}

fn http(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn text(ledger: &Snapshot, streams: Vec<StreamSnapshot>) -> String {
    let streams = vec![ListenerStreams { listener: "syslog".to_owned(), streams }];
    serde_json::to_string(&LedgerWithStreams { ledger: ledger.clone(), streams }).expect("JSON")
}

fn asked(members: &[String]) -> Vec<Member> {
    member::ask_all(members, Duration::from_secs(20))
}

fn of_ledgers(ledgers: &[Value]) -> Vec<Member> {
    let member = |(number, ledger): (usize, &Value)| Member { name: format!("m{number}"), ledger: Ok(ledger.clone()) };
    ledgers.iter().enumerate().map(member).collect()
}

fn value(ledger: &Snapshot) -> Value {
    serde_json::to_value(ledger).expect("JSON")
}

#[test]
fn the_sum_has_every_counter_of_all_members_and_closes() {
    let mut other = example();
    other.listeners[0].sinks.remove(1);
    other.listeners[0].counts.dropped.duplicate = 5;
    other.listeners.push(other.listeners[0].clone());
    other.listeners[1].name = "netflow".to_owned();
    let members = asked(&[answering(http(&text(&example(), Vec::new()))), answering(http(&text(&other, Vec::new())))]);
    let json = to_json(&members);
    assert_eq!((&json["complete"], &json["members"][1]["error"]), (&json!(true), &Value::Null), "{json:#}");
    let [syslog, netflow] = [&json["listeners"][0], &json["listeners"][1]];
    assert_eq!((&syslog["name"], &syslog["members"], &netflow["members"]), (&json!("syslog"), &json!(2), &json!(1)));
    assert_eq!(syslog["arrived"], 2 * 1_234_667);
    assert_eq!(syslog["dropped"]["duplicate"], 5);
    assert_eq!(syslog["sinks"]["archive"]["delivered"], 2 * 1_233_000);
    assert_eq!(syslog["sinks"]["relay"]["dropped"]["queue_full"], 33_500, "one member has it");
    // Both books agree with themselves, apart from the 5 that were made up and the sink that was taken away.
    let alone = &to_json(&of_ledgers(&[value(&example())]))["listeners"][0];
    assert_eq!(alone["residual"], 0, "{alone:#}");
    // Each number of the one is in the sum twice or once more than in the other.
    let twice = to_json(&of_ledgers(&[value(&example()), value(&example()), value(&example())]));
    let keys = |table: &Value| table.as_object().expect("a table").keys().cloned().collect::<Vec<_>>();
    for (key, count) in alone.as_object().expect("a table") {
        if let (Some(count), true) = (count.as_i64(), key != "members") {
            assert_eq!(twice["listeners"][0][key], 3 * count, "{key}");
        }
    }
    assert_eq!(keys(&twice["listeners"][0]["dropped"]), keys(&alone["dropped"]));
}

#[test]
fn a_member_without_a_ledger_makes_the_sum_unknown_and_is_named_with_the_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("good"), text(&example(), Vec::new())).expect("written");
    std::fs::write(path("other.json"), "{\"version\": 5}").expect("written");
    let whole = http(&text(&example(), Vec::new()));
    let cut = whole[..whole.len() / 2].to_owned();
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    for (member, why) in [
        (answering("SSH-2.0-OpenSSH_9.2\r\n".to_owned()), "its answer is no HTTP"),
        (answering(http("<html>")), "this is no ledger: expected value"),
        (answering(http("[]")), "it has no version, or no listeners"),
        (answering(cut), "its answer ends after "),
        (answering("HTTP/1.1 503 Service Unavailable\r\n\r\nTry again.".to_owned()), "it answers 503"),
        (answering("HTTP/1.1 404 Not Found\r\n\r\n".to_owned()), "it has no /ledger"),
        (answering(format!("{whole}TOKEN")), "it asks for a token"),
        (format!("http://{closed}"), "cannot connect to "),
        (path("absent.json"), "cannot read the file"),
        (path("other.json"), "no version, or no listeners"),
        ("https://127.0.0.1:1".to_owned(), "only http:// is known"),
        (format!("http://{closed}#{}", path("absent.token")), "cannot read the token"),
    ] {
        let members = asked(&[path("good"), member.clone()]);
        let error = members[1].ledger.as_ref().expect_err(why);
        assert!(error.contains(why), "{why}: {error}");
        let json = to_json(&members);
        let sum = &json["listeners"][0];
        assert_eq!((&json["complete"], &json["members"][0]["error"]), (&json!(false), &Value::Null));
        for unknown in
            [&sum["arrived"], &sum["dropped"]["denied"], &sum["residual"], &sum["sinks"]["archive"]["offered"]]
        {
            assert_eq!(unknown, &Value::Null, "{member}: {sum:#}");
        }
        let table = render(&members);
        let last = table.lines().rfind(|line| line.trim_start().starts_with("all ")).expect("the sum");
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["all", "?", "?", "?", "?", "?"], "{table}");
        assert!(table.contains("1,234,667"), "what the other member says: {table}");
    }
    let mut out = Vec::new();
    let members = [path("good"), path("absent.json")];
    let failure = execute(&members, FleetForm::Html, &mut out).expect_err("a member is absent");
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("absent.json") && !failure.message.contains("good"), "{}", failure.message);
    let page = String::from_utf8(out).expect("UTF-8");
    assert!(page.starts_with("<!doctype html>") && page.contains("listener syslog"), "{page}");
    assert!(execute(&members[..1], FleetForm::Text, &mut Vec::new()).is_ok());
}

#[test]
fn a_member_that_never_answers_is_given_up_and_one_with_a_token_is_told_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    std::fs::write(&token, "sesame\n").expect("written");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hanging = format!("http://{}", silent.local_addr().expect("bound"));
    let members = member::ask_all(std::slice::from_ref(&hanging), Duration::from_millis(300));
    assert!(members[0].ledger.as_ref().is_err_and(|why| why.contains("no answer from 127.0.0.1")), "{members:?}");
    let whole = text(&example(), Vec::new());
    let guarded = format!("{}#{}", answering(http(&whole) + "TOKEN"), token.display());
    let members = asked(&[guarded]);
    assert!(members[0].ledger.is_ok(), "{members:?}");
    assert!(!members[0].name.contains("token"), "the file of a token is no part of its name");
}

#[test]
fn what_an_older_member_does_not_count_is_unknown_in_the_sum_and_the_rest_is_known() {
    let mut older = value(&example());
    older["listeners"][0]["dropped"].as_object_mut().expect("a table").remove("duplicate");
    older["listeners"][0].as_object_mut().expect("a table").remove("deduplicate_overflow");
    for order in [[older.clone(), value(&example())], [value(&example()), older]] {
        let sum = &to_json(&of_ledgers(&order))["listeners"][0];
        assert_eq!((&sum["dropped"]["duplicate"], &sum["deduplicate_overflow"]), (&Value::Null, &Value::Null));
        assert_eq!((&sum["dropped"]["denied"], &sum["received"]), (&json!(8), &json!(2 * 1_233_567)));
        assert_eq!(sum["residual"], Value::Null, "a term of it is unknown");
    }
}

/// A stream that came with these numbers, of which so many are missing.
fn came(first: u64, next: u64, missing: u64) -> StreamSnapshot {
    let numbers = Some(NumberSpan { first, next, bits: 32 });
    StreamSnapshot { arrived: next.wrapping_sub(first) - missing + 2, restarts: 0, numbers, ..example_stream() }
}

/// What is said of these streams of members.
fn sums(members: &[Vec<StreamSnapshot>]) -> StreamSums {
    let ledger = |streams: &Vec<StreamSnapshot>| {
        let mut ledger = example();
        ledger.listeners[0].upstream = Some(upstream());
        serde_json::from_str(&text(&ledger, streams.clone())).expect("JSON")
    };
    let ledgers: Vec<Value> = members.iter().map(ledger).collect();
    let [sum] = streams::sums(&ledgers.iter().collect::<Vec<_>>(), "syslog").try_into().expect("one unit");
    sum
}

#[test]
fn a_stream_that_moves_from_member_to_member_is_one_and_its_losses_are_exact() {
    let facts = |sum: StreamSums| {
        assert_eq!(sum.unknown, Vec::<String>::new());
        (sum.streams, sum.moved, sum.sent, sum.received, sum.missing)
    };
    assert_eq!(facts(sums(&[vec![came(100, 200, 3)]])), (1, 0, Some(100), Some(97), Some(3)));
    // Ten were lost between the two, and one member misses what the other has.
    let there_and_back = [vec![came(100, 500, 250)], vec![came(210, 400, 5)]];
    assert_eq!(facts(sums(&there_and_back)), (1, 1, Some(400), Some(150 + 185), Some(65)));
    let one_after_the_other = [vec![came(100, 200, 3)], vec![came(210, 300, 0)]];
    assert_eq!(facts(sums(&one_after_the_other)), (1, 1, Some(200), Some(187), Some(13)));
    // Past the wrap: one member has continued its numbers, the other began behind it.
    let wrapped = [vec![came((1 << 32) - 50, (1 << 32) + 10, 0)], vec![came(10, 60, 1)]];
    assert_eq!(facts(sums(&wrapped)), (1, 1, Some(110), Some(109), Some(1)));
    // Another exporter, and another port of the same one, are other streams.
    let mut other = came(0, 10, 1);
    other.port = 9;
    assert_eq!(facts(sums(&[vec![came(100, 200, 3), other]])), (2, 0, Some(110), Some(106), Some(4)));
}

#[test]
fn where_the_numbers_of_a_stream_cannot_be_merged_the_sum_is_unknown_and_says_why() {
    let restarted = StreamSnapshot { restarts: 1, ..came(100, 200, 0) };
    let unpublished = StreamSnapshot { numbers: None, ..came(100, 200, 0) };
    let bounds = StreamSnapshot { missing: None, ..unpublished.clone() };
    let mut elsewhere = came(5, 9, 0);
    elsewhere.destination = Some(([192, 0, 2, 10], 9995).into());
    for (members, why) in [
        (vec![vec![came(100, 200, 0)], vec![restarted.clone()]], "it began anew"),
        (vec![vec![came(100, 200, 0)], vec![unpublished.clone()]], "not published"),
        (vec![vec![bounds]], "only bounds"),
        (vec![vec![came(100, 200, 0), elsewhere]], "a member has two streams of it"),
        (vec![vec![came(0, 10, 0)], vec![came((1 << 31) - 5, 1 << 31, 0)]], "gone round"),
        (vec![vec![came(100, 200, 0)], vec![came(100, 200, 0)]], "some came to several members"),
    ] {
        let sum = sums(&members);
        assert_eq!((sum.sent, sum.received, sum.missing), (None, None, None), "{why}: {sum:?}");
        assert!(sum.unknown.iter().any(|known| known.contains(why)), "{why}: {sum:?}");
    }
    // At one member its own count is taken.
    let alone = sums(&[vec![unpublished]]);
    assert_eq!((alone.sent, alone.received, alone.missing), (Some(130), Some(100), Some(30)));
    // A file of `udpd stats --json` has no streams.
    let mut ledger = example();
    ledger.listeners[0].upstream = Some(upstream());
    let without = value(&ledger);
    let sum = &streams::sums(&[&without], "syslog")[0];
    assert_eq!((sum.sent, sum.unknown.len()), (None, 1), "{sum:?}");
    let mut forgetful = ledger;
    forgetful.listeners[0].upstream.as_mut().expect("set").counts.forgotten = 1;
    let forgetful: Value = serde_json::from_str(&text(&forgetful, vec![came(1, 2, 0)])).expect("JSON");
    let sum = &streams::sums(&[&forgetful], "syslog")[0];
    assert!(sum.sent.is_none() && sum.unknown[0].contains("forgotten"), "{sum:?}");
}

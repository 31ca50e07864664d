//! Answers as servers give them, and what each means.

use super::*;
use HttpProfile::{Clickhouse, Elasticsearch, Loki, Ndjson, Otlp, SplunkHec};
use udpd_base::format::json::is_control;

const ALL: [HttpProfile; 6] = [Clickhouse, Otlp, SplunkHec, Elasticsearch, Loki, Ndjson];

fn answer(status: u16, body: &str) -> ServerAnswer<'_> {
    ServerAnswer { status, retry_after: None, exception_code: None, location: None, body: body.as_bytes() }
}

fn judged(profile: HttpProfile, status: u16, body: &str) -> Verdict {
    let verdict = judge(profile, &answer(status, body), 10);
    check_reasons(&verdict);
    verdict
}

fn check_reasons(verdict: &Verdict) {
    let check = |reason: &str| {
        assert!(reason.len() <= REASON_BYTES_MAX && !reason.chars().any(is_control), "{reason:?}");
    };
    match verdict {
        Verdict::Taken { refused } => refused.iter().for_each(|record| check(&record.reason)),
        Verdict::Refused { reason } | Verdict::TooLarge { reason } | Verdict::Later { reason, .. } => check(reason),
        Verdict::Partly { refused, reason, .. } => {
            refused.iter().for_each(|record| check(&record.reason));
            check(reason);
        }
    }
}

/// The reason of a batch that is for later.
fn later(profile: HttpProfile, status: u16, body: &str) -> String {
    match judged(profile, status, body) {
        Verdict::Later { reason, .. } => reason,
        other => panic!("{profile:?} {status} {body}: {other:?}"),
    }
}

/// The reason of a batch that is refused.
fn refused(profile: HttpProfile, status: u16, body: &str) -> String {
    match judged(profile, status, body) {
        Verdict::Refused { reason } => reason,
        other => panic!("{profile:?} {status} {body}: {other:?}"),
    }
}

/// The places of those that are refused of a batch that is taken, and the first reason.
fn refused_of_taken(profile: HttpProfile, status: u16, body: &str) -> (Vec<usize>, String) {
    match judged(profile, status, body) {
        Verdict::Taken { refused } => {
            let reason = refused.first().map(|record| record.reason.clone()).unwrap_or_default();
            (refused.into_iter().map(|record| record.place).collect(), reason)
        }
        other => panic!("{profile:?} {status} {body}: {other:?}"),
    }
}

fn is_taken(profile: HttpProfile, status: u16, body: &str) -> bool {
    judged(profile, status, body) == Verdict::Taken { refused: Vec::new() }
}

#[test]
fn the_answer_that_each_server_gives_when_all_is_well_is_taken() {
    for (profile, status, body) in [
        (Clickhouse, 200, ""),
        (Otlp, 200, "{}"),
        (Otlp, 200, ""),
        (Otlp, 202, "thanks"),
        (Otlp, 200, r#"{"partialSuccess":{}}"#),
        (Otlp, 200, r#"{"partialSuccess":{"rejectedLogRecords":"0","errorMessage":"a warning"}}"#),
        (SplunkHec, 200, r#"{"text":"Success","code":0}"#),
        (SplunkHec, 200, "not JSON"),
        (Elasticsearch, 200, r#"{"took":3,"errors":false,"items":[{"create":{"status":201}}]}"#),
        (Loki, 204, ""),
        (Ndjson, 201, "whatever"),
    ] {
        assert!(is_taken(profile, status, body), "{profile:?} {status} {body}");
    }
}

#[test]
fn by_its_status_an_answer_is_for_later_or_refused_and_names_the_cure() {
    for profile in ALL {
        for status in [400, 415, 422] {
            assert!(refused(profile, status, "").starts_with(&format!("it answered {status}: ")));
        }
        for (status, cure) in [
            (401, "check token_file"),
            (403, "check token_file"),
            (404, "check url"),
            (405, "check url"),
            (407, "proxy"),
            (301, "check url"),
            (408, ""),
            (429, ""),
            (500, ""),
            (502, ""),
            (503, ""),
            (599, ""),
            (409, ""),
            (100, ""),
        ] {
            assert!(later(profile, status, "").contains(cure), "{profile:?} {status}");
        }
        let too_large = judged(profile, 413, "too much");
        assert!(matches!(too_large, Verdict::TooLarge { reason } if reason.ends_with("raise the limit there")));
    }
}

#[test]
fn a_redirect_names_where_it_leads_without_what_may_be_secret_and_a_pause_is_kept() {
    let redirect = ServerAnswer { location: Some("https://me:pass@other/path?token=abc"), ..answer(308, "") };
    assert_eq!(
        judge(Otlp, &redirect, 10),
        Verdict::Later {
            reason: "it answered 308: it redirects to other/path: write that as url".to_owned(),
            after: None
        }
    );
    let after = Some(Duration::from_secs(7));
    for profile in ALL {
        let busy = ServerAnswer { retry_after: after, ..answer(429, "") };
        assert!(matches!(judge(profile, &busy, 10), Verdict::Later { after: told, .. } if told == after));
    }
}

#[test]
fn reasons_are_in_the_words_of_the_server_but_short_printable_and_without_what_it_says_of_a_token() {
    assert_eq!(later(Ndjson, 503, "busy\r\n\x1b[31m\u{202e}now  "), "it answered 503: busy [31m now");
    assert_eq!(later(Otlp, 503, r#"{"code":14,"message":"queue is full"}"#), "it answered 503: queue is full");
    assert_eq!(later(Ndjson, 502, "<html><h1>Bad Gateway"), "it answered 502");
    assert_eq!(later(Ndjson, 500, r#"{"message": "cut o"#), "it answered 500");
    assert!(!later(Ndjson, 401, "token abc is wrong").contains("abc"));
    assert!(!later(Clickhouse, 403, "Code: 516. DB::Exception: abc: (AUTHENTICATION_FAILED)").contains("abc"));
    let long = refused(Ndjson, 400, &"ü".repeat(500));
    assert!(long.len() > REASON_BYTES_MAX - 4 && long.ends_with("ü..."), "{long}");
    let indexless = r#"{"error":{"type":"illegal_argument_exception","reason":"no index"},"status":400}"#;
    assert_eq!(refused(Elasticsearch, 400, indexless), "it answered 400: illegal_argument_exception: no index");
}

/// The verdict on an answer with this code in its header.
fn with_code(status: u16, code: &str, body: &str) -> Verdict {
    let answer = ServerAnswer { exception_code: Some(code), ..answer(status, body) };
    let verdict = judge(Clickhouse, &answer, 10);
    check_reasons(&verdict);
    verdict
}

#[test]
fn an_exception_of_clickhouse_counts_by_its_code_whatever_the_status_is() {
    let text = "Code: 60. DB::Exception: Table default.udpd does not exist. (UNKNOWN_TABLE) (version 25.3 (official))";
    assert_eq!(
        with_code(404, "60", text),
        Verdict::Later {
            reason: "it answered 404: code 60, there is no such table: CREATE TABLE, see docs/http.md".to_owned(),
            after: None
        }
    );
    assert_eq!(with_code(404, "60", ""), judged(Clickhouse, 404, text), "the body has the code as well");
    for (code, _) in CLICKHOUSE_CURES {
        for status in [200, 400, 500] {
            assert!(matches!(with_code(status, &code.to_string(), ""), Verdict::Later { .. }), "{code}");
        }
    }
    for code in CLICKHOUSE_REFUSES {
        for status in [200, 400, 500] {
            assert!(matches!(with_code(status, &code.to_string(), ""), Verdict::Refused { .. }), "{code}");
        }
    }
    for code in ["159", "202", "209", "210", "319", "999", "1002", "7777", "no number"] {
        assert!(matches!(with_code(500, code, ""), Verdict::Later { .. }), "{code}");
    }
    assert_eq!(with_code(500, "389", ""), Verdict::Taken { refused: Vec::new() });
    assert_eq!(
        refused(
            Clickhouse,
            400,
            "Code: 27. DB::Exception: Cannot parse input: (at row 7)\n: (CANNOT_PARSE) (version 25)"
        ),
        "it answered 400: Code: 27. Cannot parse input: (at row 7) : (CANNOT_PARSE)"
    );
    let unknown_field = "Code: 117. DB::Exception: Unknown field found while parsing JSONEachRow format: raw";
    assert!(later(Clickhouse, 400, unknown_field).contains("ALTER TABLE"));
}

#[test]
fn an_exception_behind_a_status_of_200_is_no_success() {
    let late = "0\t1\n__exception__\r\nCode: 241. DB::Exception: Memory limit exceeded (MEMORY_LIMIT_EXCEEDED)";
    assert!(later(Clickhouse, 200, late).contains("its memory is full"));
    assert!(later(Clickhouse, 200, "DB::Exception: something").contains("exception"));
    assert!(refused(Clickhouse, 200, "Code: 53. DB::Exception: Type mismatch").contains("Type mismatch"));
}

#[test]
fn the_last_records_are_counted_as_those_that_otlp_says_it_has_refused() {
    let body =
        |count: &str| format!(r#"{{"partialSuccess":{{"rejectedLogRecords":{count},"errorMessage":"too old"}}}}"#);
    assert_eq!(refused_of_taken(Otlp, 200, &body("\"3\"")), (vec![7, 8, 9], "too old".to_owned()));
    assert_eq!(refused_of_taken(Otlp, 200, &body("1")), (vec![9], "too old".to_owned()));
    assert_eq!(refused_of_taken(Otlp, 200, &body("99999999999")).0.len(), 10);
    let snake = r#"{"partial_success":{"rejected_log_records":2}}"#;
    assert_eq!(refused_of_taken(Otlp, 200, snake), (vec![8, 9], "it gave no reason".to_owned()));
}

#[test]
fn splunk_names_the_event_that_it_cannot_take_and_those_behind_it_are_sent_again_at_once() {
    let body = r#"{"text":"Error in handling indexed fields","code":15,"invalid-event-number":3}"#;
    let reason = "it answered 400: Error in handling indexed fields (code 15)".to_owned();
    let expected = Verdict::Partly {
        refused: vec![RefusedRecord { place: 3, reason: reason.clone() }],
        again: vec![4, 5, 6, 7, 8, 9],
        reason,
        after: Some(Duration::ZERO),
    };
    assert_eq!(judged(SplunkHec, 400, body), expected);
    let busy = r#"{"text":"Server is busy","code":9,"invalid-event-number":8}"#;
    let reason = "it answered 503: Server is busy (code 9)".to_owned();
    let expected = Verdict::Partly { refused: Vec::new(), again: vec![8, 9], reason, after: None };
    assert_eq!(judged(SplunkHec, 503, busy), expected);
    let beyond = r#"{"text":"Invalid data format","code":6,"invalid-event-number":10}"#;
    assert_eq!(refused(SplunkHec, 400, beyond), "it answered 400: Invalid data format");
}

#[test]
fn what_an_operator_of_splunk_can_cure_is_for_later() {
    for (status, code, cure) in [
        (403, 1, "enable"),
        (401, 2, "token_file"),
        (401, 3, "token_file"),
        (403, 4, "token_file"),
        (400, 7, "check index"),
        (400, 10, "acknowledgement"),
        (503, 9, "Server is busy"),
        (200, 9, "Server is busy"),
    ] {
        let body = format!(r#"{{"text":"Server is busy","code":{code}}}"#);
        assert!(later(SplunkHec, status, &body).contains(cure), "{code}");
    }
}

fn items(items: &[&str]) -> String {
    format!(r#"{{"errors":true,"items":[{}]}}"#, items.join(","))
}

const CREATED: &str = r#"{"create":{"status":201}}"#;
const THERE: &str = r#"{"create":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"x"}}}"#;
const FULL: &str = r#"{"create":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"queue"}}}"#;
const WRONG: &str =
    r#"{"create":{"status":400,"error":{"type":"document_parsing_exception","reason":"failed to parse"}}}"#;
const CLOSED: &str = r#"{"create":{"status":403,"error":{"type":"cluster_block_exception","reason":"read-only"}}}"#;

#[test]
fn each_item_of_elasticsearch_has_a_fate_of_its_own() {
    let all = [CREATED, THERE, FULL, WRONG, CREATED, CLOSED, CREATED, CREATED, CREATED, WRONG];
    let wrong = |place| RefusedRecord {
        place,
        reason: "it answered 400: document_parsing_exception: failed to parse".to_owned(),
    };
    assert_eq!(
        judged(Elasticsearch, 200, &items(&all)),
        Verdict::Partly {
            refused: vec![wrong(3), wrong(9)],
            again: vec![2, 5],
            reason: "it answered 429: es_rejected_execution_exception: queue".to_owned(),
            after: None
        }
    );
    let sent_before = [CREATED, THERE, THERE, THERE, THERE, THERE, THERE, THERE, THERE, THERE];
    assert!(is_taken(Elasticsearch, 200, &items(&sent_before)));
    let all_but_one = [CREATED, WRONG, CREATED, CREATED, CREATED, CREATED, CREATED, CREATED, CREATED, CREATED];
    assert_eq!(refused_of_taken(Elasticsearch, 200, &items(&all_but_one)).0, [1]);
    assert!(later(Elasticsearch, 200, &items(&[FULL; 10])).contains("queue"));
}

#[test]
fn records_whose_items_an_answer_does_not_hold_are_sent_again() {
    let whole = items(&[CREATED, CREATED, WRONG, CREATED]);
    let cut = &whole[..whole.find("document_parsing").expect("an error")];
    let Verdict::Partly { refused, again, .. } = judged(Elasticsearch, 200, cut) else { panic!("a part") };
    assert_eq!((refused, again), (Vec::new(), (2..10).collect()));
    let Verdict::Partly { refused, again, .. } = judged(Elasticsearch, 200, &whole) else { panic!("a part") };
    assert_eq!((refused.len(), again), (1, (4..10).collect()));
    assert!(is_taken(Elasticsearch, 200, r#"{"took":30,"errors": false,"items":[{"crea"#), "no item can say otherwise");
    for garbage in ["", "ok", "{}", r#"{"errors":1}"#, "<html>", "{\"err"] {
        assert!(later(Elasticsearch, 200, garbage).contains("check url"), "{garbage}");
    }
    later(Elasticsearch, 200, r#"{"errors":true}"#);
}

#[test]
fn entries_that_are_too_old_for_loki_are_refused_for_good() {
    let entry = "entry with timestamp 2026-11-21 06:42:21 +0000 UTC ignored, reason: 'entry too far behind, entry \
                 timestamp is: 2026-11-21T06:42:21Z, oldest acceptable timestamp is: 2026-11-22T00:00:00Z',\n";
    let body = format!("{entry}user 'fake', total ignored: 3 out of 10 for stream: {{job=\"udpd\"}}");
    let (places, reason) = refused_of_taken(Loki, 400, &body);
    assert_eq!(places, [0, 1, 2]);
    assert!(reason.contains("entry with timestamp"), "{reason}");
    refused(Loki, 400, &body.replace("3 out of 10", "10 out of 10"));
    refused(Loki, 400, &body.replace("3 out of 10", "3 out of 11"));
    let long = "2 errors like: max entry size '10' bytes exceeded for stream '{}'; 3 errors like: entry for stream \
                '{}' has timestamp too old: 2020-01-01T00:00:00Z, oldest; and so on";
    assert_eq!(refused_of_taken(Loki, 400, long).0, [0, 1, 2, 3, 4]);
    refused(Loki, 400, &long.replace("2 errors", "7 errors"));
    refused(Loki, 400, &long.replace("2 errors", "some errors"));
    refused(Loki, 400, &format!("{long}{}", "x".repeat(ANSWER_BYTES_MAX)));
    refused(Loki, 400, "entry for stream '{job=\"udpd\"}' has timestamp too old: 2020-01-01T00:00:00Z");
    assert!(later(Loki, 429, &body).contains("entry with"), "a limit of a rate passes");
    let disallowed = "stream '{}' includes structured metadata, but this feature is disallowed. Please see";
    assert!(later(Loki, 400, disallowed).contains("allow_structured_metadata"));
    assert!(later(Loki, 400, "error parsing labels {a b}").contains("check labels"));
}

//! Lines of syslog as the standards have them, and as senders write them.

use super::*;

/// Hostname, app, procid, msgid and message.
fn fields(line: &str) -> [&str; 5] {
    let line = parse(line).unwrap_or_else(|| panic!("no line: {line}"));
    [line.hostname, line.app, line.procid, line.msgid, Some(line.message)].map(|field| field.unwrap_or("(none)"))
}

fn structured(line: &str) -> Vec<(String, Vec<(String, String)>)> {
    let data = parse(line).and_then(|line| line.structured_data);
    let parameter = |parameter: Parameter<'_>| (parameter.name.to_owned(), parameter.pieces().collect::<String>());
    let elements = data.into_iter().flat_map(StructuredData::elements);
    elements.map(|(id, parameters)| (id.to_owned(), parameters.map(parameter).collect())).collect()
}

const NONE: &str = "(none)";

#[test]
fn the_examples_of_rfc_5424_have_all_their_fields() {
    let line = parse(
        "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \u{feff}'su root' failed on /dev/pts/8",
    )
    .expect("a line");
    assert_eq!((line.facility, line.severity, line.priority()), (4, 2, 34));
    assert_eq!((line.facility_word(), line.severity_word()), ("auth", "crit"));
    assert_eq!(line.time, Some(Duration::new(1_065_910_455, 3_000_000)));
    assert_eq!((line.hostname, line.app, line.procid), (Some("mymachine.example.com"), Some("su"), None));
    assert_eq!((line.msgid, line.message), (Some("ID47"), "'su root' failed on /dev/pts/8"));
    assert_eq!(line.structured_data, None);

    let with_data =
        "<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - [a@1 x=\"1\" y=\"]\"] %% It's time.";
    assert_eq!(fields(with_data), ["192.0.2.1", "myproc", "8710", NONE, "%% It's time."]);
    assert_eq!(parse(with_data).expect("a line").time, Some(Duration::new(1_061_727_255, 3_000)));
    let two = [("x".to_owned(), "1".to_owned()), ("y".to_owned(), "]".to_owned())];
    assert_eq!(structured(with_data), [("a@1".to_owned(), two.to_vec())]);
    assert_eq!(fields("<0>1 - - - - - -"), [NONE, NONE, NONE, NONE, ""]);
    assert_eq!(fields("<0>1 - - - - - [a]"), [NONE, NONE, NONE, NONE, ""]);
}

#[test]
fn lines_as_rfc_3164_and_those_who_bend_it_write_them() {
    for (line, expected) in [
        ("<34>Oct 11 22:14:15 mymachine su: 'su root' failed", ["mymachine", "su", NONE, NONE, "'su root' failed"]),
        ("<13>Oct  1 22:14:15 host cron[812]: (root) CMD\n", ["host", "cron", "812", NONE, "(root) CMD"]),
        ("<13>Oct 1 22:14:15 host app[x] no colon", ["host", "app", "x", NONE, "no colon"]),
        ("<13>Oct 11 22:14:15 su: no host", [NONE, "su", NONE, NONE, "no host"]),
        ("<13>Oct 11 22:14:15 su[7]: no host", [NONE, "su", "7", NONE, "no host"]),
        ("<13>Oct 11 22:14:15 host no tag here", ["host", NONE, NONE, NONE, "no tag here"]),
        ("<13>Oct 11 2026 22:14:15 asa %ASA-6-302013: Built", ["asa", "%ASA-6-302013", NONE, NONE, "Built"]),
        ("<13>Oct 11 22:14:15.123 host a: b", ["host", "a", NONE, NONE, "b"]),
        ("<13>2026-11-21T06:42:21.1+01:00 host a: b", ["host", "a", NONE, NONE, "b"]),
        (
            "<189>45: *Mar  1 18:46:11: %SYS-5-CONFIG_I: x",
            [NONE, NONE, NONE, NONE, "45: *Mar  1 18:46:11: %SYS-5-CONFIG_I: x"],
        ),
        ("<13>just text", [NONE, NONE, NONE, NONE, "just text"]),
        ("<13>", [NONE, NONE, NONE, NONE, ""]),
        ("<13>Oct 11 22:14:15", [NONE, NONE, NONE, NONE, ""]),
    ] {
        assert_eq!(fields(line), expected, "{line}");
    }
    assert_eq!(
        parse("<13>2026-11-21T06:42:21Z host a: b").expect("a line").time,
        Some(Duration::from_secs(1_795_243_341))
    );
    assert_eq!(parse("<13>Oct 11 22:14:15 host a: b").expect("a line").time, None, "it has no year and no zone");
}

#[test]
fn a_line_without_a_priority_is_none_of_syslog() {
    for line in ["", "text", "<", "<>x", "<192>x", "<+1>x", "<1x>x", "<0001>x", " <13>x", "<13 x", "{\"a\":\"<13>\"}"] {
        assert_eq!(parse(line), None, "{line}");
    }
    assert_eq!(parse("<191>x").map(|line| line.facility_word()), Some("local7"));
}

#[test]
fn what_is_wrong_in_a_line_of_rfc_5424_is_part_of_the_message() {
    for (line, message) in [
        ("<13>1 - - - - - [a b=\"c] d", "[a b=\"c] d"),
        ("<13>1 - - - - - [a b=c] d", "[a b=c] d"),
        ("<13>1 - - - - - [a]d", "[a]d"),
        ("<13>1 - - - - - [] d", "[] d"),
        ("<13>1 - - - - - -d", "-d"),
        ("<13>1 - - - - - no data", "no data"),
        ("<13>1 - - - - -", ""),
        ("<13>1 - - -", "1 - - -"),
        ("<13>1 what a time", "1 what a time"),
        ("<13>2 - - - - - -", "2 - - - - - -"),
    ] {
        assert_eq!(parse(line).expect("a line").message, message, "{line}");
        assert_eq!(structured(line), [], "{line}");
    }
    let wrong_time = parse("<13>1 2026-13-99T99:99:99Z host app - - - text").expect("a line");
    assert_eq!((wrong_time.time, wrong_time.hostname, wrong_time.message), (None, Some("host"), "text"));
}

#[test]
fn values_of_structured_data_come_without_what_escapes_them() {
    for (written, value) in [
        ("plain", "plain"),
        ("", ""),
        (r#"\""#, "\""),
        (r"\\", r"\"),
        (r"\]", "]"),
        (r"\\\\", r"\\"),
        (r#"\\\"a\]b\\"#, r#"\"a]b\"#),
        (r"C:\new", r"C:\new"),
        ("[x]", "[x]"),
        ("ü\\]ü", "ü]ü"),
    ] {
        let line = format!("<13>1 - - - - - [id n=\"{written}\"] text");
        let expected = ("id".to_owned(), vec![("n".to_owned(), value.to_owned())]);
        assert_eq!(structured(&line), [expected], "{written}");
        assert_eq!(parse(&line).expect("a line").message, "text");
    }
}

#[test]
fn structured_data_beyond_measure_is_left_to_the_line() {
    let line = |elements: usize, parameters: usize| {
        let element = |nth| format!("[e{nth}{}]", " a=\"b\"".repeat(parameters));
        format!("<13>1 - - - - - {} text", (0..elements).map(element).collect::<String>())
    };
    assert_eq!(structured(&line(16, 4)).len(), 16);
    for too_much in [line(17, 1), line(1, 65), line(16, 5), "<13>1 - - - - - [a][a] text".to_owned()] {
        assert_eq!(structured(&too_much), []);
        assert_eq!(parse(&too_much).expect("a line").message, "text");
    }
}

#[test]
fn times_are_those_of_the_calendar() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("2000-02-29T12:00:00Z", Some(951_825_600)),
        ("2000-03-01T00:00:00Z", Some(951_868_800)),
        ("2100-03-01T00:00:00Z", Some(4_107_542_400)),
        ("2026-11-21T06:42:21Z", Some(1_795_243_341)),
        ("2026-11-21T07:42:21+01:00", Some(1_795_243_341)),
        ("2026-11-20T21:12:21-09:30", Some(1_795_243_341)),
        ("1970-01-01T00:00:00+01:00", None),
        ("1969-12-31T23:59:59Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("2026-11-21T06:42:21", None),
        ("2026-11-21T06:42:21.", None),
        ("2026-11-21T06:42:21.5", None),
        ("2026-11-21 06:42:21Z", None),
        ("2026-00-21T06:42:21Z", None),
        ("2026-11-21T06:42:21+0100", None),
        ("2026-11-21T06:42:21Zü", None),
        ("ü", None),
        ("", None),
    ] {
        assert_eq!(moment(text).map(|moment| moment.as_secs()), seconds, "{text}");
    }
    for (text, nanoseconds) in
        [(".1Z", 100_000_000), (".000000001Z", 1), (".0000000019Z", 1), (".123456789+00:00", 123_456_789)]
    {
        let moment = moment(&format!("2026-11-21T06:42:21{text}")).expect("a moment");
        assert_eq!(moment.subsec_nanos(), nanoseconds, "{text}");
    }
}

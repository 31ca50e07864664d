//! A datagram as a record shows it: its payload as text or as bytes, what was parsed of it, and the pieces of JSON that
//! several profiles have in common.

use crate::http::syslog::{self, Parameter, StructuredData, SyslogLine};
use udpd_base::format::DatagramRecord;
use udpd_base::format::json;
use udpd_base::text::base64;

/// A datagram, looked at once.
pub(super) struct Row<'r> {
    pub(super) record: &'r DatagramRecord<'r>,
    /// The payload, where it is valid UTF-8.
    pub(super) text: Option<&'r str>,
    /// What it says, where it is parsed and a line of syslog.
    pub(super) syslog: Option<SyslogLine<'r>>,
}

impl<'r> Row<'r> {
    pub(super) fn of(record: &'r DatagramRecord<'r>, parses: bool) -> Self {
        let text = std::str::from_utf8(record.payload).ok();
        Self { record, text, syslog: text.filter(|_| parses).and_then(syslog::parse) }
    }

    /// The datagram was longer than what is kept of it.
    pub(super) fn is_truncated(&self) -> bool {
        self.record.length > self.record.payload.len()
    }

    /// The message where one was parsed, else all of the text.
    pub(super) fn message(&self) -> Option<&'r str> {
        self.syslog.map(|line| line.message).or(self.text)
    }

    /// Appends the payload in base64.
    pub(super) fn append_base64(&self, body: &mut Vec<u8>) {
        base64::append(body, self.record.payload);
    }

    /// Appends the payload as text, or in base64 where it is none.
    pub(super) fn append_payload(&self, body: &mut Vec<u8>) {
        match self.text {
            Some(text) => json::append_text(body, text),
            None => self.append_base64(body),
        }
    }
}

/// How the numbers of syslog are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    AsNumbers,
    /// For servers whose fields are all text.
    AsWords,
}

/// Appends the fields of a line, each behind a comma.
pub(super) fn append_fields(body: &mut Vec<u8>, line: &SyslogLine<'_>, numbers: Numbers) {
    match numbers {
        Numbers::AsNumbers => {
            body.extend_from_slice(b",\"severity\":");
            json::append_number(body, line.severity.into());
            body.extend_from_slice(b",\"facility\":");
            json::append_number(body, line.facility.into());
        }
        Numbers::AsWords => {
            append_string(body, b",\"severity\":\"", line.severity_word());
            append_string(body, b",\"facility\":\"", line.facility_word());
        }
    }
    append_known(body, b",\"hostname\":\"", line.hostname);
    append_known(body, b",\"app\":\"", line.app);
    append_known(body, b",\"procid\":\"", line.procid);
    append_known(body, b",\"msgid\":\"", line.msgid);
    if let Some(data) = line.structured_data {
        body.extend_from_slice(b",\"structured_data\":\"");
        append_structured_data(body, data, Quoting::Nested);
        body.push(b'"');
    }
}

/// Appends the source port, whose name is written already, and what else is known, all as words.
pub(super) fn append_words(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8]) {
    json::append_number(body, row.record.source.port().into());
    body.push(b'"');
    body.extend_from_slice(place);
    if row.text.is_none() {
        body.extend_from_slice(b",\"encoding\":\"base64\"");
    }
    if row.is_truncated() {
        body.extend_from_slice(b",\"truncated\":\"true\",\"length\":\"");
        json::append_number(body, row.record.length as u64);
        body.push(b'"');
    }
    if let Some(line) = &row.syslog {
        append_fields(body, line, Numbers::AsWords);
    }
}

/// Appends a field whose name, with the quote in front of its value, is written already.
pub(super) fn append_string(body: &mut Vec<u8>, name: &[u8], value: &str) {
    body.extend_from_slice(name);
    json::append_text(body, value);
    body.push(b'"');
}

/// The same for a field that may be missing.
pub(super) fn append_known(body: &mut Vec<u8>, name: &[u8], value: Option<&str>) {
    if let Some(value) = value {
        append_string(body, name, value);
    }
}

/// Whether JSON is part of a record, or stands in a string of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    Plain,
    Nested,
}

impl Quoting {
    fn append_quote(self, body: &mut Vec<u8>) {
        body.extend_from_slice(if self == Self::Nested { b"\\\"" } else { b"\"" });
    }

    fn append_name(self, body: &mut Vec<u8>, name: &str) {
        self.append_quote(body);
        self.append_text(body, name);
        self.append_quote(body);
        body.push(b':');
    }

    fn append_text(self, body: &mut Vec<u8>, text: &str) {
        match self {
            Self::Plain => json::append_text(body, text),
            Self::Nested => json::append_nested_text(body, text),
        }
    }

    fn append_value(self, body: &mut Vec<u8>, parameter: Parameter<'_>) {
        self.append_quote(body);
        parameter.pieces().for_each(|piece| self.append_text(body, piece));
        self.append_quote(body);
    }
}

/// Appends an object with an object for each element. A parameter that is there several times is an array, because
/// servers refuse an object with one name twice.
pub(super) fn append_structured_data(body: &mut Vec<u8>, data: StructuredData<'_>, quoting: Quoting) {
    body.push(b'{');
    for (nth, (id, parameters)) in data.elements().enumerate() {
        append_comma(body, nth);
        quoting.append_name(body, id);
        let (mut all, mut count) = ([Parameter::default(); syslog::PARAMETERS_MAX], 0);
        for (place, parameter) in all.iter_mut().zip(parameters) {
            *place = parameter;
            count += 1;
        }
        append_object(body, &all[..count], quoting);
    }
    body.push(b'}');
}

fn append_object(body: &mut Vec<u8>, parameters: &[Parameter<'_>], quoting: Quoting) {
    body.push(b'{');
    let mut names = 0;
    for (place, parameter) in parameters.iter().enumerate() {
        let is_same = |other: &&Parameter<'_>| other.name == parameter.name;
        if parameters[..place].iter().any(|before| is_same(&before)) {
            continue;
        }
        append_comma(body, names);
        names += 1;
        quoting.append_name(body, parameter.name);
        let repeats = parameters[place + 1..].iter().any(|later| is_same(&later));
        if !repeats {
            quoting.append_value(body, *parameter);
            continue;
        }
        body.push(b'[');
        for (nth, same) in parameters[place..].iter().filter(is_same).enumerate() {
            append_comma(body, nth);
            quoting.append_value(body, *same);
        }
        body.push(b']');
    }
    body.push(b'}');
}

fn append_comma(body: &mut Vec<u8>, nth: usize) {
    if nth > 0 {
        body.push(b',');
    }
}

//! Fuzz targets: what a server has answered, and payloads on their way into records.

use std::time::Duration;

use super::answer::{self, ServerAnswer};
use super::profile::{self, BodyWriter};
use super::request::{RequestBatch, Verdict};
use super::syslog;
use super::{HttpProfile, HttpSettings, PayloadParse};
use serde_json::Value;
use udpd_base::format::DatagramRecord;
use udpd_base::format::json::is_control;
use udpd_base::settings::TableSettings;

/// The first byte is the profile, the second how many records there were, the next two are the status; the first line
/// of the rest is a header, and what is behind it the body. Each record has one fate, and reasons can be shown.
pub(crate) fn answers(input: &[u8]) {
    let [profile, records, high, low, rest @ ..] = input else { return };
    let (_, profile) = HttpProfile::WORDS[usize::from(*profile) % HttpProfile::WORDS.len()];
    let records = usize::from(*records).max(1);
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    let header = parts.next().and_then(|line| std::str::from_utf8(line).ok()).filter(|line| !line.is_empty());
    let status = u16::from_be_bytes([*high, *low]);
    let body = parts.next().unwrap_or_default();
    let answer = ServerAnswer { status, retry_after: None, exception_code: header, location: header, body };
    let (refused, again, reason) = match answer::judge(profile, &answer, records) {
        Verdict::Taken { refused } => (refused, Vec::new(), None),
        Verdict::Refused { reason } | Verdict::TooLarge { reason } | Verdict::Later { reason, .. } => {
            (Vec::new(), Vec::new(), Some(reason))
        }
        Verdict::Partly { refused, again, reason, .. } => {
            let stands_alone = matches!(profile, HttpProfile::Elasticsearch | HttpProfile::SplunkHec);
            assert!(stands_alone && !again.is_empty(), "{profile:?} cannot send a part again");
            (refused, again, Some(reason))
        }
    };
    let mut fates = vec![0; records];
    refused.iter().map(|record| record.place).chain(again).for_each(|place| fates[place] += 1);
    assert!(fates.iter().all(|&fates| fates <= 1), "{fates:?}");
    for reason in refused.iter().map(|record| &record.reason).chain(&reason) {
        assert!(reason.len() <= crate::peer_trouble::REASON_BYTES_MAX && !reason.chars().any(is_control), "{reason:?}");
    }
}

/// Whatever a payload is, its record is JSON, keeps to its bound, and has the line that was parsed of it.
pub(crate) fn lines(input: &[u8]) {
    let line = std::str::from_utf8(input).ok().and_then(syslog::parse);
    if let Some(line) = &line {
        assert!(line.facility < 24 && line.severity < 8);
        let fields = [line.hostname, line.app, line.procid, line.msgid].into_iter().flatten();
        assert!(fields.map(str::len).sum::<usize>() + line.message.len() <= input.len());
    }
    let address = "192.0.2.7:40000".parse().expect("an address");
    let record = DatagramRecord {
        listener: "syslog",
        lane: 0,
        arrival: Duration::new(1_795_243_341, 7),
        is_time_of_batch: false,
        source: address,
        destination: address,
        payload: input,
        length: input.len(),
    };
    for (_, profile) in HttpProfile::WORDS {
        let settings = HttpSettings { profile, parse: PayloadParse::Syslog, ..HttpSettings::defaults() };
        let (mut writer, mut batch) = (BodyWriter::new(&settings), RequestBatch::new(0));
        writer.begin(&mut batch);
        let begin = batch.body.len();
        writer.append(&mut batch, &record);
        let body_bytes = batch.body.len();
        writer.end(&mut batch);
        let (written, bound) = (batch.body.len() - begin, profile::record_bytes_max(profile, input.len()));
        assert!(batch.ends == [body_bytes] && written <= bound, "{profile:?}: {written} of {bound}");
        let values = serde_json::Deserializer::from_slice(&batch.body).into_iter::<Value>();
        let values: Vec<Value> = values.collect::<Result<_, _>>().expect("JSON");
        assert_eq!(values.len(), if profile == HttpProfile::Elasticsearch { 2 } else { 1 });
        if line.is_some() && profile == HttpProfile::Clickhouse {
            assert_eq!(values[0]["raw"].as_str().map(str::as_bytes), Some(input));
        }
    }
}

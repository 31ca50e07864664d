//! Where a batch is sent: the URL as it is written, with what the profile adds to its path and query.

use crate::http::{HttpProfile, HttpSettings};

/// What Elasticsearch is to leave out of its answers: they are as long as the requests otherwise.
const ANSWER: &str = "errors,items.*.status,items.*.error.type,items.*.error.reason";

/// The URL for a batch. A path beyond `/` stays as it is written, and so does what the query says, but for the token of
/// the batch.
pub(super) fn target(settings: &HttpSettings, token: &str) -> String {
    let text = settings.url.text.split('#').next().unwrap_or_default();
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let scheme = place.find("://").map_or(0, |at| at + "://".len());
    let path = scheme + place[scheme..].find('/').unwrap_or(place.len() - scheme);
    let mut target = match &place[path..] {
        "" | "/" => place[..path].to_owned() + &own_path(settings),
        _ => place.to_owned(),
    };
    let own = own_query(settings, token);
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let written = query.split('&').filter(|pair| !pair.is_empty() && name(pair) != TOKEN).map(str::to_owned);
    let mut pairs: Vec<String> = written.collect();
    for (own_name, value) in own {
        if pairs.iter().all(|pair| name(pair) != own_name) {
            pairs.push(format!("{own_name}={}", encoded(&value)));
        }
    }
    if !pairs.is_empty() {
        target.push('?');
        target.push_str(&pairs.join("&"));
    }
    target
}

/// The name of a batch, for ClickHouse. One that is written into the URL would make all batches the same.
const TOKEN: &str = "insert_deduplication_token";

fn own_path(settings: &HttpSettings) -> String {
    match settings.profile {
        HttpProfile::Otlp => "/v1/logs".to_owned(),
        HttpProfile::SplunkHec => "/services/collector/event".to_owned(),
        HttpProfile::Elasticsearch if settings.index.is_empty() => "/_bulk".to_owned(),
        HttpProfile::Elasticsearch => format!("/{}/_bulk", encoded(&settings.index)),
        HttpProfile::Loki => "/loki/api/v1/push".to_owned(),
        HttpProfile::Clickhouse | HttpProfile::Ndjson => "/".to_owned(),
    }
}

fn own_query(settings: &HttpSettings, token: &str) -> Vec<(&'static str, String)> {
    match settings.profile {
        HttpProfile::Clickhouse => vec![
            ("query", format!("INSERT INTO {} FORMAT JSONEachRow", identifier(&settings.table))),
            ("date_time_input_format", "best_effort".to_owned()),
            // A table without one of the columns would lose it without a word.
            ("input_format_skip_unknown_fields", "0".to_owned()),
            // An answer comes when the rows are in the table, and says what went wrong up to then.
            ("async_insert", "0".to_owned()),
            ("wait_end_of_query", "1".to_owned()),
            ("insert_deduplicate", "1".to_owned()),
            (TOKEN, token.to_owned()),
        ],
        HttpProfile::Elasticsearch => vec![("filter_path", ANSWER.to_owned())],
        HttpProfile::Otlp | HttpProfile::SplunkHec | HttpProfile::Loki | HttpProfile::Ndjson => Vec::new(),
    }
}

/// A table with its database as SQL names it: in quotes where it is no plain word.
fn identifier(table: &str) -> String {
    let quoted = |name: &str| {
        let is_plain = !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_plain { name.to_owned() } else { format!("`{name}`") }
    };
    match table.split_once('.') {
        Some((database, table)) => format!("{}.{}", quoted(database), quoted(table)),
        None => quoted(table),
    }
}

/// As a query may hold it.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse_url;
    use udpd_base::settings::TableSettings;

    fn target_of(url: &str, profile: HttpProfile, change: impl Fn(&mut HttpSettings)) -> String {
        let mut settings = HttpSettings { url: parse_url(url).expect("a URL"), profile, ..HttpSettings::defaults() };
        change(&mut settings);
        target(&settings, "00000000000000ab-10-5")
    }

    #[test]
    fn a_url_without_a_path_gets_that_of_its_profile_and_another_stays_as_it_is_written() {
        use HttpProfile::{Elasticsearch, Loki, Ndjson, Otlp, SplunkHec};
        for (profile, path) in
            [(Otlp, "/v1/logs"), (SplunkHec, "/services/collector/event"), (Loki, "/loki/api/v1/push"), (Ndjson, "/")]
        {
            for written in ["http://[::1]:80", "http://[::1]:80/"] {
                assert_eq!(target_of(written, profile, |_| ()), format!("http://[::1]:80{path}"));
            }
            assert_eq!(target_of("http://h/own?a=b", profile, |_| ()), "http://h/own?a=b");
        }
        let answer = "filter_path=errors%2Citems.%2A.status%2Citems.%2A.error.type%2Citems.%2A.error.reason";
        assert_eq!(target_of("https://h", Elasticsearch, |_| ()), format!("https://h/_bulk?{answer}"));
        let with_index = |settings: &mut HttpSettings| settings.index = "logs/udpd".to_owned();
        assert_eq!(
            target_of("https://h?a=b", Elasticsearch, with_index),
            format!("https://h/logs%2Fudpd/_bulk?a=b&{answer}")
        );
    }

    #[test]
    fn clickhouse_gets_its_statement_and_the_id_of_the_batch_beside_what_is_written() {
        let own = "date_time_input_format=best_effort&input_format_skip_unknown_fields=0&async_insert=0\
                   &wait_end_of_query=1&insert_deduplicate=1\
                   &insert_deduplication_token=00000000000000ab-10-5";
        assert_eq!(
            target_of("http://h:8123", HttpProfile::Clickhouse, |_| ()),
            format!("http://h:8123/?query=INSERT%20INTO%20udpd%20FORMAT%20JSONEachRow&{own}")
        );
        let table = |settings: &mut HttpSettings| settings.table = "logs.of-hosts".to_owned();
        assert_eq!(
            target_of(
                "http://h:8123/?database=a&async_insert=1&insert_deduplication_token=mine",
                HttpProfile::Clickhouse,
                table
            ),
            format!(
                "http://h:8123/?database=a&async_insert=1&\
                 query=INSERT%20INTO%20logs.%60of-hosts%60%20FORMAT%20JSONEachRow\
                 &{}",
                own.replace("async_insert=0&", "")
            )
        );
    }
}

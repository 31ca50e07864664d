//! The fields of a line of syslog, RFC 3164 and 5424.
//!
//! Senders keep neither to the letter, so everything behind the priority may be missing, and what cannot be told apart
//! is the message. Fields are parts of the line; nothing is copied.

use std::time::Duration;

/// A line that begins with a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SyslogLine<'l> {
    pub(super) facility: u8,
    pub(super) severity: u8,
    /// When the sender says it happened, since 1970. A time without year and zone, as RFC 3164 has it, is none.
    pub(super) time: Option<Duration>,
    pub(super) hostname: Option<&'l str>,
    pub(super) app: Option<&'l str>,
    pub(super) procid: Option<&'l str>,
    pub(super) msgid: Option<&'l str>,
    pub(super) structured_data: Option<StructuredData<'l>>,
    pub(super) message: &'l str,
}

/// The severities, as syslog names them.
const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// The facilities, as syslog names them.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl SyslogLine<'_> {
    pub(super) fn severity_word(&self) -> &'static str {
        SEVERITIES[usize::from(self.severity & 7)]
    }

    pub(super) fn facility_word(&self) -> &'static str {
        FACILITIES.get(usize::from(self.facility)).copied().unwrap_or("unknown")
    }

    pub(super) fn priority(&self) -> u8 {
        self.facility * 8 + self.severity
    }
}

/// Reads a line; `None` where it has no priority.
pub(super) fn parse(line: &str) -> Option<SyslogLine<'_>> {
    let (priority, rest) = line.strip_prefix('<')?.split_once('>')?;
    let is_number = (1..=3).contains(&priority.len()) && priority.bytes().all(|byte| byte.is_ascii_digit());
    let priority: u8 = priority.parse().ok().filter(|priority| is_number && *priority < 192)?;
    let line = SyslogLine { facility: priority / 8, severity: priority % 8, ..SyslogLine::default() };
    let rest = rest.trim_end_matches(['\n', '\r', '\0']);
    Some(parse_5424(line, rest).unwrap_or_else(|| parse_3164(line, rest)))
}

/// The part before the first space, and what comes behind that space.
fn word(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ').filter(|(word, _)| !word.is_empty())
}

/// What is written as a hyphen is not there.
fn known(field: &str) -> Option<&str> {
    (field != "-").then_some(field)
}

fn parse_5424<'l>(line: SyslogLine<'l>, text: &'l str) -> Option<SyslogLine<'l>> {
    let (time, rest) = word(text.strip_prefix("1 ")?)?;
    if time != "-" && !time.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (hostname, rest) = word(rest)?;
    let (app, rest) = word(rest)?;
    let (procid, rest) = word(rest)?;
    let (msgid, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (structured_data, message) = split_structured_data(rest);
    Some(SyslogLine {
        time: moment(time),
        hostname: known(hostname),
        app: known(app),
        procid: known(procid),
        msgid: known(msgid).filter(|msgid| !msgid.is_empty()),
        structured_data,
        message: message.strip_prefix('\u{feff}').unwrap_or(message),
        ..line
    })
}

fn parse_3164<'l>(line: SyslogLine<'l>, text: &'l str) -> SyslogLine<'l> {
    let Some((time, rest)) = strip_time(text) else { return SyslogLine { message: text, ..line } };
    // A word that ends as a tag does stands where the name of the host should be: the sender has left that out.
    let is_tag = |word: &str| word.ends_with(':') || word.ends_with(']');
    let (hostname, rest) = match word(rest) {
        Some((hostname, rest)) if !is_tag(hostname) => (known(hostname), rest),
        _ => (None, rest),
    };
    let (app, procid, message) = split_tag(rest);
    SyslogLine { time, hostname, app, procid, message, ..line }
}

/// Takes the time off the front: `Nov 21 06:42:21`, with a year or a fraction as some write it, or as RFC 5424 has it.
fn strip_time(text: &str) -> Option<(Option<Duration>, &str)> {
    if let Some((time, rest)) = word(text)
        && let Some(time) = moment(time)
    {
        return Some((Some(time), rest));
    }
    let (month, rest) = word(text)?;
    let (day, rest) = word(rest.trim_start_matches(' '))?;
    let (mut clock, mut rest) = rest.split_once(' ').unwrap_or((rest, ""));
    if clock.len() == 4 && clock.bytes().all(|byte| byte.is_ascii_digit()) {
        (clock, rest) = word(rest)?;
    }
    let is_day = day.len() <= 2 && day.bytes().all(|byte| byte.is_ascii_digit());
    let is_clock = matches!(clock.as_bytes(), [_, _, b':', _, _, b':', _, _, ..])
        && clock.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
    (MONTHS.contains(&month) && is_day && is_clock).then_some((None, rest))
}

/// Takes `app[procid]: ` or `app: ` off the front.
fn split_tag(text: &str) -> (Option<&str>, Option<&str>, &str) {
    let all = (None, None, text);
    let Some(end) = text.find([' ', ':', '[']).filter(|&end| end > 0) else { return all };
    let (app, rest) = text.split_at(end);
    let (procid, rest) = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((procid, rest))) if !procid.is_empty() && !procid.contains(' ') => (Some(procid), rest),
        Some(_) => return all,
        None => (None, rest),
    };
    let message = match rest.strip_prefix(':') {
        Some(message) => message,
        None if procid.is_some() => rest,
        None => return all,
    };
    (Some(app), procid, message.strip_prefix(' ').unwrap_or(message))
}

/// A moment as RFC 5424 writes it, since 1970: `2026-11-21T06:42:21.000000001+01:00`.
fn moment(text: &str) -> Option<Duration> {
    let number = |place: std::ops::Range<usize>, most: u64| -> Option<u64> {
        let digits = text.get(place).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse().ok().filter(|number| *number <= most)
    };
    let bytes = text.as_bytes();
    let is_separated = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')]
        .iter()
        .all(|&(at, mark)| bytes.get(at) == Some(&mark));
    if !is_separated {
        return None;
    }
    let (year, month, day) = (number(0..4, 9999)?, number(5..7, 12)?, number(8..10, 31)?);
    let clock = number(11..13, 23)? * 3600 + number(14..16, 59)? * 60 + number(17..19, 60)?;
    let rest = text.get(19..)?;
    let fraction = rest.strip_prefix('.').unwrap_or_default();
    let fraction = &fraction[..fraction.bytes().take_while(u8::is_ascii_digit).count()];
    let zone = &rest[if fraction.is_empty() { 0 } else { 1 + fraction.len() }..];
    let nanoseconds = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = nanoseconds.fold(0, |sum: u32, digit| sum * 10 + u32::from(digit - b'0'));
    let begin = text.len() - zone.len();
    let ahead = match zone.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let seconds = number(begin + 1..begin + 3, 23)? * 3600 + number(begin + 4..begin + 6, 59)? * 60;
            i64::try_from(seconds).ok()? * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    if month == 0 || day == 0 {
        return None;
    }
    let seconds =
        i64::try_from(days_before(year, month)? + day - 1).ok()? * 86_400 + i64::try_from(clock).ok()? - ahead;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
}

/// The days from the beginning of 1970 to the beginning of a month.
fn days_before(year: u64, month: u64) -> Option<u64> {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(year - u64::from(year > 0));
    let years = year.checked_sub(1970)?;
    let month = usize::try_from(month - 1).ok()?;
    Some(years * 365 + leaps(year - 1) - leaps(1969) + BEFORE.get(month)? + u64::from(is_leap && month > 1))
}

/// Elements of structured data, as they stand in the line: `[id name="value" ...]`, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StructuredData<'l>(&'l str);

/// What structured data may hold, so that no line takes long. Beyond, and where an element is there twice, the line
/// alone has it.
const ELEMENTS_MAX: usize = 16;
pub(super) const PARAMETERS_MAX: usize = 64;

/// The structured data at the front, and the message behind it.
fn split_structured_data(text: &str) -> (Option<StructuredData<'_>>, &str) {
    let after_space = |rest: &'_ str| rest.is_empty() || rest.starts_with(' ');
    if let Some(message) = text.strip_prefix('-').filter(|rest| after_space(rest)) {
        return (None, message.strip_prefix(' ').unwrap_or(message));
    }
    let mut rest = text;
    while rest.starts_with('[') {
        let Some(behind) = split_element(rest).map(|(_, _, behind)| behind) else { return (None, text) };
        rest = behind;
    }
    let data = &text[..text.len() - rest.len()];
    if data.is_empty() || !after_space(rest) {
        return (None, text);
    }
    let data = Some(StructuredData(data)).filter(StructuredData::is_moderate);
    (data, rest.strip_prefix(' ').unwrap_or(rest))
}

/// The id of the element at the front, its parameters, and what is behind the element.
fn split_element(text: &str) -> Option<(&str, &str, &str)> {
    let inner = text.strip_prefix('[')?;
    let id = &inner[..inner.find([' ', ']', '"', '='])?];
    let parameters = &inner[id.len()..];
    let mut rest = parameters;
    while let Some((_, behind)) = split_parameter(rest) {
        rest = behind;
    }
    let behind = rest.strip_prefix(']').filter(|_| !id.is_empty())?;
    Some((id, &parameters[..parameters.len() - rest.len()], behind))
}

/// The parameter at the front, and what is behind it.
fn split_parameter(text: &str) -> Option<(Parameter<'_>, &str)> {
    let text = text.strip_prefix(' ')?;
    let (name, value) = text.split_once("=\"")?;
    if name.is_empty() || name.contains([' ', ']', '"', '=']) {
        return None;
    }
    let mut is_escaped = false;
    let end = value.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some((Parameter { name, value: &value[..end] }, &value[end + 1..]))
}

/// A parameter of an element; its value is escaped as in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parameter<'l> {
    pub(super) name: &'l str,
    value: &'l str,
}

impl<'l> Parameter<'l> {
    /// The value in pieces, without the backslashes that escape.
    pub(super) fn pieces(self) -> impl Iterator<Item = &'l str> {
        let mut rest = self.value;
        // A character that was escaped begins a piece, and is not taken for one that escapes.
        let mut literal = 0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let escapes = |&(at, _): &(usize, &str)| rest[at + 1..].starts_with(['"', '\\', ']']);
            let escape = rest[literal..].match_indices('\\').map(|(at, text)| (literal + at, text)).find(escapes);
            let (piece, behind) = escape.map_or((rest, ""), |(at, _)| (&rest[..at], &rest[at + 1..]));
            (rest, literal) = (behind, 1);
            Some(piece)
        })
    }
}

impl<'l> StructuredData<'l> {
    /// Each element: its id and its parameters.
    pub(super) fn elements(self) -> impl Iterator<Item = (&'l str, Parameters<'l>)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (id, parameters, behind) = split_element(rest)?;
            rest = behind;
            Some((id, Parameters(parameters)))
        })
    }

    fn is_moderate(&self) -> bool {
        let (mut parameters, mut count, mut ids) = (0, 0, [""; ELEMENTS_MAX]);
        for (id, inside) in self.elements() {
            parameters += inside.take(PARAMETERS_MAX + 1).count();
            if count == ELEMENTS_MAX || parameters > PARAMETERS_MAX || ids[..count].contains(&id) {
                return false;
            }
            ids[count] = id;
            count += 1;
        }
        true
    }
}

/// The parameters of an element, in their order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameters<'l>(&'l str);

impl<'l> Iterator for Parameters<'l> {
    type Item = Parameter<'l>;

    fn next(&mut self) -> Option<Parameter<'l>> {
        let (parameter, behind) = split_parameter(self.0)?;
        self.0 = behind;
        Some(parameter)
    }
}

#[cfg(test)]
#[path = "syslog_tests.rs"]
mod tests;

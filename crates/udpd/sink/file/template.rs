//! Paths with names to be filled in: `/var/log/udpd/{listener}-{consumer}.log`.
//!
//! Four placeholders, six codes for the time and no escapes. A brace that is not a placeholder is refused rather than
//! taken literally, because a file called `{lane].log` is never what was meant. The codes for the time are left in
//! place: the sink fills them in whenever it begins a file.

use crate::text::advice::Advice;
use crate::text::suggest::nearest;

/// What stands for each placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'n> {
    /// `{listener}`
    pub listener: &'n str,
    /// `{lane}`, as the ledger numbers the lanes of that listener
    pub lane: usize,
    /// `{consumer}`, from 0
    pub consumer: usize,
    /// `{sink}`
    pub sink: &'n str,
}

/// The codes for the time that a path may hold: year, month, day, hour, minute, second.
const TIME_CODES: [&str; 6] = ["%Y", "%m", "%d", "%H", "%M", "%S"];

const PLACEHOLDERS: [&str; 4] = ["listener", "lane", "consumer", "sink"];

/// True when `template` holds `{placeholder}`.
pub fn has(template: &str, placeholder: &str) -> bool {
    template.contains(&format!("{{{placeholder}}}"))
}

/// The path for one writer. The template must have passed [`check`].
pub fn expand(template: &str, names: &Names<'_>) -> String {
    template
        .replace("{lane}", &names.lane.to_string())
        .replace("{consumer}", &names.consumer.to_string())
        // Names hold no braces, so what is filled in cannot become a placeholder.
        .replace("{listener}", names.listener)
        .replace("{sink}", names.sink)
}

/// Refuses what is neither a placeholder nor a code for the time.
pub fn check(template: &str) -> Result<(), Advice> {
    let right = "the placeholders are {listener}, {lane}, {consumer} and {sink}";
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}', '%']) {
        let tail = &rest[at..];
        match (tail.as_bytes()[0], tail.find('}')) {
            (b'%', _) => {
                let code: String = tail.chars().take(2).collect();
                if !TIME_CODES.contains(&code.as_str()) {
                    let cure = format!("the codes for the time are {}", TIME_CODES.join(", "));
                    return Err(Advice::new(format!("{code:?} is not a code for the time"), cure));
                }
                rest = &tail[2..];
            }
            (b'}', _) => return Err(Advice::new("a } closes nothing", right)),
            (_, None) => return Err(Advice::new("a { is never closed", right)),
            (_, Some(end)) => {
                let name = &tail[1..end];
                if !PLACEHOLDERS.contains(&name) {
                    let cure = match nearest(name, PLACEHOLDERS.into_iter()) {
                        Some(near) => format!("did you mean {{{near}}}? {right}"),
                        None => right.to_owned(),
                    };
                    return Err(Advice::new(format!("{{{name}}} is not a placeholder"), cure));
                }
                rest = &tail[end + 1..];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_in() {
        let names = Names { listener: "syslog", lane: 3, consumer: 1, sink: "archive" };
        let template = "/log/{listener}/{lane}-{consumer}.{sink}";
        assert_eq!(check(template), Ok(()));
        assert_eq!(expand(template, &names), "/log/syslog/3-1.archive");
    }

    #[test]
    fn what_is_no_placeholder_is_refused_with_the_ones_there_are() {
        for (template, words) in [
            ("/{lanes}", "did you mean {lane}?"),
            ("/{", "never closed"),
            ("/}", "closes nothing"),
            ("/{}", "{} is not a placeholder"),
            ("/{listener}/{Colour}", "{Colour} is not a placeholder"),
        ] {
            let advice = check(template).expect_err(template).to_string();
            assert!(advice.contains(words), "{template}: {advice}");
            assert!(advice.contains("{consumer}"), "{template}: {advice}");
        }
    }

    #[test]
    fn the_time_is_left_to_the_sink_and_other_codes_are_refused() {
        let names = Names { listener: "a", lane: 0, consumer: 0, sink: "s" };
        let template = "/log/%Y/%m/%d/{listener}-%H%M%S.log";
        assert_eq!(check(template), Ok(()));
        assert_eq!(expand(template, &names), "/log/%Y/%m/%d/a-%H%M%S.log");
        for template in ["/%y", "/%", "/100%.log", "/%%"] {
            let advice = check(template).expect_err(template).to_string();
            assert!(advice.contains("%Y, %m, %d, %H, %M, %S"), "{template}: {advice}");
        }
    }
}

//! What the four commands of the bench have in common on the command line: how a value is read, and a report printed.

use std::time::Duration;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;

/// Nobody measures for longer, and sums of nanoseconds stay far from their limit.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn usage(option: &str, advice: &ValueAdvice) -> Failure {
    Failure::new(ExitCode::Usage, format!("{option}: {advice}"))
}

/// A duration from `"10"`, `"0.5"` or with a unit, as `"500ms"`.
pub(crate) fn seconds(option: &str, text: &str) -> Result<Duration, Failure> {
    let plain = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let read = plain.map_or_else(|| units::parse_duration(text), Ok);
    read.and_then(|duration| match duration.is_zero() || duration > DURATION_MAX {
        true => Err(ValueAdvice::new(format!("{text:?} is not a time to run"), "write seconds, such as 10 or 0.5")),
        false => Ok(duration),
    })
    .map_err(|advice| usage(option, &advice))
}

/// A report as it is printed with `--json`.
pub(crate) fn printed_json(whole: &serde_json::Value) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(whole)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write the report as JSON: {error}")))?;
    Ok(text + "\n")
}

/// A share from `"0.5%"` or `"0.5"`, in percent.
pub(crate) fn percent(option: &str, text: &str) -> Result<f64, Failure> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| {
        usage(
            option,
            &ValueAdvice::new(format!("{text:?} is not a share from 0% to 100%"), "write percent, such as 0.5%"),
        )
    })
}

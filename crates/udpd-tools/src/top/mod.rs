//! `udpd top`: the ledger of the running daemon, live, as the way of a datagram from left to right.
//!
//! It asks what `udpd stats --json` asks, once an interval, and nothing else: to the daemon both are the same. `model`
//! makes rates from readings, `view` knows what the operator wants to see, `draw` makes the picture, and none of the
//! three knows a terminal; `live` and `screen` do. Where standard output is no terminal, or one that cannot place text,
//! the same picture comes as plain text.

mod draw;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod live;
mod model;
mod plain;
mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

pub use live::Ask;

use udpd_base::exit::Failure;
use udpd_base::text::units;

#[derive(Debug, clap::Args)]
pub struct TopArguments {
    /// Ask the daemon this often
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one report of one interval as plain text, and end
    #[arg(long)]
    once: bool,
}

/// The shortest interval: a daemon of a thousand listeners has something to do for each answer.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let text = if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}s") } else { text.to_owned() };
    let interval = units::parse_duration(&text).map_err(|advice| advice.to_string())?;
    let range = INTERVAL_MIN..=Duration::from_secs(3600);
    range.contains(&interval).then_some(interval).ok_or_else(|| "write 100ms to 1h".to_owned())
}

/// Shows the daemon until the operator quits.
pub fn execute(arguments: &TopArguments, ask: Ask) -> Result<(), Failure> {
    let TopArguments { interval, once } = *arguments;
    let environment = |name: &str| std::env::var(name).unwrap_or_default();
    if once {
        return plain::once(ask, interval, &mut io::stdout().lock());
    }
    // A terminal that cannot place text is as good as a pipe.
    if !io::stdout().is_terminal() || ["", "dumb"].contains(&environment("TERM").as_str()) {
        return plain::follow(ask, interval, &mut io::stdout().lock());
    }
    // https://no-color.org: any value but none.
    live::run(ask, interval, environment("NO_COLOR").is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_duration_or_a_number_of_seconds() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for refused in ["0", "99ms", "2h", "-1", "1.5", ""] {
            assert!(interval(refused).is_err(), "{refused}");
        }
    }
}

//! What the clocks of this place show: the rules of `TZ` or of /etc/localtime, read once, when the process starts.
//!
//! Later the sandbox would not let it read them, and files of one run are named by one set of rules. The rules tell of
//! every moment how far local time is ahead of UTC, and when that changes next.

use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs, io};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::units::CalendarTime;

/// Where the rules of all places are, by name.
const ALL_ZONES: &str = "/usr/share/zoneinfo";

/// Where those of this host are.
const OF_HOST: &str = "/etc/localtime";

/// Rules; none is UTC.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Zone(Option<TimeZone>);

/// Which time names and lines have, as `time` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShownTime {
    #[default]
    Utc,
    Local,
    /// Rules of a test, as `TZ` can hold them.
    #[cfg(any(test, feature = "testing"))]
    Of(&'static str),
}

impl ShownTime {
    /// As they are written.
    pub const WORDS: [(&'static str, Self); 2] = [("utc", Self::Utc), ("local", Self::Local)];

    /// UTC too where the local rules cannot be read, which a check of the configuration has refused.
    pub fn zone(self) -> Zone {
        match self {
            Self::Utc => Zone::default(),
            Self::Local => local().clone().unwrap_or_default(),
            #[cfg(any(test, feature = "testing"))]
            Self::Of(rules) => Zone::named(rules).expect("a test has right rules"),
        }
    }
}

/// The rules of this process, or why there are none. The first call reads them.
pub fn local() -> &'static Result<Zone, String> {
    static LOCAL: OnceLock<Result<Zone, String>> = OnceLock::new();
    LOCAL.get_or_init(|| match env::var_os("TZ") {
        Some(name) => match name.to_str() {
            Some(name) => Zone::named(name),
            None => Err(format!("TZ={name:?} names no place")),
        },
        None => match Zone::of_file(Path::new(OF_HOST)) {
            // A host without rules shows UTC.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Zone::default()),
            outcome => outcome.map_err(|error| format!("{OF_HOST} holds no rules for local time: {error}")),
        },
    })
}

impl Zone {
    /// What `TZ` holds: nothing, a file, the name of a place, or rules themselves.
    fn named(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix(':').unwrap_or(text);
        if name.is_empty() {
            return Ok(Self::default());
        }
        // A path that climbs out is joined too: who sets TZ may name any file by its absolute path.
        match Self::of_file(&Path::new(ALL_ZONES).join(name)) {
            Ok(zone) => Ok(zone),
            Err(error) => TimeZone::posix(name).map(|zone| Self(Some(zone))).map_err(|_| {
                format!("TZ={text:?} names no place under {ALL_ZONES} ({error}), and is no rule such as \"CET-1CEST\"")
            }),
        }
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        /// The longest there is has 4 KiB.
        const BYTES_MAX: u64 = 1 << 20;
        let found = fs::metadata(path)?;
        if !found.is_file() || found.len() > BYTES_MAX {
            return Err(io::Error::other("it is no file of such rules"));
        }
        let zone = TimeZone::tzif("", &fs::read(path)?).map_err(io::Error::other)?;
        Ok(Self(Some(zone)))
    }

    pub fn is_utc(&self) -> bool {
        self.0.is_none()
    }

    /// By how many seconds local time is ahead of UTC at this second since 1970.
    pub fn offset(&self, seconds: u64) -> i32 {
        let at = |zone: &TimeZone| zone.to_offset(timestamp(seconds)).seconds();
        self.0.as_ref().map_or(0, at)
    }

    /// The next second from which that is another.
    pub fn next_change(&self, seconds: u64) -> Option<u64> {
        let next = self.0.as_ref()?.following(timestamp(seconds)).find(|change| {
            let then = change.timestamp().as_second();
            change.offset().seconds() != self.offset(u64::try_from(then - 1).unwrap_or(0))
        });
        u64::try_from(next?.timestamp().as_second()).ok()
    }

    /// What a clock there shows, as seconds since it showed the beginning of 1970.
    pub fn shown(&self, seconds: u64) -> u64 {
        seconds.saturating_add_signed(self.offset(seconds).into())
    }

    /// The date and the time that it shows.
    pub fn calendar(&self, seconds: u64) -> CalendarTime {
        CalendarTime::at(self.shown(seconds))
    }
}

/// The last moment that there is, for later ones.
fn timestamp(seconds: u64) -> Timestamp {
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-10-25 01:00:00, when Berlin's clocks go back from 3 to 2.
    const BACK: u64 = 1_792_890_000;

    #[test]
    fn rules_say_of_each_moment_what_clocks_show_and_when_that_changes() {
        let berlin = Zone::named("CET-1CEST,M3.5.0,M10.5.0/3").expect("rules");
        assert_eq!((berlin.offset(BACK - 1), berlin.offset(BACK)), (7200, 3600));
        assert_eq!(berlin.next_change(BACK - 1), Some(BACK));
        assert_eq!(berlin.next_change(BACK - 86_400), Some(BACK));
        let shown = berlin.calendar(BACK);
        assert_eq!((shown.day, shown.hour, shown.minute), (25, 2, 0));
        let forward = berlin.next_change(BACK).expect("in spring");
        assert_eq!((berlin.calendar(forward - 1).hour, berlin.calendar(forward).hour), (1, 3));
        // A change of half an hour, one over midnight, an offset with seconds, and none at all.
        for (rules, before, change) in [
            ("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", 37_800, 1800),
            ("<-04>4<-03>,M9.1.6/24,M4.1.6/24", -14_400, 3600),
            ("XXX-0:19:32YYY-1:19:32,M4.1.0,M10.1.0", 1172, 3600),
        ] {
            let zone = Zone::named(rules).expect(rules);
            let changes: Vec<u64> =
                std::iter::successors(zone.next_change(BACK), |at| zone.next_change(*at)).take(4).collect();
            for at in &changes {
                let (old, new) = (zone.offset(at - 1), zone.offset(*at));
                assert!([old, new] == [before, before + change] || [new, old] == [before, before + change], "{rules}");
            }
            assert!(changes.windows(2).all(|pair| pair[0] < pair[1]), "{rules}");
        }
        let fixed = Zone::named("<+0545>-5:45").expect("rules");
        assert_eq!((fixed.offset(BACK), fixed.next_change(BACK)), (20_700, None));
        assert_eq!(fixed.shown(u64::MAX), u64::MAX, "the last moment there is");
    }

    #[test]
    fn what_names_no_rules_is_refused_and_an_empty_name_is_utc() {
        for name in ["", ":"] {
            assert_eq!(Zone::named(name), Ok(Zone::default()));
        }
        for name in ["Europe/Nowhere", "../../../etc/passwd", "/etc/passwd", "/usr/share", "CET-99", "\u{0}"] {
            let why = Zone::named(name).expect_err(name);
            assert!(why.contains("names no place"), "{why}");
        }
        assert_eq!(ShownTime::Utc.zone().next_change(0), None);
    }

    #[test]
    fn any_bytes_are_rules_or_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("zone");
        let mut bytes = b"TZif2".to_vec();
        bytes.resize(200, 0);
        for length in 0..bytes.len() {
            bytes[length] = u8::try_from(length * 37 % 256).expect("a byte");
            fs::write(&path, &bytes[..length]).expect("written");
            if let Ok(zone) = Zone::of_file(&path) {
                zone.next_change(BACK);
            }
        }
    }
}

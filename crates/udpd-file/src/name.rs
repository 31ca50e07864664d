//! The name of a file at a moment, when that name ends, and the names of finished files.
//!
//! A path with codes for the time gives each period a file of its own. A file whose path stays the same is renamed when
//! it is finished: the moment of that is appended, and a number if that name is taken. Names come from the
//! configuration and the clock alone, never from a datagram.
//!
//! Times are UTC or local time. Where clocks go back, local time shows an hour twice: what both would name is one file,
//! and the moment that is appended says how far local time is ahead, so it names one moment. Where that changes a name
//! may end too, so a file is looked at then.
//!
//! The clock may be wrong, and may be set. It only gives names; a name does not tell which of two files is older, see
//! `finished_files`.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::compress::is_temporary_of;
use udpd_base::codec::Method;
use udpd_base::os::local_time::Zone;
use udpd_base::text::units::CalendarTime;

/// Each code, its number of digits, how often it changes, in seconds, and its range. Months and years change at
/// midnight too.
const CODES: [(char, usize, u64, RangeInclusive<u64>); 6] = [
    ('Y', 4, DAY, 1970..=9999),
    ('m', 2, DAY, 1..=12),
    ('d', 2, DAY, 1..=31),
    ('H', 2, 3600, 0..=23),
    ('M', 2, 60, 0..=59),
    ('S', 2, 1, 0..=59),
];

const DAY: u64 = 86_400;

/// How many names are tried for a file that is finished.
const NUMBERS_MAX: u32 = 10_000;

/// A path with codes for the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileName {
    pattern: String,
    every_seconds: u64,
    zone: Zone,
}

impl FileName {
    /// A new file also begins at the multiples of `every`, unless that is zero.
    pub(super) fn new(pattern: String, every: Duration) -> Self {
        // Without doubled slashes and dots, so that every name below a directory is spelled in one way.
        let pattern = Path::new(&pattern).components().collect::<PathBuf>().to_string_lossy().into_owned();
        Self { pattern, every_seconds: every.as_secs(), zone: Zone::default() }
    }

    /// The same by the clocks of a place.
    pub(super) fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// The path at a moment, in seconds since 1970.
    pub(super) fn at(&self, seconds: u64) -> PathBuf {
        let CalendarTime { year, month, day, hour, minute, second } = self.zone.calendar(seconds);
        let mut path = String::with_capacity(self.pattern.len() + 8);
        let mut characters = self.pattern.chars();
        while let Some(character) = characters.next() {
            match (character, if character == '%' { characters.next() } else { None }) {
                ('%', Some('Y')) => path += &format!("{year:04}"),
                ('%', Some('m')) => path += &format!("{month:02}"),
                ('%', Some('d')) => path += &format!("{day:02}"),
                ('%', Some('H')) => path += &format!("{hour:02}"),
                ('%', Some('M')) => path += &format!("{minute:02}"),
                ('%', Some('S')) => path += &format!("{second:02}"),
                // The configuration has refused every other code.
                (character, next) => path.extend([Some(character), next].into_iter().flatten()),
            }
        }
        PathBuf::from(path)
    }

    /// The next moment at which the name or the period of a file that was begun at `seconds` may end. `None`: never.
    pub(super) fn ends(&self, seconds: u64) -> Option<u64> {
        let used = CODES.iter().filter(|(code, ..)| self.pattern.contains(&format!("%{code}")));
        let used = used.map(|(_, _, unit, _)| *unit);
        let units = used.chain((self.every_seconds > 0).then_some(self.every_seconds));
        let shown = self.zone.shown(seconds);
        let end = units.map(|unit| seconds + unit - shown % unit).min()?;
        Some(self.zone.next_change(seconds).map_or(end, |change| change.min(end)))
    }

    /// Whether a file that was begun at `begun` is finished by its age alone.
    pub(super) fn is_over(&self, begun: u64, now: u64) -> bool {
        let period = |seconds| self.zone.shown(seconds) / self.every_seconds;
        self.every_seconds > 0 && period(begun) != period(now)
    }

    /// Whether the path changes with the time.
    pub(super) fn is_dated(&self) -> bool {
        self.pattern.contains('%')
    }

    /// The deepest directory without codes, and the rest of the path.
    pub(super) fn below_fixed(&self) -> (PathBuf, &str) {
        let before_code = &self.pattern[..self.pattern.find('%').unwrap_or(self.pattern.len())];
        let slash = before_code.rfind('/').map_or(0, |slash| slash + 1);
        (PathBuf::from(&self.pattern[..slash]), self.pattern[slash..].trim_start_matches('/'))
    }

    /// Whether a file with this path below [`FileName::below_fixed`] can be one that was finished here: a valid moment
    /// stands for every code, or was appended.
    pub(super) fn is_finished(&self, below: &str) -> bool {
        match matches(self.below_fixed().1, below) {
            // A file whose path has codes is finished as it is; one without must have been renamed.
            Some("") => self.is_dated(),
            Some(behind) => is_suffix(behind),
            None => false,
        }
    }

    /// The path of a finished file while it was written, if its name tells.
    pub(super) fn before_finishing(&self, path: &Path) -> Option<PathBuf> {
        let (directory, pattern) = self.below_fixed();
        let below = path.strip_prefix(&directory).ok()?.to_str()?;
        let behind = matches(pattern, below)?;
        Some(directory.join(&below[..below.len() - behind.len()]))
    }

    /// The files that can have been finished here, at any moment.
    pub(super) fn finished(&self) -> Vec<PathBuf> {
        self.collect(&|_, name| Some(name.to_owned()))
    }

    /// The same for files that have a temporary file of a compressed form.
    pub(super) fn begun_to_be_compressed(&self) -> Vec<PathBuf> {
        self.collect(&|directory, name| Some(format!("{directory}{}", is_temporary_of(name.strip_prefix(directory)?)?)))
    }

    /// The files that can have been finished here, as `of` finds them by a directory and a name below the fixed one.
    fn collect(&self, of: &dyn Fn(&str, &str) -> Option<String>) -> Vec<PathBuf> {
        let (directory, below) = self.below_fixed();
        let mut found = Vec::new();
        self.collect_below(&directory, String::new(), below.split('/').count(), of, &mut found);
        found
    }

    fn collect_below(
        &self,
        directory: &Path,
        above: String,
        levels: usize,
        of: &dyn Fn(&str, &str) -> Option<String>,
        found: &mut Vec<PathBuf>,
    ) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            let below = format!("{above}{}", entry.file_name().to_string_lossy());
            if levels > 1 && kind.is_dir() {
                let pattern: Vec<&str> = self.below_fixed().1.split('/').collect();
                let own = pattern[..=pattern.len() - levels].join("/");
                if matches(&own, &below) == Some("") {
                    self.collect_below(&entry.path(), below + "/", levels - 1, of, found);
                }
            } else if levels == 1 && kind.is_file() {
                let file = of(&above, &below).filter(|file| self.is_finished(file));
                found.extend(file.map(|file| self.below_fixed().0.join(file)));
            }
        }
    }

    pub(super) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The directories above `path` with codes in their names, the deepest first.
    pub(super) fn dated_directories<'p>(&self, path: &'p Path) -> impl Iterator<Item = &'p Path> {
        let fixed = self.below_fixed().0.components().count();
        path.ancestors().skip(1).take_while(move |directory| directory.components().count() > fixed)
    }
}

/// The names that a file at `path` can get when it is finished at a moment, except those that compressed files have.
pub(super) fn finished_names(path: &Path, seconds: u64, zone: &Zone) -> impl Iterator<Item = PathBuf> + use<> {
    let is_free = |name: &PathBuf| Method::ALL.iter().all(|method| method.path_of(name).symlink_metadata().is_err());
    moment_names(path, seconds, zone).filter(is_free)
}

fn moment_names(path: &Path, seconds: u64, zone: &Zone) -> impl Iterator<Item = PathBuf> + use<> {
    let CalendarTime { year, month, day, hour, minute, second } = zone.calendar(seconds);
    let (offset, sign) = (zone.offset(seconds), if zone.offset(seconds) < 0 { '-' } else { '+' });
    let ahead = match zone.is_utc() {
        true => "Z".to_owned(),
        false => format!("{sign}{:02}{:02}", offset.unsigned_abs() / 3600, offset.unsigned_abs() / 60 % 60),
    };
    let first = format!(".{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}{ahead}");
    let path = path.as_os_str().to_owned();
    (0..NUMBERS_MAX).map(move |number| {
        let mut name = path.clone();
        name.push(&first);
        if number > 0 {
            name.push(format!("-{number}"));
        }
        PathBuf::from(name)
    })
}

/// Whether this can follow the path of a finished file: the moment if it was renamed, the suffix of a compressed form,
/// or that of a file that was set aside.
pub(super) fn is_behind_finished(text: &str) -> bool {
    let ends = Method::ALL.iter().map(|method| method.suffix()).chain([".failed", ".torn"]);
    let plain = ends.filter_map(|end| text.strip_suffix(end)).next().unwrap_or(text);
    plain.is_empty() || is_suffix(plain)
}

fn is_suffix(text: &str) -> bool {
    let Some(behind) = matches(".%Y%m%dT%H%M%S", text) else { return false };
    let ahead = ["+", "-"].iter().find_map(|sign| matches("%H%M", behind.strip_prefix(sign)?));
    let Some(behind) = behind.strip_prefix('Z').or(ahead) else { return false };
    let number = behind.strip_prefix('-');
    behind.is_empty()
        || number.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The rest of `text` after a match of `pattern`, whose codes stand for numbers in their range.
pub(super) fn matches<'t>(pattern: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text;
    let mut pattern = pattern.chars();
    while let Some(character) = pattern.next() {
        let code = if character == '%' { pattern.next() } else { None };
        rest = match CODES.iter().find(|(own, ..)| Some(*own) == code) {
            Some((_, digits, _, range)) => {
                let (head, tail) = rest.split_at_checked(*digits)?;
                let is_number = head.bytes().all(|byte| byte.is_ascii_digit());
                head.parse().is_ok_and(|number| is_number && range.contains(&number)).then_some(tail)?
            }
            None => rest.strip_prefix(character)?,
        };
    }
    Some(rest)
}

/// The names that a file at `path` can get when its sync has failed.
pub(super) fn failed_names(path: &Path, seconds: u64, zone: &Zone) -> impl Iterator<Item = PathBuf> + use<> {
    moment_names(path, seconds, zone).map(|mut name| {
        name.as_mut_os_string().push(".failed");
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21 06:42:21
    const NOW: u64 = 1_795_243_341;

    fn name(pattern: &str, every_seconds: u64) -> FileName {
        FileName::new(pattern.to_owned(), Duration::from_secs(every_seconds))
    }

    #[test]
    fn codes_stand_for_the_time_in_utc() {
        let path = name("/log/%Y/%m/%d/a-%H%M%S.log", 0).at(NOW);
        assert_eq!(path, PathBuf::from("/log/2026/11/21/a-064221.log"));
        assert_eq!(name("/log/a.log", 0).at(NOW), PathBuf::from("/log/a.log"));
    }

    /// The zone with the rules of Berlin, and the moment when its clocks go back from 3 to 2, 2026-10-25T01:00:00Z.
    fn berlin() -> (Zone, u64) {
        (udpd_base::os::local_time::ShownTime::Of("CET-1CEST,M3.5.0,M10.5.0/3").zone(), 1_792_890_000)
    }

    #[test]
    fn by_local_time_a_day_has_23_or_25_hours_each_in_one_file_and_no_name_ends_at_another_time() {
        let (zone, back) = berlin();
        let forward = zone.next_change(back).expect("in spring");
        for (change, hours) in [(back, 25), (forward, 23)] {
            let days = name("/%Y-%m-%d", 0).in_zone(zone.clone());
            let noon = change + 9 * 3600;
            // A file begins at each moment in which the name of the one before ends, and changes.
            let mut at = noon - 2 * DAY;
            let mut begun: Vec<(u64, PathBuf)> = vec![(at, days.at(at))];
            while at < noon + 2 * DAY {
                let end = days.ends(at).expect("a day ends");
                assert!(end > at && (at..end).step_by(60).all(|moment| days.at(moment) == days.at(at)));
                at = end;
                if begun.last().is_none_or(|(_, before)| *before != days.at(at)) {
                    begun.push((at, days.at(at)));
                }
            }
            let long: Vec<u64> = begun.windows(2).map(|pair| (pair[1].0 - pair[0].0) / 3600).collect();
            assert!(long.contains(&hours) && long[1..].iter().all(|one| [24, hours].contains(one)), "{long:?}");
            let mut names: Vec<&PathBuf> = begun.iter().map(|(_, path)| path).collect();
            names.dedup();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), begun.len(), "no name twice");
        }
    }

    #[test]
    fn the_hour_that_clocks_show_twice_is_one_period_and_what_is_finished_in_it_has_two_names() {
        let (zone, back) = berlin();
        let hours = name("/%H.log", 3600).in_zone(zone.clone());
        assert_eq!((hours.at(back - 1), hours.at(back)), (PathBuf::from("/02.log"), PathBuf::from("/02.log")));
        assert!(!hours.is_over(back - 1, back) && hours.is_over(back - 1, back + 3600));
        assert_eq!(hours.ends(back - 1), Some(back), "it is looked at when clocks go back");
        let finished = |at| finished_names(Path::new("/a"), at, &zone).next().expect("a name");
        assert_eq!(finished(back - 1800), PathBuf::from("/a.20261025T023000+0200"));
        assert_eq!(finished(back + 1800), PathBuf::from("/a.20261025T023000+0100"));
        for at in [back - 1800, back + 1800] {
            let finished = finished(at);
            assert!(name("/a", 0).is_finished(&finished.to_string_lossy()[1..]), "{finished:?}");
        }
        assert!(
            !is_suffix(".20261025T023000+2500")
                && !is_suffix(".20261025T023000")
                && !is_suffix(".20261025T023000+0100Z")
        );
    }

    #[test]
    fn a_file_ends_with_the_smallest_unit_of_its_name_or_its_period() {
        for (pattern, every, expected) in [
            ("/a", 0, None),
            ("/a", 3600, Some(NOW / 3600 * 3600 + 3600)),
            ("/%Y-%m-%d", 0, Some(NOW / DAY * DAY + DAY)),
            ("/%H", 900, Some(NOW / 900 * 900 + 900)),
            ("/%H%M%S", 3600, Some(NOW + 1)),
        ] {
            assert_eq!(name(pattern, every).ends(NOW), expected, "{pattern} every {every} s");
        }
        assert!(name("/a", 60).is_over(59, 60) && !name("/a", 60).is_over(60, 119));
    }

    #[test]
    fn only_files_that_can_have_been_finished_here_are_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |file: &str| directory.path().join(file);
        let make = |file: &str| {
            fs::create_dir_all(path(file).parent().expect("a parent")).expect("made");
            fs::write(path(file), file).expect("written");
        };
        let found = |pattern: &str| -> Vec<String> {
            let pattern = path(pattern).to_str().expect("UTF-8").to_owned();
            let files = name(&pattern, 0).finished();
            let relative = |file: &PathBuf| file.strip_prefix(directory.path()).expect("below").display().to_string();
            let mut files: Vec<String> = files.iter().map(relative).collect();
            files.sort();
            files
        };
        let plain = ["a.log.20261121T064221Z", "a.log.20261121T064221Z-1"];
        plain.iter().for_each(|file| make(file));
        for stranger in [
            "a.log",
            "a.log.gz",
            "a.log.20261121T064221Z.gz",
            "a.log.20261121T064221Z-",
            "a.log.20261321T064221Z",
            "a.log.20261121T064221Z-2/a.log",
            "b.log.20261121T064221Z",
        ] {
            make(stranger);
        }
        assert_eq!(found("a.log"), plain);
        let dated = ["2026/20/x.log", "2026/21/x.log", "2026/21/x.log.20261121T064221Z"];
        dated.iter().for_each(|file| make(file));
        ["2026/21/y.log", "26/21/x.log", "2026/32/x.log", "2026/x.log", "1969/01/x.log"]
            .iter()
            .for_each(|file| make(file));
        assert_eq!(found("%Y/%d/x.log"), dated);
        ["07.log", "77.log", "7.log"].iter().for_each(|file| make(file));
        assert_eq!(found("%H.log"), ["07.log"]);
        let pattern = path("%Y/%d/x.log").to_str().expect("UTF-8").to_owned();
        let above: Vec<PathBuf> =
            name(&pattern, 0).dated_directories(&path("2026/20/x.log")).map(Path::to_owned).collect();
        assert_eq!(above, [path("2026/20"), path("2026")]);
    }

    #[test]
    fn a_finished_file_is_named_after_the_moment_and_never_like_another() {
        let names: Vec<PathBuf> = finished_names(Path::new("/log/a.log"), NOW, &Zone::default()).take(3).collect();
        let expected = ["", "-1", "-2"].map(|number| PathBuf::from(format!("/log/a.log.20261121T064221Z{number}")));
        assert_eq!(names, expected);
        let name = name("/log/%H.log", 0);
        for path in ["/log/07.log", "/log/07.log.20261121T064221Z-1"] {
            assert_eq!(name.before_finishing(Path::new(path)), Some(PathBuf::from("/log/07.log")), "{path}");
        }
    }

    #[test]
    fn the_name_of_a_file_that_is_compressed_is_given_to_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.log");
        let first = |path| finished_names(path, NOW, &Zone::default()).next().expect("a name");
        let name = first(&path);
        fs::write(Method::Zstd.path_of(&name), "").expect("written");
        assert_eq!(first(&path), directory.path().join("a.log.20261121T064221Z-1"));
    }
}

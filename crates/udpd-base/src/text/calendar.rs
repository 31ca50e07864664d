//! Dates, in UTC: the only time that files and log lines of several hosts can be compared by.

/// A second, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarTime {
    /// From 1970 on.
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    /// 0 to 59; leap seconds are not counted.
    pub second: u64,
}

impl CalendarTime {
    /// The moment so many seconds after 1970 began.
    pub fn at(seconds: u64) -> Self {
        let (year, month, day) = date(seconds / 86_400);
        Self { year, month, day, hour: seconds / 3600 % 24, minute: seconds / 60 % 60, second: seconds % 60 }
    }
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Years are taken to begin in March, so that the leap day is the last of its year and the lengths of the months
/// before it never change: five months from March, or from August, always have 153 days.
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    const DAYS_FROM_MARCH_OF_YEAR_0: u64 = 719_468;
    let days = days_since_epoch + DAYS_FROM_MARCH_OF_YEAR_0;
    let (era, day_of_era) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    // Take the leap days that have passed out of the count, so that what is left divides by 365.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_a_thousand_years_follows_the_one_before() {
        let mut before = date(0);
        for day in 1..365_243 {
            let (year, month, day_of_month) = date(day);
            let next_day = (before.0, before.1, before.2 + 1);
            let first_of_month = before.2 >= 28 && day_of_month == 1;
            let next_month = first_of_month && (year, month) == (before.0, before.1 + 1);
            let next_year = before.1 == 12 && before.2 == 31 && (year, month, day_of_month) == (before.0 + 1, 1, 1);
            assert!(
                (year, month, day_of_month) == next_day || next_month || next_year,
                "{before:?} and then day {day}"
            );
            before = (year, month, day_of_month);
        }
        assert_eq!(before, (2969, 12, 31));
    }

    #[test]
    fn a_moment_is_taken_apart() {
        let moment = CalendarTime { year: 2026, month: 1, day: 2, hour: 3, minute: 4, second: 5 };
        assert_eq!(CalendarTime::at(1_767_323_045), moment);
    }
}

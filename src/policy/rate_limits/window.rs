//! Windows of quotas: minutes, hours, days and months of UTC.

/// How long a quota counts before it begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaWindow {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A month of the calendar.
    Month,
}

const DAY: u64 = 86_400;

impl QuotaWindow {
    /// Start and end of the window that this moment is in, in seconds since the Unix epoch.
    pub(super) fn around(self, unix_seconds: u64) -> (u64, u64) {
        let of_length = |length: u64| {
            let start = unix_seconds - unix_seconds % length;
            (start, start + length)
        };
        match self {
            Self::Minute => of_length(60),
            Self::Hour => of_length(3600),
            Self::Day => of_length(DAY),
            Self::Month => {
                let (year, month) = year_and_month(unix_seconds / DAY);
                let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
                (days_before(year, month) * DAY, days_before(next.0, next.1) * DAY)
            }
        }
    }

    /// The unit as it is written after the number of a quota.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Minute => "m",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Month => "month",
        }
    }
}

/// Days from 1970 to the first of this month.
fn days_before(year: u64, month: u64) -> u64 {
    (1970..year).map(|year| (1..=12).map(|month| days_in(year, month)).sum::<u64>()).sum::<u64>()
        + (1..month).map(|month| days_in(year, month)).sum::<u64>()
}

fn year_and_month(mut days: u64) -> (u64, u64) {
    let (mut year, mut month) = (1970, 1);
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    }
    (year, month)
}

fn days_in(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_where_utc_says() {
        // 2024-02-29 13:45:07, a leap day.
        let moment = 1_709_214_307;
        for (window, start, end) in [
            (QuotaWindow::Minute, 1_709_214_300, 1_709_214_360),
            (QuotaWindow::Hour, 1_709_211_600, 1_709_215_200),
            (QuotaWindow::Day, 1_709_164_800, 1_709_251_200),
            (QuotaWindow::Month, 1_706_745_600, 1_709_251_200),
        ] {
            assert_eq!(window.around(moment), (start, end), "{window:?}");
            assert_eq!(window.around(start), (start, end), "{window:?} at its start");
            assert_eq!(window.around(end - 1), (start, end), "{window:?} at its end");
            assert_eq!(window.around(end).0, end, "{window:?} after it");
        }
        // 2026-12-31 23:59:59 and the second after it.
        assert_eq!(QuotaWindow::Month.around(1_798_761_599), (1_796_083_200, 1_798_761_600));
        assert_eq!(QuotaWindow::Month.around(1_798_761_600).0, 1_798_761_600);
        assert_eq!(QuotaWindow::Month.around(0), (0, 31 * DAY));
    }
}

//! Durations and quantities as Kubernetes writes them: `1h30m`, `10Mi`.

use std::time::Duration;

/// A duration such as `90s`, `20m`, `1h30m` or `1.5h`: pairs of a number and one of h, m, s, ms. A number has at most
/// five digits before its point, so that no sum can overflow here or in CEL.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos: u128 = 0;
    if rest.is_empty() || rest.len() > super::rules::MAX_UNIT {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = decimal(rest, 5, 9)?;
        let (unit, after) = split_at(after, |c| !c.is_ascii_alphabetic());
        let unit: u128 = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            _ => return None,
        };
        nanos += number.times(unit);
        rest = after;
    }
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

/// A [`Duration`] in a file that people write, as [`duration`] reads it. For `#[serde(with = ...)]`.
pub mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no duration such as `90s` or `1h30m`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::duration(&text)
            .ok_or_else(|| serde::de::Error::custom("write a duration such as 90s, 20m or 1h30m"))
    }
}

/// A number of bytes in a file that people write, as [`quantity`] reads it. For `#[serde(with = ...)]`.
pub mod quantity_text {
    use serde::{Deserialize as _, Deserializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no number of bytes such as `500Mi`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::quantity(&text).ok_or_else(|| {
            serde::de::Error::custom("write a number of bytes such as 500Mi or 10Gi")
        })
    }
}

/// A number of bytes such as `1500`, `500k`, `10Mi` or `1.5Gi`, rounded down; `None` for anything else and for less
/// than one byte.
pub(super) fn quantity(text: &str) -> Option<u64> {
    let (number, suffix) = decimal(text, 15, 3)?;
    u64::try_from(number.times(unit(suffix)?))
        .ok()
        .filter(|bytes| *bytes > 0)
}

/// What a suffix stands for.
pub(super) fn unit(suffix: &str) -> Option<u128> {
    Some(match suffix {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    })
}

/// A decimal number: digits, and how many of them stand behind the point.
pub(super) struct Decimal {
    pub(super) digits: u128,
    pub(super) scale: u32,
}

impl Decimal {
    pub(super) fn times(&self, unit: u128) -> u128 {
        self.digits * unit / 10_u128.pow(self.scale)
    }
}

/// The number at the start of the text, with at most so many digits before and behind its point.
pub(super) fn decimal(
    text: &str,
    most_before: usize,
    most_behind: usize,
) -> Option<(Decimal, &str)> {
    let (before, rest) = split_at(text, |c| !c.is_ascii_digit());
    let (behind, rest) = match rest.strip_prefix('.') {
        Some(rest) => Some(split_at(rest, |c| !c.is_ascii_digit()))
            .filter(|(behind, _)| !behind.is_empty())?,
        None => ("", rest),
    };
    if before.is_empty() || before.len() > most_before || behind.len() > most_behind {
        return None;
    }
    let digits = format!("{before}{behind}").parse().ok()?;
    let scale = u32::try_from(behind.len()).ok()?;
    Some((Decimal { digits, scale }, rest))
}

fn split_at(text: &str, end: fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::minutes("20m", Some(1_200_000))]
    #[case::both("1h30m", Some(5_400_000))]
    #[case::fraction("1.5h", Some(5_400_000))]
    #[case::millis("1500ms", Some(1500))]
    #[case::day("1d", None)] // A02
    #[case::no_unit("20", None)]
    #[case::no_number("m", None)]
    #[case::space("20 m", None)]
    #[case::sign("-5m", None)]
    #[case::point_alone("1.h", None)]
    #[case::huge("999999h", None)]
    #[case::empty("", None)]
    fn a_duration_is_written_as_kubernetes_does(#[case] text: &str, #[case] millis: Option<u64>) {
        assert_eq!(duration(text), millis.map(Duration::from_millis));
    }

    #[rstest]
    #[case::plain("1500", Some(1500))]
    #[case::decimal_suffix("500k", Some(500_000))]
    #[case::binary_suffix("10Mi", Some(10_485_760))]
    #[case::fraction("1.5Gi", Some(1_610_612_736))]
    #[case::zero("0", None)]
    #[case::less_than_one("0.1", None)]
    #[case::milli("5m", None)]
    #[case::lower_case("10mi", None)]
    #[case::sign("-1", None)]
    #[case::too_large("999999999999999Ti", None)]
    fn a_quantity_is_written_as_kubernetes_does(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(quantity(text), bytes);
    }
}

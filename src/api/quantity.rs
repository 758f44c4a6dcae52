//! An amount of a resource, as Kubernetes writes it.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::units::{decimal, unit};

/// An amount of a resource above 0, such as `500m`, `2` or `4Gi`. Compared by what it amounts to, shown as it was
/// written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity {
    text: String,
    millis: u128,
}

/// The text is no [`Quantity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an amount above 0, such as 500m, 2 or 4Gi")]
pub struct QuantityError;

impl Quantity {
    /// Whole gibibytes; 0 counts as 1.
    #[must_use]
    pub fn gibibytes(number: u32) -> Self {
        let number = number.max(1);
        Self {
            text: format!("{number}Gi"),
            millis: (u128::from(number) << 30) * 1000,
        }
    }

    /// The sum, in the largest unit that shows it in whole numbers.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let millis = self.millis.saturating_add(other.millis);
        let unit = |bytes: u128, suffix: &str| {
            let unit = bytes * 1000;
            millis
                .is_multiple_of(unit)
                .then(|| format!("{}{suffix}", millis / unit))
        };
        let text = unit(1 << 30, "Gi")
            .or_else(|| unit(1 << 20, "Mi"))
            .or_else(|| unit(1, ""))
            .unwrap_or_else(|| format!("{millis}m"));
        Self { text, millis }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, suffix) = decimal(text, 15, 3).ok_or(QuantityError)?;
        let millis = match suffix {
            "m" if number.scale == 0 => number.digits,
            suffix => number.times(unit(suffix).ok_or(QuantityError)? * 1000),
        };
        if millis == 0 || text.len() > super::rules::MAX_UNIT {
            return Err(QuantityError);
        }
        Ok(Self {
            text: text.to_owned(),
            millis,
        })
    }
}

impl TryFrom<String> for Quantity {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, QuantityError> {
        text.parse()
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.text
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.millis == other.millis
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.millis.cmp(&other.millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("2", Some(2000))]
    #[case::milli("500m", Some(500))]
    #[case::half("0.5", Some(500))]
    #[case::binary("4Gi", Some((4 << 30) * 1000))]
    #[case::nothing("0", None)]
    #[case::nothing_of_a_unit("0.0Gi", None)]
    #[case::half_a_milli("0.5m", None)]
    #[case::sign("-1", None)]
    #[case::exponent("1e3", None)]
    #[case::space("1 Gi", None)]
    #[case::empty("", None)]
    fn an_amount_is_written_as_kubernetes_does(#[case] text: &str, #[case] millis: Option<u128>) {
        let parsed: Option<Quantity> = text.parse().ok();
        assert_eq!(parsed.map(|quantity| quantity.millis), millis);
    }

    #[test]
    fn amounts_are_compared_by_what_they_are() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("1024Mi"), quantity("1Gi"));
        assert_eq!(quantity("10Gi"), Quantity::gibibytes(10));
        assert!(quantity("1G") < quantity("1Gi"));
        assert_eq!(quantity("1024Mi").to_string(), "1024Mi");
        let sum = |one: &str, other: &str| quantity(one).plus(&quantity(other)).to_string();
        assert_eq!(sum("1Gi", "1024Mi"), "2Gi");
        assert_eq!(sum("1Gi", "64Mi"), "1088Mi");
        assert_eq!(sum("500m", "0.5"), "1");
        assert_eq!(sum("500m", "2"), "2500m");
    }
}

//! Canonical JSON (RFC 8785) and SHA-256 over it: one text for one value, so that hashes can be compared.
//!
//! Used for a run's identity and for every event of the record. Pure.

use std::cmp::Ordering;
use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest as hash};
use serde_json::{Number, Value};

/// The canonical text of a value: no white space, members sorted by UTF-16 code units, numbers as ECMAScript
/// writes them. Like RFC 8785, it knows numbers as doubles: an integer beyond 2^53 loses its last digits.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

/// SHA-256 over [`canonical_json`], in lower-case hex.
#[must_use]
pub fn digest(value: &Value) -> String {
    sha256_hex(canonical_json(value).as_bytes())
}

/// SHA-256 of bytes, in lower-case hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(hash(&SHA256, bytes).as_ref())
}

/// Bytes in lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|(a, _), (b, _)| by_utf16(a, b));
            out.push('{');
            for (i, (name, member)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_text(out, name);
                out.push(':');
                write_value(out, member);
            }
            out.push('}');
        }
    }
}

fn by_utf16(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The largest integer that a double holds exactly together with its neighbours: 2^53 - 1.
const MAX_SAFE: u64 = (1 << 53) - 1;

fn write_number(out: &mut String, number: &Number) {
    match (number.as_i64(), number.as_u64()) {
        (Some(n), _) if n.unsigned_abs() <= MAX_SAFE => {
            let _ = write!(out, "{n}");
        }
        (None, Some(n)) if n <= MAX_SAFE => {
            let _ = write!(out, "{n}");
        }
        _ => write_double(out, number.as_f64().unwrap_or(0.0)),
    }
}

/// `Number::toString` of ECMAScript: the shortest digits that lead back to the same double, placed by its rules.
fn write_double(out: &mut String, double: f64) {
    if double == 0.0 {
        out.push('0'); // also -0
        return;
    }
    if double < 0.0 {
        out.push('-');
    }
    let scientific = format!("{:e}", double.abs()); // d.ddde-7
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    // `point`: how many digits stand before the decimal point.
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    let (whole, rest) = digits.split_at(usize::try_from(point.clamp(0, count)).unwrap_or(0));
    if count <= point && point <= 21 {
        let _ = write!(out, "{digits}{}", zeros(point - count));
    } else if 0 < point && point <= 21 {
        let _ = write!(out, "{whole}.{rest}");
    } else if -6 < point && point <= 0 {
        let _ = write!(out, "0.{}{digits}", zeros(-point));
    } else {
        let (first, more) = digits.split_at(1);
        let dot = if more.is_empty() { "" } else { "." };
        let sign = if point > 0 { "+" } else { "-" };
        let _ = write!(out, "{first}{dot}{more}e{sign}{}", (point - 1).abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    // The number samples of RFC 8785, appendix B.
    #[rstest]
    #[case(0x0000_0000_0000_0000, "0")]
    #[case(0x8000_0000_0000_0000, "0")]
    #[case(0x0000_0000_0000_0001, "5e-324")]
    #[case(0x8000_0000_0000_0001, "-5e-324")]
    #[case(0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308")]
    #[case(0x4340_0000_0000_0000, "9007199254740992")]
    #[case(0xc340_0000_0000_0000, "-9007199254740992")]
    #[case(0x4430_0000_0000_0000, "295147905179352830000")]
    #[case(0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22")]
    #[case(0x44b5_2d02_c7e1_4af6, "1e+23")]
    #[case(0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23")]
    #[case(0x444b_1ae4_d6e2_ef4e, "999999999999999700000")]
    #[case(0x444b_1ae4_d6e2_ef4f, "999999999999999900000")]
    #[case(0x444b_1ae4_d6e2_ef50, "1e+21")]
    #[case(0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7")]
    #[case(0x3eb0_c6f7_a0b5_ed8d, "0.000001")]
    #[case(0x41b3_de43_5555_5553, "333333333.3333332")]
    #[case(0x41b3_de43_5555_5554, "333333333.33333325")]
    #[case(0xbecb_f647_612f_3696, "-0.0000033333333333333333")]
    fn numbers_are_written_as_ecmascript_does(#[case] bits: u64, #[case] want: &str) {
        assert_eq!(canonical_json(&json!(f64::from_bits(bits))), want);
    }

    #[test]
    fn members_are_sorted_by_utf16_and_only_controls_are_escaped() {
        // RFC 8785, 3.2.3: U+1F600 is a surrogate pair and sorts before U+FB33.
        let value = json!({
            "\u{20ac}": "Euro", "\r": "CR", "\u{fb33}": "Dalet", "1": "One",
            "\u{1f600}": "Smiley", "\u{80}": "Control", "\u{f6}": "o",
            "z": {"b": [1, -2, 1.5, true, null], "a": "\u{0}\u{1f}\u{7f}\"\\/\n"},
        });
        assert_eq!(
            canonical_json(&value),
            "{\"\\r\":\"CR\",\"1\":\"One\",\
             \"z\":{\"a\":\"\\u0000\\u001f\u{7f}\\\"\\\\/\\n\",\"b\":[1,-2,1.5,true,null]},\
             \"\u{80}\":\"Control\",\"\u{f6}\":\"o\",\"\u{20ac}\":\"Euro\",\
             \"\u{1f600}\":\"Smiley\",\"\u{fb33}\":\"Dalet\"}"
        );
    }

    #[test]
    fn a09_the_digest_of_a_value_never_changes() {
        let spec = json!({
            "agent": {"image": "busybox", "command": ["true"]},
            "inputs": [{"name": "app", "repository": "https://git.example.com/a/b.git", "depth": 0}],
        });
        assert_eq!(
            digest(&spec),
            sha256_hex(
                br#"{"agent":{"command":["true"],"image":"busybox"},"inputs":[{"depth":0,"name":"app","repository":"https://git.example.com/a/b.git"}]}"#
            )
        );
        assert_eq!(
            digest(&spec),
            "f4523176b24118717eb64883cf1f8ece7938f77955143c6b9efa612a6e889282"
        );
    }

    proptest! {
        #[test]
        fn canonical_text_reads_back_as_the_same_value(double in any::<f64>(), text in any::<String>(), n in any::<i32>()) {
            prop_assume!(double.is_finite());
            let value = json!({ text.clone(): [double, n, text] });
            let read: Value = serde_json::from_str(&canonical_json(&value)).unwrap();
            prop_assert_eq!(canonical_json(&read), canonical_json(&value));
        }
    }
}

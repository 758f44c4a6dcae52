//! Base64 of the standard alphabet with padding, which HTTP Basic asks for.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut padded = [0_u8; 3];
        padded
            .iter_mut()
            .zip(chunk)
            .for_each(|(to, from)| *to = *from);
        let bits = padded
            .iter()
            .fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte));
        for place in 0..4_u32 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            let used = place as usize <= chunk.len();
            let letter = ALPHABET
                .get(digit as usize)
                .filter(|_| used)
                .unwrap_or(&b'=');
            text.push(char::from(*letter));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode;
    use rstest::rstest;

    #[rstest]
    #[case::empty("", "")]
    #[case::one("f", "Zg==")]
    #[case::two("fo", "Zm8=")]
    #[case::three("foo", "Zm9v")]
    #[case::plus_and_slash("\u{3ff}\u{3fe}?>", "z7/Pvj8+")]
    fn c04_the_alphabet_is_the_standard_one(#[case] text: &str, #[case] want: &str) {
        assert_eq!(encode(text.as_bytes()), want);
    }
}

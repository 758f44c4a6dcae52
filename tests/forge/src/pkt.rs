//! The pkt-line framing of git's protocols, as far as faults need it.

/// One frame: a payload, or one of the markers flush (0), delimiter (1) and response end (2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Data(&'a [u8]),
    Marker(u8),
}

/// Splits bytes into frames, up to the first that is broken or cut.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut out = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(4) {
        let Some(length) = std::str::from_utf8(head)
            .ok()
            .and_then(|text| usize::from_str_radix(text, 16).ok())
        else {
            break;
        };
        if length < 4 {
            out.push(Frame::Marker(u8::try_from(length).unwrap_or_default()));
            bytes = rest;
            continue;
        }
        let Some((payload, tail)) = rest.split_at_checked(length - 4) else {
            break;
        };
        out.push(Frame::Data(payload));
        bytes = tail;
    }
    out
}

/// Writes one payload as a frame.
pub(crate) fn data(payload: &[u8]) -> Vec<u8> {
    let mut out = format!("{:04x}", payload.len() + 4).into_bytes();
    out.extend_from_slice(payload);
    out
}

/// The ids that a request for objects wants.
pub(crate) fn wants(body: &[u8]) -> Vec<String> {
    frames(body)
        .into_iter()
        .filter_map(|frame| match frame {
            Frame::Data(payload) => payload.strip_prefix(b"want "),
            Frame::Marker(_) => None,
        })
        .map(|rest| {
            let id = rest
                .split(|byte| !byte.is_ascii_hexdigit())
                .next()
                .unwrap_or_default();
            String::from_utf8_lossy(id).into_owned()
        })
        .collect()
}

/// The same listing, with another object format.
pub(crate) fn with_object_format(listing: &[u8], format: &str) -> Vec<u8> {
    const KEY: &[u8] = b"object-format=";
    let mut out = Vec::with_capacity(listing.len() + 16);
    for frame in frames(listing) {
        match frame {
            Frame::Marker(marker) => out.extend_from_slice(format!("{marker:04x}").as_bytes()),
            Frame::Data(payload) => {
                let at = payload.windows(KEY.len()).position(|window| window == KEY);
                let Some((head, rest)) = at.and_then(|at| payload.split_at_checked(at + KEY.len()))
                else {
                    out.extend_from_slice(&data(payload));
                    continue;
                };
                let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric());
                let tail = rest.get(end.unwrap_or(rest.len())..).unwrap_or_default();
                out.extend_from_slice(&data(&[head, format.as_bytes(), tail].concat()));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wants_and_formats() {
        let id = "a".repeat(40);
        let mut body = data(b"command=fetch");
        body.extend_from_slice(b"0001");
        body.extend_from_slice(&data(format!("want {id}\n").as_bytes()));
        body.extend_from_slice(&data(format!("want {id} ofs-delta agent=x\n").as_bytes()));
        body.extend_from_slice(b"000000ff cut");
        assert_eq!(frames(&body).len(), 5);
        assert_eq!(wants(&body), [id.clone(), id]);

        let listing = [
            data(b"version 2\n"),
            data(b"object-format=sha1\n"),
            b"0000".to_vec(),
        ];
        let changed = with_object_format(&listing.concat(), "sha256");
        assert_eq!(
            changed,
            b"000eversion 2\n0019object-format=sha256\n0000".to_vec()
        );
    }
}

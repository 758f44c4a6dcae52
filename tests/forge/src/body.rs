//! Faults in the middle of an answer: a body that is cut, stalls or lies.

use std::io;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};

/// What follows the last byte of a cut body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// A clean end, as if that had been all.
    End,
    /// The connection is closed in the middle.
    Drop,
    /// Nothing, for ever.
    Stall,
}

/// Passes on `limit` bytes, then does what `then` says (also when there were fewer).
pub(crate) fn cut(body: Body, limit: u64, then: Then) -> Body {
    let state = Some((body.into_data_stream(), limit));
    Body::from_stream(stream::unfold(state, move |state| async move {
        let (mut rest, left) = state?;
        let next = if left == 0 { None } else { rest.next().await };
        match (next, then) {
            (Some(Ok(mut chunk)), _) => {
                chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - chunk.len() as u64;
                Some((Ok(chunk), Some((rest, left))))
            }
            (Some(Err(error)), _) => Some((Err(io::Error::other(error)), None)),
            (None, Then::End) => None,
            (None, Then::Drop) => Some((Err(io::Error::other("dropped by the test")), None)),
            (None, Then::Stall) => std::future::pending().await,
        }
    }))
}

/// Passes everything on, with all bits of the byte at `at` turned around.
pub(crate) fn corrupt(body: Body, at: u64) -> Body {
    let mut passed = 0_u64;
    Body::from_stream(body.into_data_stream().map(move |chunk| {
        chunk.map(|chunk| {
            let start = passed;
            passed += chunk.len() as u64;
            let inside = at
                .checked_sub(start)
                .and_then(|at| usize::try_from(at).ok());
            match inside.filter(|at| *at < chunk.len()) {
                Some(at) => flipped(&chunk, at),
                None => chunk,
            }
        })
    }))
}

fn flipped(chunk: &Bytes, at: usize) -> Bytes {
    let mut chunk = BytesMut::from(chunk.as_ref());
    if let Some(byte) = chunk.get_mut(at) {
        *byte = !*byte;
    }
    chunk.freeze()
}

//! Listings as servers send them, and as they should not.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

/// Packets: each text is one, `0000` and `0001` are themselves.
fn packets(texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in texts {
        match *text {
            marker @ ("0000" | "0001" | "0002") => bytes.extend_from_slice(marker.as_bytes()),
            text => pkt::write(&mut bytes, text.as_bytes()),
        }
    }
    bytes
}

fn wants(names: &[&str]) -> Wants {
    Wants(names.iter().map(|name| name.parse().unwrap()).collect())
}

/// A whole conversation over streams: what the server says, and what we ask.
async fn converse(server: &[u8], names: &[&str]) -> (Result<Listing, ProtocolError>, String) {
    let mut asked = Vec::new();
    let listing = list_over(server, &mut asked, &wants(names), 1 << 20).await;
    (listing, String::from_utf8_lossy(&asked).into_owned())
}

#[tokio::test]
async fn v2_asks_for_names_and_keeps_exact_ones() {
    let one = format!("{ONE} HEAD symref-target:refs/heads/main\n");
    let main = format!("{ONE} refs/heads/main\n");
    let longer = format!("{TWO} refs/heads/main-2\n");
    let tag = format!("{TWO} refs/tags/v1 peeled:{ONE}\n");
    let server = packets(&[
        "version 2\n",
        "agent=git/2.47\n",
        "ls-refs=unborn\n",
        "fetch=shallow\n",
        "object-format=sha1\n",
        "0000",
        &one,
        &main,
        &longer,
        &tag,
        "0000",
    ]);
    let (listing, asked) = converse(&server, &["refs/heads/main", "refs/tags/v1"]).await;
    let listing = listing.unwrap();
    assert_eq!(listing.refs.len(), 2);
    let head = Head::At {
        id: ONE.parse().unwrap(),
        branch: Some("refs/heads/main".parse().unwrap()),
    };
    assert_eq!(listing.head, head);
    let tag = listing.refs.get(&"refs/tags/v1".parse().unwrap()).unwrap();
    assert_eq!(
        (tag.id.as_str(), tag.peeled.as_ref().unwrap().as_str()),
        (TWO, ONE)
    );
    for part in [
        "command=ls-refs",
        "object-format=sha1",
        "unborn",
        "ref-prefix refs/tags/v1\n",
    ] {
        assert!(asked.contains(part), "{asked}");
    }
    assert!(
        asked.ends_with("00000000"),
        "the question's end, and the conversation's"
    );
}

#[tokio::test]
async fn v2_without_any_answer_asks_whether_there_is_anything() {
    let greeting = ["version 2\n", "ls-refs\n", "0000"];
    let other = format!("{ONE} refs/heads/x\n");
    for (answer, empty) in [
        (vec!["0000", "0000"], true),
        (vec!["0000", &other, "0000"], false),
    ] {
        let server = packets(&[&greeting[..], &answer[..]].concat());
        let (listing, asked) = converse(&server, &["refs/heads/main"]).await;
        let listing = listing.unwrap();
        assert_eq!((listing.empty, listing.head), (empty, Head::Absent));
        assert!(asked.contains("ref-prefix refs/\n"), "{asked}");
        assert!(
            !asked.contains("unborn"),
            "not to a server that does not know it: {asked}"
        );
    }
}

#[rstest]
#[case::v0(&[])]
#[case::v0_over_http(&["# service=git-upload-pack\n", "0000"])]
#[case::v1(&["version 1\n"])]
#[tokio::test]
async fn v0_and_v1_are_read_with_peeled_tags(#[case] before: &[&str]) {
    let head = format!("{ONE} HEAD\0multi_ack symref=HEAD:refs/heads/main object-format=sha1\n");
    let main = format!("{ONE} refs/heads/main\n");
    let tag = format!("{TWO} refs/tags/v1\n");
    let peeled = format!("{ONE} refs/tags/v1^{{}}\n");
    let shallow = format!("shallow {ONE}");
    let lines = [&head, &main, &tag, &peeled, &shallow, "0000"];
    let server = packets(&[before, &lines[..]].concat());
    let (listing, asked) = converse(&server, &["refs/tags/v1"]).await;
    let listing = listing.unwrap();
    let tag = listing.refs.get(&"refs/tags/v1".parse().unwrap()).unwrap();
    assert_eq!(
        (tag.id.as_str(), tag.peeled.as_ref().unwrap().as_str()),
        (TWO, ONE)
    );
    assert!(matches!(
        listing.head,
        Head::At {
            branch: Some(_),
            ..
        }
    ));
    assert_eq!(asked, "0000", "nothing is asked but to end");
}

#[rstest]
#[case::only_a_flush(&["0000"])]
#[case::capabilities_alone(&["0000000000000000000000000000000000000000 capabilities^{}\0agent=git\n", "0000"])]
#[tokio::test]
async fn v0_of_an_empty_repository_is_empty(#[case] lines: &[&str]) {
    let (listing, _) = converse(&packets(lines), &["refs/heads/main"]).await;
    assert!(listing.unwrap().empty);
}

#[rstest]
#[case::error_line(&["ERR access denied\n"], "the server says: access denied")]
#[case::unknown_format(&["version 2\n", "ls-refs\n", "object-format=sha3\n", "0000"], "the repository's object format `sha3` is not known")]
#[case::no_ls_refs(&["version 2\n", "fetch\n", "0000"], "the server speaks protocol v2 and cannot list refs")]
#[case::no_ref(&["hello\n"], "a line that is no ref")]
#[case::short_id(&["1234 refs/heads/main\n"], "a line that is no ref")]
#[case::version_3(&["version 3\n"], "a line that is no ref")]
#[case::delimiter(&["0001"], "the end of a section where there is none")]
#[case::nothing(&[], "the answer ends in the middle")]
#[tokio::test]
async fn what_is_no_listing_says_why(#[case] lines: &[&str], #[case] why: &str) {
    let (listing, _) = converse(&packets(lines), &[]).await;
    assert_eq!(listing.unwrap_err().to_string(), why);
}

#[tokio::test]
async fn an_error_line_is_made_safe_and_short() {
    let line = format!("ERR \u{1b}[2J{}", "x".repeat(5000));
    let (listing, _) = converse(&packets(&[&line]), &[]).await;
    let text = listing.unwrap_err().to_string();
    assert!(
        text.starts_with("the server says: \\x1b[2Jx") && text.len() < 330,
        "{text}"
    );
}

/// Lines that look like a server's, well-formed or nearly so.
fn line() -> impl Strategy<Value = String> {
    let id = prop_oneof![
        Just(ONE.to_owned()),
        Just(TWO.repeat(2)),
        "[0-9a-f]{0,64}",
        ".{0,8}"
    ];
    let name = prop_oneof![
        Just("HEAD".to_owned()),
        Just("refs/heads/main".to_owned()),
        "refs/(heads|tags)/[a-z/.^{}]{0,12}",
        ".{0,12}",
    ];
    let tail = prop_oneof![
        Just(String::new()),
        Just("^{}".to_owned()),
        Just(" symref-target:refs/heads/main".to_owned()),
        id.clone().prop_map(|id| format!(" peeled:{id}")),
        Just("\0symref=HEAD:refs/heads/main object-format=sha256".to_owned()),
        ".{0,12}",
    ];
    let whole = (id, name, tail).prop_map(|(id, name, tail)| format!("{id} {name}{tail}\n"));
    prop_oneof![
        4 => whole,
        1 => Just("version 2\n".to_owned()),
        1 => Just("version 1\n".to_owned()),
        1 => Just("ls-refs=unborn\n".to_owned()),
        1 => "unborn HEAD symref-target:.{0,20}",
        1 => prop_oneof![Just("0000".to_owned()), Just("0001".to_owned()), Just("0002".to_owned())],
    ]
}

proptest! {
    #[test]
    fn any_lines_end_without_a_panic_and_keep_only_what_was_wanted(
        lines in proptest::collection::vec(line(), 0..30),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let texts: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut bytes = packets(&texts);
        bytes.extend(tail);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (listing, asked) = runtime.block_on(converse(&bytes, &["refs/heads/main", "refs/tags/a"]));
        if let Ok(listing) = listing {
            prop_assert!(listing.refs.len() <= 2);
            prop_assert!(listing.refs.values().all(|listed| listed.id.format() == listing.format));
        }
        prop_assert!(asked.len() < 1000);
    }

    #[test]
    fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        drop(runtime.block_on(converse(&bytes, &["refs/heads/main"])));
    }
}

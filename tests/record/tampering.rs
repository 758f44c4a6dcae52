//! L05: whoever owns the file can change it, and `verify` shows that it was changed.

use rstest::rstest;
use sandboxrun::audit::{ChainFault, Finding, Head, Record, verify_export};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::desk::{Desk, begun, call, key};

/// Ten events of run 1 and three of run 2; the head of run 1.
async fn written(desk: &Desk) -> Head {
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    begun(&record, &key(2)).await;
    record.append(&key(2), call(0)).await.unwrap();
    let mut head = None;
    for n in 0..8 {
        head = Some(record.append(&run, call(n)).await.unwrap());
    }
    record.close().await;
    head.unwrap()
}

/// Changes the file as its owner could: with a tool of his own, the guard against accidents taken off.
async fn meddle(desk: &Desk, statements: &str) {
    let mut file = SqliteConnectOptions::new()
        .filename(desk.path())
        .connect()
        .await
        .unwrap();
    sqlx::query("DROP TRIGGER events_never_change")
        .execute(&mut file)
        .await
        .unwrap();
    for statement in statements.split(';') {
        sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&mut file)
            .await
            .unwrap();
    }
    file.close().await.unwrap();
}

#[rstest]
#[case::a_byte_of_the_event(
    "UPDATE events SET body = REPLACE(body, '\"status\":200', '\"status\":201') WHERE sequence = 5",
    ChainFault::Changed { sequence: 5 }
)]
#[case::a_byte_that_is_no_text(
    "UPDATE events SET body = CAST(x'ff' || body AS TEXT) WHERE sequence = 5",
    ChainFault::Changed { sequence: 5 }
)]
#[case::white_space(
    "UPDATE events SET body = body || ' ' WHERE sequence = 5",
    ChainFault::Changed { sequence: 5 }
)]
#[case::the_time(
    "UPDATE events SET at = REPLACE(at, 'T', ' ') WHERE sequence = 5",
    ChainFault::Changed { sequence: 5 }
)]
#[case::the_hash_alone(
    "UPDATE events SET hash = previous WHERE sequence = 5",
    ChainFault::Changed { sequence: 5 }
)]
#[case::the_kind_that_queries_use(
    "UPDATE events SET kind = 'output' WHERE sequence = 5",
    ChainFault::Misfiled { sequence: 5 }
)]
#[case::a_row_is_gone("DELETE FROM events WHERE sequence = 5", ChainFault::Missing { sequence: 5 })]
#[case::the_first_is_gone(
    "DELETE FROM events WHERE sequence = 1",
    ChainFault::Missing { sequence: 1 }
)]
#[case::two_are_swapped(
    "UPDATE events SET sequence = 99 WHERE sequence = 5; \
     UPDATE events SET sequence = 5 WHERE sequence = 6; \
     UPDATE events SET sequence = 6 WHERE sequence = 99",
    ChainFault::Changed { sequence: 5 }
)]
#[case::a_gap_is_closed(
    "DELETE FROM events WHERE sequence = 5; \
     UPDATE events SET sequence = sequence + 100 WHERE sequence > 5; \
     UPDATE events SET sequence = sequence - 101 WHERE sequence > 100",
    ChainFault::Changed { sequence: 5 }
)]
#[case::another_run_stands_in(
    "DELETE FROM events WHERE uid = '00000001-0000'; \
     UPDATE events SET uid = '00000001-0000'",
    ChainFault::Changed { sequence: 1 }
)]
#[case::another_name(
    "UPDATE runs SET name = 'other' WHERE uid = '00000001-0000'",
    ChainFault::Changed { sequence: 1 }
)]
#[case::another_installation("UPDATE installation SET id = 'other'", ChainFault::Changed { sequence: 1 })]
#[case::everything_is_gone("DELETE FROM events", ChainFault::Empty)]
#[case::said_to_be_pruned(
    "DELETE FROM events WHERE sequence = 5; \
     INSERT INTO pruned SELECT namespace, uid, at, sequence, 'x' FROM events WHERE sequence = 9",
    ChainFault::OtherHead { sequence: 9 }
)]
#[tokio::test]
async fn l05_a_changed_record_does_not_verify(#[case] statements: &str, #[case] fault: ChainFault) {
    let desk = Desk::new();
    written(&desk).await;
    let (code, before) = desk.audit(&["verify"]).await;
    assert_eq!(code, 0, "{before}");
    meddle(&desk, statements).await;
    let record = Record::open_read(&desk.path()).await.unwrap();
    let verdict = record.verify(&key(1).uid, None).await.unwrap().unwrap();
    assert_eq!(verdict.finding, Finding::Broken { fault });
    let (code, text) = desk.audit(&["verify", "00000001-0000"]).await;
    assert_eq!(code, 1);
    assert!(text.contains("BROKEN"), "{text}");
}

#[tokio::test]
async fn l05_a_cut_tail_shows_with_the_head_and_is_not_called_complete_without() {
    let desk = Desk::new();
    let head = written(&desk).await;
    let words = head.to_string();
    let (code, text) = desk.audit(&["verify", "00000001", "--head", &words]).await;
    assert_eq!(code, 0);
    assert!(text.contains("complete up to the head"), "{text}");
    meddle(&desk, "DELETE FROM events WHERE sequence > 7").await;
    let record = Record::open_read(&desk.path()).await.unwrap();
    let uid = key(1).uid;
    let without = record.verify(&uid, None).await.unwrap().unwrap();
    assert!(matches!(without.finding, Finding::TailNotProven { .. }));
    let with = record.verify(&uid, Some(&head)).await.unwrap().unwrap();
    let fault = ChainFault::Cut { found: 7, kept: 10 };
    assert_eq!(with.finding, Finding::Broken { fault });
    let (code, text) = desk.audit(&["verify", "00000001", "--head", &words]).await;
    assert_eq!(code, 1);
    assert!(text.contains("cut off"), "{text}");
}

#[tokio::test]
async fn l05_a_chain_that_was_written_anew_is_another_chain() {
    let desk = Desk::new();
    let head = written(&desk).await;
    let other = Desk::new();
    written(&other).await;
    let record = Record::open_read(&other.path()).await.unwrap();
    let verdict = record
        .verify(&key(1).uid, Some(&head))
        .await
        .unwrap()
        .unwrap();
    let fault = ChainFault::OtherHead { sequence: 10 };
    assert_eq!(verdict.finding, Finding::Broken { fault });
}

#[tokio::test]
async fn the_file_guards_against_an_accidental_update() {
    let desk = Desk::new();
    written(&desk).await;
    let mut file = SqliteConnectOptions::new()
        .filename(desk.path())
        .connect()
        .await
        .unwrap();
    let error = sqlx::query("UPDATE events SET at = ''")
        .execute(&mut file)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("append only"), "{error}");
}

#[tokio::test]
async fn l05_no_byte_of_an_export_can_be_changed() {
    let desk = Desk::new();
    written(&desk).await;
    let record = Record::open_read(&desk.path()).await.unwrap();
    let head = record.head(&key(2).uid).await.unwrap().unwrap();
    let (code, export) = desk.audit(&["export", "00000002-0000"]).await;
    assert_eq!((code, export.lines().count()), (0, 3));
    let verify = |bytes: &[u8]| match verify_export(bytes, Some(&head)) {
        Ok(verdicts) => verdicts.len() == 1 && verdicts[0].finding.holds(),
        Err(_) => false,
    };
    assert!(verify(export.as_bytes()));
    for at in 0..export.len() {
        let mut changed = export.clone().into_bytes();
        changed[at] ^= 1;
        assert!(!verify(&changed), "byte {at}");
    }
    let lines: Vec<_> = export.lines().collect();
    for left_out in 0..3 {
        let kept: Vec<_> = (0..3)
            .filter(|n| *n != left_out)
            .map(|n| lines[n])
            .collect();
        assert!(
            !verify(kept.join("\n").as_bytes()),
            "without line {left_out}"
        );
    }
    let file = desk.directory().join("export.jsonl");
    std::fs::write(&file, export.replacen("200", "201", 1)).unwrap();
    let (code, text) = desk
        .audit(&["verify", "--file", file.to_str().unwrap()])
        .await;
    assert_eq!(code, 1);
    assert!(text.contains("BROKEN"), "{text}");
}

#[tokio::test]
async fn the_command_line_finds_runs_by_uid_beginning_and_name() {
    let desk = Desk::new();
    written(&desk).await;
    for words in ["00000002-0000", "00000002", "fix-it", "team/fix-it"] {
        let (code, text) = desk.audit(&["show", words]).await;
        assert_eq!(code, 0, "{words}: {text}");
        assert!(
            text.contains("Run team/fix-it (00000002-0000)"),
            "{words}: {text}"
        );
    }
    let (code, text) = desk.audit(&["show", "other/fix-it"]).await;
    assert_eq!(code, 1);
    assert!(text.contains("audit list"), "{text}");
    let (code, text) = desk.audit(&["list", "-o", "json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, listed.as_array().unwrap().len()), (0, 2));
    let (_, text) = desk.audit(&["list"]).await;
    assert!(text.starts_with(" RUN"), "{text}");
    let (code, text) = desk
        .audit(&["list", "--record", "/nonexistent/record.sqlite"])
        .await;
    assert_eq!(code, 244, "{text}");
}

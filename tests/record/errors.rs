//! What goes wrong with the file is said as what it is, and the first error is the one that is shown.

use std::os::unix::fs::PermissionsExt as _;

use sandboxrun::api::{Fault as _, Reason};
use sandboxrun::audit::{Record, RecordError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::desk::{Desk, begun, call, key};

#[tokio::test]
async fn l04_the_first_sql_error_is_shown_and_the_next_append_works() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    let mut file = SqliteConnectOptions::new()
        .filename(desk.path())
        .connect()
        .await
        .unwrap();
    sqlx::query(
        "CREATE TRIGGER fault BEFORE INSERT ON events WHEN NEW.body LIKE '%666%' \
         BEGIN SELECT RAISE(ABORT, 'the first cause'); END",
    )
    .execute(&mut file)
    .await
    .unwrap();
    file.close().await.unwrap();
    let appends = (0..20).map(|n| {
        let record = record.clone();
        let bytes = if n == 7 { 666 } else { n };
        async move { record.append(&key(1), call(bytes)).await }
    });
    let results = futures::future::join_all(appends).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), n == 7, "{n}: {result:?}");
    }
    let error = results[7].as_ref().unwrap_err();
    assert_eq!(error.reason(), Reason::RecordWriteFailed);
    assert!(
        error.failure(None).message.contains("the first cause"),
        "{error:?}"
    );
    // What was confirmed is there, read from the file by another connection.
    let read = Record::open_read(&desk.path()).await.unwrap();
    let verdict = read.verify(&run.uid, None).await.unwrap().unwrap();
    assert_eq!((verdict.events, verdict.finding.holds()), (21, true));
}

#[tokio::test]
async fn only_its_owner_can_read_the_file() {
    let desk = Desk::new();
    let record = desk.open().await;
    begun(&record, &key(1)).await;
    for file in ["record.sqlite", "record.sqlite-wal", "record.sqlite-shm"] {
        let mode = std::fs::metadata(desk.directory().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let desk = Desk::new();
    let path = desk.directory().join("missing/record.sqlite");
    for result in [Record::open(&path).await, Record::open_read(&path).await] {
        let error = result.unwrap_err();
        assert!(matches!(error, RecordError::Open { .. }), "{error:?}");
        assert!(
            error.to_string().contains("missing/record.sqlite"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_no_record_is_left_alone() {
    let desk = Desk::new();
    std::fs::write(
        desk.path(),
        "this is a letter, and longer than a header ".repeat(99),
    )
    .unwrap();
    let before = std::fs::read(desk.path()).unwrap();
    for result in [
        Record::open(&desk.path()).await,
        Record::open_read(&desk.path()).await,
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, RecordError::Damaged { .. }), "{error:?}");
        assert_eq!(error.reason(), Reason::RecordUnreadable);
    }
    assert_eq!(std::fs::read(desk.path()).unwrap(), before);
}

#[tokio::test]
async fn a_damaged_record_is_said_to_be_damaged() {
    let desk = Desk::new();
    let record = desk.open().await;
    begun(&record, &key(1)).await;
    for n in 0..200 {
        record.append(&key(1), call(n)).await.unwrap();
    }
    record.close().await;
    let mut bytes = std::fs::read(desk.path()).unwrap();
    for page in bytes.chunks_mut(4096).skip(1) {
        page[..64].fill(0x55);
    }
    std::fs::write(desk.path(), bytes).unwrap();
    let error = match Record::open_read(&desk.path()).await {
        Ok(record) => record.verify_all().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, RecordError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_record_of_a_newer_version_is_not_touched() {
    let desk = Desk::new();
    desk.open().await.close().await;
    let mut file = SqliteConnectOptions::new()
        .filename(desk.path())
        .connect()
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'later', TRUE, x'00', 0)",
    )
    .execute(&mut file)
    .await
    .unwrap();
    file.close().await.unwrap();
    for result in [
        Record::open(&desk.path()).await,
        Record::open_read(&desk.path()).await,
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, RecordError::Newer { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_record_that_is_open_for_reading_or_closed_takes_nothing() {
    let desk = Desk::new();
    let record = desk.open().await;
    begun(&record, &key(1)).await;
    record.close().await;
    assert!(
        !desk.directory().join("record.sqlite-wal").exists(),
        "folded into the file"
    );
    let late = record.append(&key(1), call(1)).await.unwrap_err();
    assert!(matches!(late, RecordError::Closed { .. }), "{late:?}");
    let reader = Record::open_read(&desk.path()).await.unwrap();
    let refused = reader.append(&key(1), call(1)).await.unwrap_err();
    assert!(matches!(refused, RecordError::Closed { .. }), "{refused:?}");
}

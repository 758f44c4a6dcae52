//! On the record: whoever changes it is found out, and nothing that an agent writes can break it.

use std::fs;
use std::path::Path;

use rstest::rstest;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::support::{World, audit};

async fn meddle(record: &Path, statements: &str) {
    let mut file = SqliteConnectOptions::new()
        .filename(record)
        .connect()
        .await
        .unwrap();
    for statement in ["DROP TRIGGER events_never_change"]
        .into_iter()
        .chain(statements.split(';'))
    {
        sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&mut file)
            .await
            .unwrap();
    }
    file.close().await.unwrap();
}

#[rstest]
#[case::a_changed_byte(
    "UPDATE events SET body = REPLACE(body, 'refs/heads/main', 'refs/heads/mein') WHERE sequence = 3"
)]
#[case::a_missing_row("DELETE FROM events WHERE sequence = 4")]
#[case::two_swapped_rows(
    "UPDATE events SET sequence = 99 WHERE sequence = 3; UPDATE events SET sequence = 3 WHERE sequence = 4; \
     UPDATE events SET sequence = 4 WHERE sequence = 99"
)]
#[case::a_cut_tail("DELETE FROM events WHERE sequence >= 9")]
#[tokio::test(flavor = "multi_thread")]
async fn l05_verify_finds_in_the_record_of_a_run(#[case] change: &str) {
    let world = World::new().await;
    let done = world.run(&world.script("true")).ended_with(0);
    let head = done.status["record"]["head"].as_str().unwrap();
    let (code, text) = world.audit(&["verify", "test", "--head", head]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("complete up to the head"), "{text}");
    let copy = world.path("copy.sqlite");
    fs::copy(world.state().join("record.sqlite"), &copy).unwrap();
    meddle(&copy, change).await;
    let (code, text) = audit(&copy, &["verify", "test", "--head", head]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("BROKEN"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l03_nul_and_broken_utf8_anywhere_are_survived() {
    let world = World::new().await;
    let script = r#"
        printf x > "$(printf 'bad\377name')"; printf x > "$(printf 'esc\033]0;t\007ape')"; printf x > "$(printf 'new\nline')"
        printf 'out \000 \377 \033[2J end\n'; printf 'err \000 \377\n' >&2
        printf '"a\\u0000b \357\277\276"' > /sandbox/output/output.json
    "#;
    let done = world.run(&world.script(script)).ended_with(0);
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 3);
    assert!(done.stderr.contains("agent |"), "{}", done.stderr);
    assert!(!done.stderr.contains(['\0', '\u{1b}']), "{}", done.stderr);
    let (code, text) = world.audit(&["verify"]);
    assert_eq!(code, 0, "{text}");
    let (code, story) = world.audit(&["show"]);
    assert_eq!(code, 0, "{story}");
    assert!(!story.contains(['\0', '\u{1b}']), "{story}");
    // The log keeps what the agent really wrote.
    let log = fs::read(done.kept().join("agent.log")).unwrap();
    assert!(log.windows(3).any(|part| part == [0, b' ', 0xff]));
}

#[rstest]
#[case::broken_utf8(r"printf '\377\000' > /sandbox/output/output.json")]
#[case::not_json("echo '{' > /sandbox/output/output.json")]
#[case::a_link("ln -s /etc/passwd /sandbox/output/output.json")]
#[case::a_pipe("mkfifo /sandbox/output/output.json")]
#[case::a_directory("mkdir /sandbox/output/output.json")]
#[case::too_large("head -c 2000000 /dev/zero | tr '\\0' 1 > /sandbox/output/output.json")]
#[case::too_deep(
    "yes '[' | head -n 100 | tr -d '\\n' > /sandbox/output/output.json; yes ']' | head -n 100 | tr -d '\\n' >> /sandbox/output/output.json"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_no_json_file_does_not_count(#[case] script: &str) {
    let world = World::new().await;
    let done = world
        .run(&world.script(script))
        .failed_by(251, "OutputNotJson");
    assert!(done.message().contains("output.json"));
    assert!(!done.stdout.contains("root:"));
    assert_eq!(world.audit(&["verify"]).0, 0);
}

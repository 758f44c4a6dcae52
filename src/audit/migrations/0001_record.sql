-- The record: one chain of events for each run object. The tenant (namespace) is in every key.
CREATE TABLE installation (
    id TEXT NOT NULL PRIMARY KEY
);

-- Which runs there are. A row is written with a run's first event and outlives the retention of the others.
CREATE TABLE runs (
    namespace TEXT NOT NULL CHECK (namespace <> ''),
    uid TEXT NOT NULL CHECK (uid <> ''),
    name TEXT NOT NULL CHECK (name <> ''),
    PRIMARY KEY (namespace, uid)
);
CREATE INDEX runs_by_uid ON runs (uid);

-- `body` is the event as canonical JSON, byte for byte what was hashed; `kind` repeats a part of it for queries.
CREATE TABLE events (
    namespace TEXT NOT NULL CHECK (namespace <> ''),
    uid TEXT NOT NULL CHECK (uid <> ''),
    sequence BIGINT NOT NULL CHECK (sequence > 0),
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (namespace, uid, sequence)
);
CREATE INDEX events_by_kind ON events (namespace, uid, kind, sequence);

-- Runs whose middle events were removed by retention: what the chain was then.
CREATE TABLE pruned (
    namespace TEXT NOT NULL CHECK (namespace <> ''),
    uid TEXT NOT NULL CHECK (uid <> ''),
    at TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (namespace, uid)
);

-- A guard against accidents, not against whoever owns the file: that is what the hashes are for.
CREATE TRIGGER events_never_change BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'the record is append only');
END;

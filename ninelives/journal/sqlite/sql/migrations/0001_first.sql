-- The first schema. Every row begins with its owner; entries and segments hang on a run's own number.
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('format', '1');

CREATE TABLE runs (
  owner TEXT NOT NULL,
  id TEXT NOT NULL UNIQUE,
  n INTEGER PRIMARY KEY,
  dialect TEXT NOT NULL,
  model TEXT NOT NULL,
  status TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  parked INTEGER NOT NULL,
  ended INTEGER NOT NULL DEFAULT 0,
  chains INTEGER NOT NULL DEFAULT 0,
  hidden INTEGER NOT NULL DEFAULT 0,
  last_seq INTEGER NOT NULL,
  sealed_seq INTEGER NOT NULL DEFAULT -1,
  sealed_crc INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  session TEXT NOT NULL,
  conversation TEXT,
  previous TEXT,
  idem TEXT,
  metadata BLOB NOT NULL,
  turn BLOB
);
CREATE INDEX runs_by_owner ON runs (owner, n) WHERE hidden = 0;
CREATE INDEX runs_open ON runs (n) WHERE ended = 0;
CREATE INDEX runs_by_previous ON runs (owner, previous) WHERE previous IS NOT NULL;

-- The hot table: append-only, no index but the rowid; rows leave it in slices once their run is sealed beyond them.
CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  at INTEGER NOT NULL,
  crc INTEGER NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE segments (
  run INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  crc INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (run, first_seq)
);

CREATE TABLE keys (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  run TEXT NOT NULL,
  PRIMARY KEY (owner, key)
) WITHOUT ROWID;

CREATE TABLE conversations (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  name TEXT,
  latest TEXT,
  active TEXT,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX conversations_by_name ON conversations (owner, name) WHERE name IS NOT NULL;

CREATE TABLE session_turns (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  n INTEGER NOT NULL,
  at INTEGER NOT NULL,
  run TEXT,
  turn BLOB NOT NULL,
  PRIMARY KEY (owner, session, n)
) WITHOUT ROWID;

CREATE TABLE signals (
  owner TEXT NOT NULL,
  run TEXT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  payload BLOB NOT NULL,
  PRIMARY KEY (run, kind, key)
) WITHOUT ROWID;

CREATE TABLE grants (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  tool TEXT NOT NULL,
  PRIMARY KEY (owner, session, tool)
) WITHOUT ROWID;

CREATE TABLE session_titles (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  title TEXT NOT NULL,
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;

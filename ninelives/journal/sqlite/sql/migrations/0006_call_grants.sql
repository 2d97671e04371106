-- Standing permissions for single calls (D4). `id` is a hash of session, call and tool. The table `grants` has those of
-- older releases, which covered all calls of a tool. Nobody reads it any more.
CREATE TABLE call_grants (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  session TEXT NOT NULL,
  tool TEXT NOT NULL,
  arguments TEXT NOT NULL,
  at INTEGER NOT NULL,
  given_by TEXT NOT NULL,
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;

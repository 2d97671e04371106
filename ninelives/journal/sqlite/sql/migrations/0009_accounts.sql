-- API keys. The secret is not here, only its digest. Times are in milliseconds; 0: never. `models` and `limits` are JSON.
CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  digest BLOB NOT NULL,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  scopes TEXT NOT NULL,
  profile TEXT NOT NULL,
  models TEXT NOT NULL,
  limits TEXT NOT NULL,
  acts_for TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  revoked_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  version INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX api_keys_by_version ON api_keys (version);
CREATE INDEX api_keys_by_age ON api_keys (created_at, id);

-- Who did what to which object, with what result. Nothing changes an entry; old ones are deleted from the beginning.
CREATE TABLE audit_log (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  action TEXT NOT NULL,
  object TEXT NOT NULL,
  result TEXT NOT NULL,
  remote TEXT NOT NULL,
  detail TEXT NOT NULL
);
CREATE TRIGGER audit_log_stays BEFORE UPDATE ON audit_log BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;

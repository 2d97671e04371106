-- name: next_version
-- The version of the next change of a key.
INSERT INTO meta (name, value) VALUES ('api_keys', '1')
ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1 RETURNING CAST(value AS INTEGER);

-- name: forget_ended
-- Deletes keys that ended long ago.
DELETE FROM api_keys WHERE (revoked_at > 0 AND revoked_at <= ?1) OR (expires_at > 0 AND expires_at <= ?1);

-- name: add
-- A new key.
INSERT INTO api_keys (id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by,
  created_at, last_used_at, version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: take_back
-- Deletes a key that was added in this transaction.
DELETE FROM api_keys WHERE id = ?;

-- name: replace
-- Changes a key that nobody changed meanwhile.
UPDATE api_keys SET owner = ?3, name = ?4, scopes = ?5, profile = ?6, models = ?7, limits = ?8, acts_for = ?9,
  expires_at = ?10, revoked_at = ?11, version = ?16 WHERE id = ?1 AND version = ?15 RETURNING id;

-- name: find
-- One key.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys WHERE id = ?;

-- name: page
-- A page of keys, the newest first.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys
WHERE ?2 = '' OR (created_at, id) < (SELECT created_at, id FROM api_keys WHERE id = ?2) ORDER BY created_at DESC, id DESC LIMIT ?1;

-- name: since
-- The keys that changed after a version.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys WHERE version > ? ORDER BY version, id;

-- name: count
-- How many keys there are.
SELECT count(*) FROM api_keys;

-- name: used
-- When a key was last used.
UPDATE api_keys SET last_used_at = MAX(last_used_at, ?2) WHERE id = ?1;

-- name: add_audit
-- An entry of the audit log, unless it is there already. The values are the fields of an AuditEntry; ?9 is `n`.
INSERT INTO audit_log (owner, key, action, object, result, remote, detail, at, id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10)
ON CONFLICT DO NOTHING;

-- name: audit_down
-- A page of the audit log, the newest first. Empty texts match everything.
SELECT at, owner, key, action, object, result, remote, detail, n FROM audit_log
WHERE n > ?2 AND (?3 = 0 OR n < ?3) AND (?4 = '' OR owner = ?4) AND (?5 = '' OR key = ?5)
  AND (?6 = '' OR action = ?6 OR substr(action, 1, length(?6) + 1) = ?6 || '.') AND (?7 = '' OR object = ?7)
ORDER BY n DESC LIMIT ?1;

-- name: audit_up
-- The same, the oldest first.
SELECT at, owner, key, action, object, result, remote, detail, n FROM audit_log
WHERE n > ?2 AND (?3 = 0 OR n < ?3) AND (?4 = '' OR owner = ?4) AND (?5 = '' OR key = ?5)
  AND (?6 = '' OR action = ?6 OR substr(action, 1, length(?6) + 1) = ?6 || '.') AND (?7 = '' OR object = ?7)
ORDER BY n LIMIT ?1;

-- name: audit_first_kept
-- The first entry that stays: young enough, and among the newest.
SELECT MAX(COALESCE((SELECT n FROM audit_log WHERE at >= ?1 ORDER BY n LIMIT 1), (SELECT MAX(n) + 1 FROM audit_log), 0),
  COALESCE((SELECT n FROM audit_log ORDER BY n DESC LIMIT 1 OFFSET ?2), -1) + 1);

-- name: trim_audit
-- Deletes the oldest entries, some at a time.
DELETE FROM audit_log WHERE n IN (SELECT n FROM audit_log WHERE n < ?1 ORDER BY n LIMIT ?2) RETURNING n;

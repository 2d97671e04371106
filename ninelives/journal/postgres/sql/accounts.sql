-- name: forget_ended
-- Deletes keys that ended long ago.
DELETE FROM api_keys WHERE (revoked_at > 0 AND revoked_at <= $1) OR (expires_at > 0 AND expires_at <= $1);

-- name: add
-- A new key. A statement that is sent again after a broken connection finds its own row. The row of `meta` is locked until
-- the commit, so versions become visible in their order.
WITH v AS (INSERT INTO meta AS m (name, value) VALUES ('api_keys', '1')
  ON CONFLICT (name) DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING value::bigint AS version)
INSERT INTO api_keys (id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by,
  created_at, last_used_at, version)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, v.version FROM v
ON CONFLICT (id) DO UPDATE SET version = excluded.version WHERE api_keys.digest = excluded.digest RETURNING id;

-- name: replace
-- Changes a key that nobody changed meanwhile.
WITH v AS (INSERT INTO meta AS m (name, value) VALUES ('api_keys', '1')
  ON CONFLICT (name) DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING value::bigint AS version)
UPDATE api_keys SET owner = $2, name = $3, scopes = $4, profile = $5, models = $6, limits = $7, acts_for = $8,
  expires_at = $9, revoked_at = $10, version = v.version FROM v WHERE id = $1 AND api_keys.version = $11 RETURNING id;

-- name: find
-- One key.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys WHERE id = $1;

-- name: page
-- A page of keys, the newest first.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys
WHERE $2 = '' OR (created_at, id) < (SELECT created_at, id FROM api_keys WHERE id = $2) ORDER BY created_at DESC, id DESC LIMIT $1;

-- name: since
-- The keys that changed after a version.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at, version FROM api_keys WHERE version > $1 ORDER BY version, id;

-- name: count
-- How many keys there are.
SELECT count(*) FROM api_keys;

-- name: used
-- When keys were last used.
UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, u.at) FROM unnest($1::text[], $2::bigint[]) u(id, at) WHERE k.id = u.id;

-- name: add_audit
-- Entries of the audit log, but those that are there already. Their numbers go up in the order of the lists.
INSERT INTO audit_log (at, owner, key, action, object, result, remote, detail, id)
SELECT at, owner, key, action, object, result, remote, detail, id FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[],
  $5::text[], $6::text[], $7::text[], $8::text[], $9::text[]) WITH ORDINALITY
  AS e (at, owner, key, action, object, result, remote, detail, id, place) ORDER BY place
ON CONFLICT DO NOTHING;

-- name: audit_down
-- A page of the audit log, the newest first. Empty texts match everything.
SELECT at, owner, key, action, object, result, remote, detail, n FROM audit_log
WHERE n > $2 AND ($3::bigint = 0 OR n < $3) AND ($4::text = '' OR owner = $4) AND ($5::text = '' OR key = $5)
  AND ($6::text = '' OR action = $6 OR starts_with(action, $6 || '.')) AND ($7::text = '' OR object = $7)
ORDER BY n DESC LIMIT $1;

-- name: audit_up
-- The same, the oldest first.
SELECT at, owner, key, action, object, result, remote, detail, n FROM audit_log
WHERE n > $2 AND ($3::bigint = 0 OR n < $3) AND ($4::text = '' OR owner = $4) AND ($5::text = '' OR key = $5)
  AND ($6::text = '' OR action = $6 OR starts_with(action, $6 || '.')) AND ($7::text = '' OR object = $7)
ORDER BY n LIMIT $1;

-- name: audit_first_kept
-- The first entry that stays: young enough, and among the newest.
SELECT greatest(COALESCE((SELECT n FROM audit_log WHERE at >= $1 ORDER BY n LIMIT 1), (SELECT MAX(n) + 1 FROM audit_log), 0),
  COALESCE((SELECT n FROM audit_log ORDER BY n DESC LIMIT 1 OFFSET $2), -1) + 1);

-- name: trim_audit
-- Deletes the oldest entries, some at a time.
DELETE FROM audit_log WHERE n IN (SELECT n FROM audit_log WHERE n < $1 ORDER BY n LIMIT $2) RETURNING n;

-- name: server
-- The version of the server.
SELECT current_setting('server_version_num');

-- name: has_versions
-- Whether there is a schema at all.
SELECT to_regclass('schema_versions') IS NOT NULL;

-- name: no_timeouts
-- Lifts the timeouts of the role: a migration takes as long as it takes.
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true);

-- name: lock
-- One process at a time migrates.
SELECT pg_advisory_xact_lock(hashtextextended('ninelives schema', 0));

-- name: create_versions
-- The migrations that were applied, and when.
CREATE TABLE IF NOT EXISTS schema_versions (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());

-- name: version
-- The last of them.
SELECT COALESCE(max(version), 0) FROM schema_versions;

-- name: applied
-- Records a migration.
INSERT INTO schema_versions (version) VALUES ($1);

-- name: format
-- The format of the events (R18).
SELECT value FROM meta WHERE name = 'format';

-- name: set_format
-- Write it down before events of this format are added.
INSERT INTO meta (name, value) VALUES ('format', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: synchronous_commit
-- Whether a commit is on disk when it is confirmed.
SHOW synchronous_commit;

-- name: free
-- How many connections this role can still open in this database. It is a snapshot: others connect at the same time.
SELECT LEAST(
  current_setting('max_connections')::bigint - (SELECT sum(numbackends) FROM pg_stat_database)
    - CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::bigint END,
  CASE WHEN d.datconnlimit < 0 THEN 1000000 ELSE d.datconnlimit - (SELECT numbackends FROM pg_stat_database WHERE datid = d.oid) END,
  CASE WHEN r.rolconnlimit < 0 THEN 1000000
    ELSE r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usesysid = r.oid) END)
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database();

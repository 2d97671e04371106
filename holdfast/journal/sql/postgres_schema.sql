-- name: server
-- The version of the database itself.
SELECT current_setting('server_version_num');

-- name: begun
-- Is there a schema at all?
SELECT to_regclass('schema_versions') IS NOT NULL;

-- name: patient
-- However long a migration takes, whatever is set for the role.
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true);

-- name: lock
-- One process at a time migrates.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast schema', 0));

-- name: versions
-- Which migrations were applied, and when.
CREATE TABLE IF NOT EXISTS schema_versions (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());

-- name: version
-- The last of them.
SELECT COALESCE(max(version), 0) FROM schema_versions;

-- name: applied
-- One more.
INSERT INTO schema_versions (version) VALUES ($1);

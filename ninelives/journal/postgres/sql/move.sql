-- name: describe
-- Release, durability and connection limit of a database.
SELECT 'PostgreSQL ' || current_setting('server_version') || ',', 'synchronous_commit', current_setting('synchronous_commit')
  || ', synchronous standbys', COALESCE(NULLIF(current_setting('synchronous_standby_names'), ''), 'none') || ',',
  'max_connections', current_setting('max_connections');

-- name: quiet
-- A move has no time limit, but does not wait long for the locks of others.
SELECT set_config('statement_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '0', false),
  set_config('lock_timeout', '5s', false), set_config('application_name', 'ninelives migrate', false);

-- name: lock_source
-- Nobody may write during the move, and no replica may join.
LOCK TABLE meta, runs, run_log, keys, conversations, conversation_edits, session_turns, sessions, session_texts, signals, grants,
  call_grants, usage_days, api_keys, audit_log, replicas IN SHARE MODE;

-- name: lock_target
-- Nobody else may write during the move, and no replica may join.
LOCK TABLE meta, runs, run_log, keys, conversations, conversation_edits, session_turns, sessions, session_texts, signals, grants,
  call_grants, usage_days, api_keys, audit_log, replicas IN EXCLUSIVE MODE;

-- name: alive
-- The replicas that use the database.
SELECT name, (lease_until - ninelives_now()) / 1000 + 1 AS seconds FROM replicas
WHERE NOT dead AND lease_until > ninelives_now() ORDER BY name;

-- name: full
-- Whether the database has anything that a move would mix with.
SELECT EXISTS (SELECT FROM runs) OR EXISTS (SELECT FROM keys) OR EXISTS (SELECT FROM conversations)
  OR EXISTS (SELECT FROM session_turns) OR EXISTS (SELECT FROM sessions) OR EXISTS (SELECT FROM call_grants)
  OR EXISTS (SELECT FROM usage_days) OR EXISTS (SELECT FROM api_keys);

-- name: secret
-- The secret of this database.
SELECT value FROM meta WHERE name = 'secret';

-- name: runs
-- All runs and tombstones, oldest first.
SELECT owner, id, dialect, model, status, attempt, parked, ended, chains, hidden, last_seq, created_at, updated_at, used_at,
  session, conversation, previous, idem, metadata, turn, fingerprint, credential, waits, lost_at, pinned, kept,
  resend_ms, delivered_at > 0, entry, listed
FROM runs ORDER BY n;

-- name: log
-- The log of a run.
SELECT first_seq, last_seq, crc_before, crc_after, data FROM run_log WHERE owner = $1 AND run = $2 ORDER BY first_seq;

-- name: keys
-- All idempotency keys.
SELECT owner, key, fingerprint, run FROM keys ORDER BY owner, key;

-- name: conversations
-- All conversations.
SELECT owner, id, name, latest, active, created_at, metadata FROM conversations ORDER BY owner, id;

-- name: edits
-- All edits of conversations.
SELECT owner, conversation, run, removed, turn FROM conversation_edits ORDER BY owner, conversation, run;

-- name: turns
-- All turns of named sessions.
SELECT owner, session, n, at, run, turn, listed FROM session_turns ORDER BY owner, session, n;

-- name: sessions
-- All listed sessions.
SELECT owner, id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens, output_tokens,
  created_at, used_at FROM sessions ORDER BY owner, id;

-- name: texts
-- All texts that a search finds.
SELECT owner, entry, run, mark_all, mark_user, text FROM session_texts ORDER BY owner, entry, run, id;

-- name: wishes
-- All pending signals.
SELECT owner, run, kind, key, payload FROM signals ORDER BY run, kind, key;

-- name: grants
-- All standing permissions.
SELECT owner, id, session, tool, arguments, at, given_by FROM call_grants ORDER BY owner, id;

-- name: usage
-- What was spent, by day.
SELECT owner, day, model, key, runs, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost, errors
FROM usage_days ORDER BY owner, day, model, key;

-- name: api_keys
-- All API keys.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at FROM api_keys ORDER BY id;

-- name: audit
-- The audit log.
SELECT at, owner, key, action, object, result, remote, detail, id FROM audit_log ORDER BY n;

-- name: put_secret
-- Replaces the secret. A database without runs has never used its own.
INSERT INTO meta (name, value) VALUES ('secret', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: analyze
-- Updates the planner's statistics after the move.
ANALYZE runs, run_log, keys, conversations, session_turns, sessions, session_texts;

-- name: transaction
-- The number of this transaction; `fate` takes it.
SELECT pg_current_xact_id()::text;

-- name: fate
-- What became of a transaction.
SELECT pg_xact_status($1::text::xid8);

-- name: end_backend
-- Ends a connection of a move that broke on this side only.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND application_name = 'ninelives migrate';

-- name: retire
-- Marks the store as moved, so that no server uses it by mistake.
INSERT INTO meta (name, value) VALUES ('moved', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: has_meta
-- Whether this database has a store.
SELECT to_regclass('meta') IS NOT NULL;

-- name: moved
-- When the store was moved.
SELECT value FROM meta WHERE name = 'moved';

-- name: loose_ends
-- References that lead nowhere, one sentence per row.
SELECT 'conversation ' || c.id || ': its active run ' || c.active || ' is not active' FROM conversations c
WHERE c.active IS NOT NULL AND NOT EXISTS (SELECT FROM runs r WHERE r.owner = c.owner AND r.id = c.active AND NOT r.ended)
UNION ALL
SELECT 'conversation ' || c.id || ': its latest run ' || c.latest || ' does not exist' FROM conversations c
WHERE c.latest IS NOT NULL AND NOT EXISTS (SELECT FROM runs r WHERE r.owner = c.owner AND r.id = c.latest AND r.hidden = 0)
UNION ALL
SELECT 'an idempotency key names the run ' || k.run || ', which does not exist' FROM keys k
WHERE NOT EXISTS (SELECT FROM runs r WHERE r.owner = k.owner AND r.id = k.run AND r.hidden = 0)
UNION ALL
SELECT 'run ' || r.id || ' follows ' || r.previous || ', whose turn is missing' FROM runs r
WHERE r.hidden = 0 AND r.previous IS NOT NULL
  AND NOT EXISTS (SELECT FROM runs p WHERE p.owner = r.owner AND p.id = r.previous AND p.turn IS NOT NULL)
UNION ALL
SELECT 'items were removed from the conversation ' || e.conversation || ', which does not exist' FROM conversation_edits e
WHERE NOT EXISTS (SELECT FROM conversations c WHERE c.owner = e.owner AND c.id = e.conversation)
UNION ALL
SELECT 'there is a log of the run ' || l.run || ', which does not exist' FROM run_log l
WHERE NOT EXISTS (SELECT FROM runs r WHERE r.owner = l.owner AND r.id = l.run AND r.hidden = 0) GROUP BY l.run;

-- name: count
-- The number of runs.
SELECT count(*) FROM runs WHERE hidden = 0;

-- name: size
-- The size of the store.
SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
WHERE c.oid IN ('runs'::regclass, 'run_log'::regclass, 'keys'::regclass, 'conversations'::regclass, 'session_turns'::regclass, 'session_texts'::regclass);

-- name: runs
-- All runs and tombstones, oldest first; the last three columns locate the log.
SELECT owner, id, dialect, model, status, attempt, parked, ended, chains, hidden, last_seq, created_at, updated_at, used_at,
  session, conversation, previous, idem, metadata, turn, fingerprint, credential, waits, lost_at, pinned,
  kept, resend_ms, delivered > 0, entry, listed, n, sealed_seq, sealed_crc FROM runs ORDER BY n;

-- name: keys
-- All idempotency keys.
SELECT owner, key, fingerprint, run FROM keys ORDER BY owner, key;

-- name: conversations
-- All conversations.
SELECT owner, id, name, latest, active, created_at, metadata FROM conversations ORDER BY owner, id;

-- name: edits
-- All items removed from conversations.
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

-- name: signals
-- All pending signals.
SELECT owner, run, kind, key, payload FROM signals ORDER BY run, kind, key;

-- name: grants
-- All standing permissions.
SELECT owner, id, session, tool, arguments, at, given_by FROM call_grants ORDER BY owner, id;

-- name: api_keys
-- All API keys.
SELECT id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by, created_at,
  last_used_at FROM api_keys ORDER BY id;

-- name: audit
-- The audit log.
SELECT at, owner, key, action, object, result, remote, detail, id FROM audit_log ORDER BY n;

-- name: put_run
-- A run from another store; its log follows.
INSERT INTO runs (owner, id, dialect, model, status, attempt, parked, ended, chains, hidden, last_seq, created_at,
  updated_at, used_at, session, conversation, previous, idem, metadata, turn, fingerprint, credential, waits, lost_at,
  pinned, kept, resend_ms, delivered, entry, listed, sealed_seq, sealed_crc, bytes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25,
  ?26, ?27, CASE WHEN ?28 THEN MAX(1, ?13) ELSE 0 END, ?29, ?30, ?31, ?32, ?33) RETURNING n;

-- name: put_key
-- An idempotency key.
INSERT INTO keys (owner, key, fingerprint, run) VALUES (?, ?, ?, ?);

-- name: put_conversation
-- A conversation.
INSERT INTO conversations (owner, id, name, latest, active, created_at, metadata) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_edit
-- Items removed from a conversation.
INSERT INTO conversation_edits (owner, conversation, run, removed, turn) VALUES (?, ?, ?, ?, ?);

-- name: put_turn
-- A turn of a named session.
INSERT INTO session_turns (owner, session, n, at, run, turn, listed) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_session
-- A listed session.
INSERT INTO sessions (owner, id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens,
  output_tokens, created_at, used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_text
-- A text that a search finds.
INSERT INTO session_texts (owner, entry, run, mark_all, mark_user, text) VALUES (?, ?, ?, ?, ?, ?);

-- name: put_signal
-- A signal.
INSERT INTO signals (owner, run, kind, key, payload) VALUES (?, ?, ?, ?, ?);

-- name: put_grant
-- A standing permission.
INSERT INTO call_grants (owner, id, session, tool, arguments, at, given_by) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_usage
-- What was spent on a day.
INSERT INTO usage_days (owner, day, model, key, runs, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost,
  errors) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: usage
-- What was spent, by day.
SELECT owner, day, model, key, runs, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost, errors
FROM usage_days ORDER BY owner, day, model, key;

-- name: put_api_key
-- An API key.
INSERT INTO api_keys (id, digest, owner, name, scopes, profile, models, limits, acts_for, expires_at, revoked_at, created_by,
  created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_audit
-- An entry of the audit log.
INSERT INTO audit_log (at, owner, key, action, object, result, remote, detail, id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

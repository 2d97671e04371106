-- name: lost
-- A part of `found` and `insert_run`: the newest run that the same request joins, and the process at which its caller
-- waited, where no loss is recorded. That is a run
--   - whose caller was lost, as long as it may be joined,
--   - whose caller waits at a process that is gone, or
--   - whose caller waits at any other process, where the SDK says that it retries ($3 is its API key, else NULL).
-- A free session lock shows that a process is gone before anybody has noticed. The lock is taken shared, so that others
-- can look at the same moment. It is ignored for one lease after a start of the database. All ages go by the clock of
-- the database, because another machine recorded the loss.
WITH waited AS MATERIALIZED (
  SELECT id, n, waiter, COALESCE(credential = $3::text, false) AS retried FROM runs
  WHERE owner = $1::text AND fingerprint = $2::text AND waits AND waiter != $4::text AND hidden = 0
), beating AS MATERIALIZED (
  SELECT p.holder, CASE WHEN $5::boolean
    AND ninelives_now() > extract(epoch FROM pg_postmaster_start_time()) * 1000 + $6::bigint THEN p.lock_key END AS lock_key
  FROM replicas p WHERE p.holder IN (SELECT waiter FROM waited WHERE NOT retried) AND NOT p.dead
    AND p.lease_until > ninelives_now()
), there AS MATERIALIZED (
  SELECT holder FROM beating WHERE CASE WHEN lock_key IS NULL THEN true
    ELSE NOT pg_try_advisory_xact_lock_shared(lock_key) END
)
SELECT id, waiter FROM (
  SELECT id, n, NULL::text AS waiter FROM runs WHERE owner = $1::text AND fingerprint = $2::text AND lost_at > 0
    AND lost_at + resend_ms >= ninelives_now() AND hidden = 0
  UNION ALL
  SELECT id, n, waiter FROM waited w WHERE retried OR NOT EXISTS (SELECT FROM there t WHERE t.holder = w.waiter)
) joinable ORDER BY n DESC LIMIT 1;

-- name: found
-- All that a request finds: its own run (from a try whose answer was lost), its key, the run before it, the length of
-- its session, and the newest run that it joins. A run that is not stored is never the one before.
SELECT
  EXISTS (SELECT FROM runs WHERE id = $7) AS own,
  (SELECT ROW(run, fingerprint) FROM keys WHERE owner = $1 AND key = $8) AS key,
  (SELECT ROW(chains, session, hidden) FROM runs
    WHERE owner = $1 AND id = $9 AND hidden != 1 AND kept = 'stored') AS previous,
  (SELECT count(*) FROM session_turns WHERE owner = $1 AND session = $10) AS turns,
  (SELECT ROW(id, waiter) FROM ({lost}) AS l) AS lost;

-- name: conversation
-- Finds a conversation by id or name.
SELECT id, latest, active FROM conversations WHERE owner = $1 AND (id = $2 OR name = $2);

-- name: conversation_locked
-- The same, with a lock on the row.
SELECT id, latest, active FROM conversations WHERE owner = $1 AND (id = $2 OR name = $2) FOR UPDATE;

-- name: lock_session
-- Of two requests that want a session to themselves, the second waits until the first is decided.
SELECT pg_advisory_xact_lock(hashtextextended($1::text || ' ' || $2::text, 0));

-- name: session_active
-- The newest run of a session that has not ended.
SELECT id FROM runs WHERE owner = $1 AND session = $2 AND NOT ended AND hidden = 0 AND kept IN ('stored', 'hours')
ORDER BY n DESC LIMIT 1;

-- name: keep_previous
-- Locks the run that another follows, so that it is not deleted before that one exists.
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 FOR SHARE;

-- name: insert_run
-- Inserts a run with its first records, unless there is one that the request must join. $2 is NULL after a look-up.
-- Returns a row if the run was inserted.
WITH begun AS (
  INSERT INTO runs (owner, id, dialect, model, status, attempt, holder, held_until, parked, ended, chains, last_seq, bytes,
    created_at, updated_at, used_at, ended_at, session, conversation, previous, idem, metadata, turn, fingerprint,
    credential, waits, waiter, kept, resend_ms, delivered_at)
  SELECT $1::text, $7::text, $8::text, $9::text, $10::text, $11::integer, $12::text,
    CASE WHEN $12::text IS NULL THEN 0 ELSE c.now + $6::bigint END, $13::boolean, $14::boolean, $15::boolean, $16::bigint,
    $17::bigint, $18::bigint, $19::bigint, CASE WHEN $14 THEN c.now ELSE 0 END, CASE WHEN $14 THEN c.now ELSE 0 END,
    $20::text, $21::text, $22::text, $23::text, $24::bytea, $25::bytea, $26::text, $27::text, $28::boolean,
    CASE WHEN $28 THEN $4::text END, $29::text, $30::bigint, CASE WHEN $31::boolean THEN c.now ELSE 0 END
  FROM (SELECT ninelives_now() AS now) c WHERE NOT EXISTS ({lost})
  RETURNING owner, id
), log AS (
  INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  SELECT owner, id, 0, $16::bigint, $11::integer, $18::bigint, $32::bigint, $33::bigint, $34::bytea FROM begun
)
SELECT (SELECT count(pg_notify('ninelives', p)) FROM unnest($35::text[]) AS p) FROM begun;

-- name: insert_key
-- Uses an idempotency key. Returns no row where another transaction was faster.
INSERT INTO keys (owner, key, fingerprint, run) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING 1;

-- name: insert_conversation
-- Creates a conversation with its first run. Returns no row where another transaction was faster.
INSERT INTO conversations (owner, id, name, active, latest, created_at, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING 1;

-- name: take_conversation
-- Makes a run the active one, or the latest if it has already ended.
UPDATE conversations SET active = $3, latest = COALESCE($4, latest) WHERE owner = $1 AND id = $2;

-- name: wait_again
-- A retried request takes the place of the lost caller, or of one that waits at another process ($4). Of two retries
-- only one gets it. The run waits for its caller no longer: if nobody holds it, somebody should claim it.
WITH taken AS (
  UPDATE runs SET waits = true, lost_at = 0, waiter = $3, credential = $5,
    wake_at = CASE WHEN asks = '' THEN 0 ELSE wake_at END
  WHERE owner = $1 AND id = $2 AND (lost_at > 0 OR (waits AND waiter = $4)) RETURNING holder, ended
)
SELECT CASE WHEN holder IS NULL AND NOT ended THEN pg_notify('ninelives', $6)::text END FROM taken;

-- name: joined
-- The run in which an earlier try of the same call took the place of a lost caller. Its answer was lost.
SELECT id FROM runs WHERE id = ANY ($1::text[]) AND waits AND waiter = $2 LIMIT 1;

-- name: retake
-- An opening that is tried again finds its own run. If nobody has claimed it meanwhile, its opener holds it again and
-- its caller waits again, as if it had just been opened.
UPDATE runs SET holder = CASE WHEN ended THEN NULL ELSE $2::text END,
  held_until = CASE WHEN $2::text IS NULL THEN 0 ELSE ninelives_now() + $4::bigint END,
  parked = $2::text IS NULL, status = CASE WHEN ended OR $2::text IS NULL THEN status ELSE 'running' END,
  waits = credential != '' AND delivered_at = 0, lost_at = 0, waiter = CASE WHEN credential != '' THEN $5::text END
WHERE id = $1 AND attempt = $3 AND ended = $6 AND (holder IS NULL OR holder = $2) RETURNING 1;

-- name: first_records
-- The first records of a run, where the answer to its opening was lost.
SELECT data FROM run_log WHERE owner = $1 AND run = $2 AND first_seq = 0;

-- name: unclaimed
-- A part of `claim_look`, `claimable` and `queued`: the runs that nobody holds (r). A run that is kept until delivery
-- and whose caller is lost waits for the same request: it is left out until the time for that is over, unless a
-- question is open or a signal is pending (s.wished). $1 is this process: it knows that its own callers wait. Another
-- process must have beaten since the run is free: it may have died in the same moment as the holder.
FROM (SELECT ninelives_now() AS now) c CROSS JOIN runs r LEFT JOIN replicas p ON p.holder = r.holder
  LEFT JOIN replicas w ON r.waits AND w.holder = r.waiter AND (w.holder = $1 OR (NOT w.dead AND w.lease_until > c.now
    AND w.beat_at >= CASE WHEN p.holder IS NULL THEN 0 WHEN p.dead THEN p.beat_at
      WHEN p.since < r.held_until THEN greatest(p.lease_until, r.held_until) ELSE p.since END))
  CROSS JOIN LATERAL (SELECT EXISTS (
    SELECT FROM signals s WHERE s.run = r.id AND (s.kind IN ('cancel', 'interrupt') OR (s.kind = 'approval' AND s.key = r.asks))) AS wished) s
WHERE NOT r.ended AND (r.holder IS NULL OR COALESCE(p.dead, false)
    OR NOT (r.held_until > c.now OR (COALESCE(p.lease_until, 0) > c.now AND p.since < r.held_until)))
  AND (s.wished OR NOT (r.kept = 'delivery' AND r.asks = '' AND CASE WHEN r.waits THEN w.holder IS NULL
    ELSE r.lost_at > 0 AND r.lost_at + r.resend_ms > c.now END));

-- name: claim_look
-- Locks a run that nobody holds, with the end of its log. Skips a run that another transaction has locked.
SELECT r.owner, r.attempt, r.parked, r.told_seq, (r.wake_at > 0 AND r.wake_at <= c.now) OR (r.kept = 'delivery' AND NOT r.waits
    AND r.lost_at > 0 AND r.asks = '' AND r.lost_at + r.resend_ms <= c.now) AS overdue,
  (SELECT ROW(last_seq, crc_after) FROM run_log WHERE owner = r.owner AND run = $2 ORDER BY first_seq DESC LIMIT 1) AS last,
  (SELECT COALESCE(sum(octet_length(data)), 0) FROM run_log WHERE owner = r.owner AND run = $2)::bigint AS bytes
{unclaimed} AND r.id = $2 FOR UPDATE OF r SKIP LOCKED;

-- name: claim_mine
-- The run and the end of its log, where this attempt holds it: a claim whose answer was lost.
SELECT r.owner, r.attempt, l.first_seq, l.crc_before, l.crc_after, l.at, l.data,
  (SELECT COALESCE(sum(octet_length(data)), 0) FROM run_log WHERE owner = r.owner AND run = $1)::bigint AS bytes
FROM runs r
CROSS JOIN LATERAL (SELECT * FROM run_log WHERE owner = r.owner AND run = $1 ORDER BY first_seq DESC LIMIT 1) l
WHERE r.id = $1 AND r.holder = $2 AND r.attempt = $3 AND NOT r.ended;

-- name: log_end
-- The end of a run's log.
SELECT last_seq, crc_after FROM run_log WHERE owner = $1 AND run = $2 ORDER BY first_seq DESC LIMIT 1;

-- name: claim_run
-- Starts a new attempt if its record is the next of the log. The old holder may have been faster.
WITH marker AS (
  INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  VALUES ($11, $1, $2, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING 1
), taken AS (
  UPDATE runs SET attempt = $3, parked = false, status = 'running', last_seq = $2, updated_at = $4, holder = $8,
    held_until = ninelives_now() + $9::bigint, wake_at = 0, asks = '', told_seq = 0
  WHERE owner = $11 AND id = $1 AND EXISTS (SELECT FROM marker)
)
SELECT pg_notify('ninelives', $10) FROM marker;

-- name: give_back
-- Releases runs whose opening or claim had no answer: their holder does not work on them.
UPDATE runs r SET holder = NULL, held_until = 0, parked = true, status = 'queued'
FROM unnest($1::text[], $2::int[]) AS d (run, attempt)
WHERE r.id = d.run AND r.attempt = d.attempt AND r.holder = $3 AND NOT r.ended RETURNING r.id;

-- name: lose_begun
-- Marks callers as lost who were told of a failure although their run exists.
UPDATE runs SET waits = false, lost_at = ninelives_now(), waiter = '' WHERE id = ANY ($1::text[]) AND waits AND waiter = $2 RETURNING id;

-- name: insert_signal
-- Leaves a signal and notifies the holder, or everybody where nobody holds the run.
WITH r AS (
  SELECT id, owner, holder FROM runs WHERE owner = $1 AND id = $2 AND NOT ended AND hidden = 0 FOR SHARE
), kept AS (
  INSERT INTO signals (owner, run, kind, key, payload) SELECT owner, id, $3, $4, $5 FROM r ON CONFLICT DO NOTHING
)
SELECT holder IS NULL AS free, pg_notify('ninelives', CASE WHEN holder IS NULL THEN $7 ELSE $6 END) FROM r;

-- name: signals
-- The pending signals of a run.
SELECT s.run, s.kind, s.key, s.payload FROM signals s JOIN runs r ON r.id = s.run AND (NOT r.ended OR s.kind = 'steer')
WHERE s.run = $1 ORDER BY s.kind, s.key;

-- name: conversation_of
-- The conversation of a run, before either is locked.
SELECT conversation FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0;

-- name: lock_conversation
-- Locks a conversation. It is always locked before its runs.
SELECT 1 FROM conversations WHERE owner = $1 AND id = $2 FOR UPDATE;

-- name: run_for_delete
-- Locks a run, and returns the references that its deletion must clean up.
SELECT previous, idem, entry FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 FOR UPDATE;

-- name: hide_run
-- Turns a run into a tombstone. The row stays, so that an old holder cannot bring the run back and descendants have its
-- turn.
UPDATE runs SET hidden = $3, ended = true, status = 'deleted', holder = NULL, idem = NULL, metadata = '{}',
  updated_at = $2, waits = false, lost_at = 0, wake_at = 0, asks = '', bytes = COALESCE(octet_length(turn), 0) WHERE id = $1;

-- name: delete_log
-- Deletes the log of a run.
DELETE FROM run_log WHERE owner = $1 AND run = $2;

-- name: drop_signals
-- Deletes the pending signals of a run.
DELETE FROM signals WHERE run = $1;

-- name: delete_key
-- Frees an idempotency key.
DELETE FROM keys WHERE owner = $1 AND key = $2;

-- name: forget
-- Deletes ended runs that are not stored: rows, logs, signals and keys. No tombstones: nothing follows them, and nobody
-- writes to them any more.
WITH gone AS (
  DELETE FROM runs USING unnest($1::text[], $2::text[]) AS g (owner, id)
  WHERE runs.owner = g.owner AND runs.id = g.id AND runs.ended AND runs.kept != 'stored'
  RETURNING runs.owner, runs.id, runs.idem, runs.entry
), records AS (
  DELETE FROM run_log USING gone WHERE run_log.owner = gone.owner AND run_log.run = gone.id
), quiet AS (
  DELETE FROM signals USING gone WHERE signals.run = gone.id
), freed AS (
  DELETE FROM keys USING gone WHERE keys.owner = gone.owner AND keys.key = gone.idem AND keys.run = gone.id
)
SELECT owner, id, entry FROM gone;

-- name: hidden_run
-- Whether the run was deleted, by a call whose answer was lost.
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 1;

-- name: ancestor
-- One step back in a chain.
SELECT previous, hidden FROM runs WHERE owner = $1 AND id = $2;

-- name: move_latest
-- Removes a deleted run from its conversation.
UPDATE conversations SET active = CASE WHEN active = $3 THEN NULL ELSE active END,
  latest = CASE WHEN latest = $3 THEN $4 ELSE latest END WHERE owner = $1 AND id = $2;

-- name: notify
-- Notifies other processes.
SELECT pg_notify('ninelives', $1);

-- name: find
-- One run of an owner.
SELECT owner, id AS run, dialect, model, status, ended, created_at, updated_at, session, conversation, previous,
  idem AS key, metadata, last_seq, kept FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0;

-- name: rows_down
-- A page of runs, newest first.
SELECT owner, id AS run, dialect, model, status, ended, created_at, updated_at, session, conversation, previous,
  idem AS key, metadata, last_seq, kept FROM runs
WHERE owner = $1 AND hidden = 0 AND ($2::text IS NULL OR dialect = $2) AND ($7::text IS NULL OR dialect != $7)
  AND ($3::text[] = '{}' OR status = ANY ($3)) AND (NOT $8::boolean OR kept = 'stored')
  AND ($4::text IS NULL OR idem = $4) AND ($5::text IS NULL OR n < (SELECT n FROM runs WHERE owner = $1 AND id = $5))
ORDER BY n DESC LIMIT $6;

-- name: rows_of_all
-- A page of the runs of all owners, newest first. $1 is not used: the places are those of rows_down.
SELECT owner, id AS run, dialect, model, status, ended, created_at, updated_at, session, conversation, previous,
  idem AS key, metadata, last_seq, kept FROM runs
WHERE $1::text IS NULL AND hidden = 0 AND ($2::text IS NULL OR dialect = $2) AND ($7::text IS NULL OR dialect != $7)
  AND ($3::text[] = '{}' OR status = ANY ($3)) AND (NOT $8::boolean OR kept = 'stored')
  AND ($4::text IS NULL OR idem = $4) AND ($5::text IS NULL OR n < (SELECT n FROM runs WHERE id = $5))
ORDER BY n DESC LIMIT $6;

-- name: rows_open
-- A page of runs that have not ended, of one owner or of all, newest first. By the index of open runs: there are few.
SELECT owner, id AS run, dialect, model, status, ended, created_at, updated_at, session, conversation, previous,
  idem AS key, metadata, last_seq, kept FROM runs
WHERE NOT ended AND hidden = 0 AND ($1::text IS NULL OR owner = $1) AND ($2::text IS NULL OR dialect = $2)
  AND ($7::text IS NULL OR dialect != $7) AND status = ANY ($3::text[]) AND (NOT $8::boolean OR kept = 'stored')
  AND ($4::text IS NULL OR idem = $4)
  AND ($5::text IS NULL OR n < (SELECT n FROM runs WHERE id = $5 AND ($1::text IS NULL OR owner = $1)))
ORDER BY n DESC LIMIT $6;

-- name: owner_of
-- Whose run this is.
SELECT owner FROM runs WHERE id = $1 AND hidden = 0;

-- name: rows_up
-- A page of runs, oldest first.
SELECT owner, id AS run, dialect, model, status, ended, created_at, updated_at, session, conversation, previous,
  idem AS key, metadata, last_seq, kept FROM runs
WHERE owner = $1 AND hidden = 0 AND ($2::text IS NULL OR dialect = $2) AND ($7::text IS NULL OR dialect != $7)
  AND ($3::text[] = '{}' OR status = ANY ($3)) AND (NOT $8::boolean OR kept = 'stored')
  AND ($4::text IS NULL OR idem = $4) AND ($5::text IS NULL OR n > (SELECT n FROM runs WHERE owner = $1 AND id = $5))
ORDER BY n ASC LIMIT $6;

-- name: chain
-- The turns of a chain, oldest first, including those of deleted ancestors. In a conversation: as edited there.
WITH RECURSIVE line (id, previous, turn, depth) AS (
  SELECT id, previous, turn, 0 FROM runs WHERE owner = $1 AND id = $2
  UNION ALL
  SELECT runs.id, runs.previous, runs.turn, line.depth + 1 FROM line
  JOIN runs ON runs.owner = $1 AND runs.id = line.previous
)
SELECT line.id, line.previous, COALESCE(edits.turn, line.turn) AS turn FROM line
LEFT JOIN conversation_edits AS edits ON edits.owner = $1 AND edits.conversation = $3 AND edits.run = line.id
ORDER BY depth DESC;

-- name: session
-- The first turns of a session, oldest first.
SELECT n, turn FROM session_turns WHERE owner = $1 AND session = $2 ORDER BY n LIMIT $3;

-- name: add_turn
-- Adds a turn to a session. Of two at once, one fails on the primary key and is retried.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT $1, $2, 1 + COALESCE(max(n), 0), $3, $4, $5 FROM session_turns WHERE owner = $1 AND session = $2;

-- name: claimable
-- Runs that somebody should claim. Those with a signal come first. Then owners take turns (journal/fair.py): weights are in
-- $3 and $4, debts in $5 and $6. A parked run waits for its time, unless the signal
-- is for it. Only the first runs of each owner are looked at, by an index: a long queue costs no more than a short one.
WITH RECURSIVE owners (owner) AS (
  (SELECT owner FROM runs WHERE NOT ended ORDER BY owner LIMIT 1)
  UNION ALL
  SELECT (SELECT n.owner FROM runs n WHERE NOT n.ended AND n.owner > o.owner ORDER BY n.owner LIMIT 1)
  FROM owners o WHERE o.owner IS NOT NULL
), wished AS (
  SELECT r.owner, r.id, r.n {unclaimed} AND s.wished AND r.id IN (SELECT run FROM signals)
), line AS (
  SELECT f.owner, f.id, f.n, row_number() OVER (PARTITION BY f.owner ORDER BY f.n) AS place
  FROM owners o CROSS JOIN LATERAL (
    SELECT r.owner, r.id, r.n {unclaimed} AND r.owner = o.owner AND r.wake_at <= c.now AND NOT s.wished ORDER BY r.n LIMIT $2
  ) f
), held AS (
  SELECT owner, count(*) AS runs FROM runs WHERE NOT ended AND holder IS NOT NULL GROUP BY owner
)
SELECT owner, id FROM (
  SELECT owner, id, n, 0::float8 AS turn, true AS first FROM wished
  UNION ALL
  SELECT l.owner, l.id, l.n, (COALESCE(h.runs, 0) + l.place - 1)::float8 / COALESCE(w.weight, 1) + COALESCE(d.debt, 0), false
  FROM line l LEFT JOIN held h ON h.owner = l.owner
    LEFT JOIN unnest($3::text[], $4::integer[]) AS w (owner, weight) ON w.owner = l.owner
    LEFT JOIN unnest($5::text[], $6::float8[]) AS d (owner, debt) ON d.owner = l.owner
) free ORDER BY NOT first, turn, n LIMIT $2;

-- name: queued
-- How many runs wait to be claimed.
SELECT count(*) {unclaimed} AND (r.wake_at <= c.now OR s.wished);

-- name: asking
-- The run that asks a question.
SELECT id FROM runs WHERE owner = $1 AND asks = $2 AND asks != '' AND hidden = 0 ORDER BY n DESC LIMIT 1;

-- name: annotate
-- Replaces the metadata of a run.
UPDATE runs SET metadata = $3 WHERE owner = $1 AND id = $2 AND hidden = 0 RETURNING 1;

-- name: grant
-- Lets one call run without approval.
INSERT INTO call_grants (owner, id, session, tool, arguments, at, given_by) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING;

-- name: trim_grants
-- Deletes all but the newest permissions of an owner.
DELETE FROM call_grants WHERE owner = $1 AND id IN (
  SELECT id FROM call_grants WHERE owner = $1 ORDER BY at DESC, id OFFSET $2);

-- name: granted
-- Whether a call may run without approval.
SELECT 1 FROM call_grants WHERE owner = $1 AND id = ANY($2::text[]) LIMIT 1;

-- name: grants
-- The permissions of an owner, the newest first.
SELECT owner, id, session, tool, arguments, at, given_by FROM call_grants WHERE owner = $1 ORDER BY at DESC, id;

-- name: revoke
-- Takes a permission back.
DELETE FROM call_grants WHERE owner = $1 AND id = $2 RETURNING id;

-- name: now
-- The time by which things expire.
SELECT ninelives_now();

-- name: secret
-- The secret of this database.
SELECT value FROM meta WHERE name = 'secret';

-- name: make_secret
-- Creates the secret, if there is none.
INSERT INTO meta (name, value) VALUES ('secret', $1) ON CONFLICT DO NOTHING;

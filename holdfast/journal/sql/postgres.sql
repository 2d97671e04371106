-- name: found
-- All that a question finds: its own run (a lost answer), a key, a run before it, a session's length, a lost place. Where
-- no loss was noted, the newest place at a process that is not there, though nobody has noticed yet: also by its session
-- lock, which is shared so that others may look at the same moment; not while a start of the database has freed all locks.
-- How long ago a place was lost goes by the database's clock: it was noted by another machine.
SELECT
  EXISTS (SELECT FROM runs WHERE id = $2) AS own,
  (SELECT ROW(run, fingerprint) FROM keys WHERE owner = $1 AND key = $3) AS key,
  (SELECT ROW(chains, session, hidden) FROM runs WHERE owner = $1 AND id = $4 AND hidden != 1) AS previous,
  (SELECT count(*) FROM session_turns WHERE owner = $1 AND session = $5) AS turns,
  COALESCE((
    SELECT ROW(id, NULL::text) FROM runs WHERE owner = $1 AND fingerprint = $6 AND lost_at > 0 AND lost_at >= holdfast_now() - $7::bigint
      AND hidden = 0 AND ($8::text IS NULL OR credential = $8) AND ($9::text IS NULL OR session = $9)
    ORDER BY n DESC LIMIT 1
  ), (
    WITH waited AS MATERIALIZED (
      SELECT id, n, waiter FROM runs WHERE owner = $1 AND fingerprint = $6 AND waits AND waiter != $10 AND hidden = 0
        AND ($8::text IS NULL OR credential = $8) AND ($9::text IS NULL OR session = $9)
    ), beating AS MATERIALIZED (
      SELECT p.holder, CASE WHEN $11
        AND holdfast_now() > extract(epoch FROM pg_postmaster_start_time()) * 1000 + $12::bigint THEN p.lock_key END AS lock_key
      FROM replicas p WHERE p.holder IN (SELECT waiter FROM waited) AND NOT p.dead AND p.lease_until > holdfast_now()
    ), there AS MATERIALIZED (
      SELECT holder FROM beating WHERE CASE WHEN lock_key IS NULL THEN true
        ELSE NOT pg_try_advisory_xact_lock_shared(lock_key) END
    )
    SELECT ROW(id, waiter) FROM waited w WHERE NOT EXISTS (SELECT FROM there t WHERE t.holder = w.waiter)
    ORDER BY n DESC LIMIT 1
  )) AS lost;

-- name: conversation
-- A conversation by id or by name.
SELECT id, latest, active FROM conversations WHERE owner = $1 AND (id = $2 OR name = $2);

-- name: conversation_locked
-- The same, for the one who will change it: others wait.
SELECT id, latest, active FROM conversations WHERE owner = $1 AND (id = $2 OR name = $2) FOR UPDATE;

-- name: keep_previous
-- The run that another is to follow must not go before that one is there.
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 FOR SHARE;

-- name: insert_run
-- A run begins, with its first records.
WITH begun AS (
  INSERT INTO runs (owner, id, dialect, model, status, attempt, holder, held_until, parked, ended, chains, last_seq, bytes,
    created_at, updated_at, used_at, session, conversation, previous, idem, metadata, turn, fingerprint, credential,
    waits, waiter)
  VALUES ($1, $2, $3, $4, $5, $6, $7, CASE WHEN $7::text IS NULL THEN 0 ELSE holdfast_now() + $8::bigint END, $9, $10,
    $11, $12, $13, $14, $15, CASE WHEN $16::bigint > 0 THEN holdfast_now() ELSE 0 END, $17, $18, $19, $20, $21, $22, $23,
    $24, $25, $26)
), log AS (
  INSERT INTO run_log (run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  VALUES ($2, 0, $12, $6, $14, $27, $28, $29)
)
SELECT pg_notify('holdfast', p) FROM unnest($30::text[]) AS p;

-- name: insert_key
-- A key is used. Nothing is returned where another was faster.
INSERT INTO keys (owner, key, fingerprint, run) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING 1;

-- name: insert_conversation
-- A conversation is made by its first run. Nothing is returned where another was faster.
INSERT INTO conversations (owner, id, name, active, latest, created_at, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING 1;

-- name: take_conversation
-- A run becomes the active one, or, over at once, the latest.
UPDATE conversations SET active = $3, latest = COALESCE($4, latest) WHERE owner = $1 AND id = $2;

-- name: wait_again
-- A request that was sent again took the place of the lost one, or of one at a process that is gone ($4); of two at once
-- only one does.
UPDATE runs SET waits = true, lost_at = 0, waiter = $3
WHERE owner = $1 AND id = $2 AND (lost_at > 0 OR (waits AND waiter = $4)) RETURNING 1;

-- name: first_records
-- What a run began with, where the answer to its opening was lost.
SELECT data FROM run_log WHERE run = $1 AND first_seq = 0;

-- name: claim_look
-- A run that nobody holds: who has it in hand locks it, all others pass by. With the end of its log.
SELECT r.owner, r.attempt, r.parked, r.holder, l.last_seq, l.crc_after,
  (SELECT COALESCE(sum(octet_length(data)), 0) FROM run_log WHERE run = $1)::bigint AS bytes
FROM runs r LEFT JOIN replicas p ON p.holder = r.holder
CROSS JOIN LATERAL (SELECT last_seq, crc_after FROM run_log WHERE run = $1 ORDER BY first_seq DESC LIMIT 1) l
WHERE r.id = $1 AND NOT r.ended AND (r.holder IS NULL OR COALESCE(p.dead, false) OR NOT (r.held_until > holdfast_now()
  OR (COALESCE(p.lease_until, 0) > holdfast_now() AND p.since < r.held_until)))
FOR UPDATE OF r SKIP LOCKED;

-- name: claim_mine
-- Is it ours already, by a claim whose answer was lost?
SELECT r.owner, r.attempt, l.first_seq, l.crc_before, l.crc_after, l.at, l.data,
  (SELECT COALESCE(sum(octet_length(data)), 0) FROM run_log WHERE run = $1)::bigint AS bytes
FROM runs r
CROSS JOIN LATERAL (SELECT * FROM run_log WHERE run = $1 ORDER BY first_seq DESC LIMIT 1) l
WHERE r.id = $1 AND r.holder = $2 AND r.attempt = $3 AND NOT r.ended;

-- name: log_end
-- How far a run's log goes.
SELECT last_seq, crc_after FROM run_log WHERE run = $1 ORDER BY first_seq DESC LIMIT 1;

-- name: claim_run
-- A new attempt begins, if its record is the next of the log; a zombie may have been faster.
WITH marker AS (
  INSERT INTO run_log (run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  VALUES ($1, $2, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING 1
), taken AS (
  UPDATE runs SET attempt = $3, parked = false, status = 'running', last_seq = $2, updated_at = $4, holder = $8,
    held_until = holdfast_now() + $9::bigint, wake_at = 0 WHERE id = $1 AND EXISTS (SELECT FROM marker)
)
SELECT pg_notify('holdfast', $10) FROM marker;

-- name: give_back
-- Runs whose opening or claim was never answered: their holder does not drive them.
UPDATE runs r SET holder = NULL, held_until = 0, parked = true, status = 'queued'
FROM unnest($1::text[], $2::int[]) AS d (run, attempt)
WHERE r.id = d.run AND r.attempt = d.attempt AND r.holder = $3 AND NOT r.ended RETURNING r.id;

-- name: lose_begun
-- Runs that began though their callers were told otherwise: who waited has lost its connection.
UPDATE runs SET waits = false, lost_at = holdfast_now() WHERE id = ANY ($1::text[]) AND waits AND waiter = $2 RETURNING id;

-- name: insert_signal
-- A wish is left for the holder, who is told; a run that nobody holds is work for anybody.
WITH r AS (
  SELECT id, owner, holder FROM runs WHERE owner = $1 AND id = $2 AND NOT ended AND hidden = 0 FOR SHARE
), kept AS (
  INSERT INTO signals (owner, run, kind, key, payload) SELECT owner, id, $3, $4, $5 FROM r ON CONFLICT DO NOTHING
)
SELECT holder IS NULL AS free, pg_notify('holdfast', CASE WHEN holder IS NULL THEN $7 ELSE $6 END) FROM r;

-- name: signals
-- The wishes for one run.
SELECT s.run, s.kind, s.key, s.payload FROM signals s JOIN runs r ON r.id = s.run AND NOT r.ended
WHERE s.run = $1 ORDER BY s.kind, s.key;

-- name: talk_of
-- The conversation of a run, before either is locked.
SELECT conversation FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0;

-- name: lock_talk
-- Whoever changes a run and its conversation locks the conversation first.
SELECT 1 FROM conversations WHERE owner = $1 AND id = $2 FOR UPDATE;

-- name: run_for_delete
-- What deleting a run must clean up.
SELECT previous, idem FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 FOR UPDATE;

-- name: hide_run
-- A tombstone: the row stays so that no zombie brings the run back, and its turn for descendants.
UPDATE runs SET hidden = $3, ended = true, status = 'deleted', holder = NULL, idem = NULL, metadata = '{}',
  updated_at = $2, waits = false, lost_at = 0, bytes = COALESCE(octet_length(turn), 0) WHERE id = $1;

-- name: delete_log
-- The log of a deleted run goes.
DELETE FROM run_log WHERE run = $1;

-- name: drop_signals
-- Nobody waits for its holder any more.
DELETE FROM signals WHERE run = $1;

-- name: delete_key
-- A key is free again.
DELETE FROM keys WHERE owner = $1 AND key = $2;

-- name: hidden_run
-- Was it deleted, by a call whose answer was lost?
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 1;

-- name: ancestor
-- One step back in a chain.
SELECT previous, hidden FROM runs WHERE owner = $1 AND id = $2;

-- name: move_latest
-- The active or the latest run of a conversation was deleted.
UPDATE conversations SET active = CASE WHEN active = $3 THEN NULL ELSE active END,
  latest = CASE WHEN latest = $3 THEN $4 ELSE latest END WHERE owner = $1 AND id = $2;

-- name: ring
-- Other processes are told.
SELECT pg_notify('holdfast', $1);

-- name: find
-- One run of an owner.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0;

-- name: rows_down
-- A page of runs, newest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs
WHERE owner = $1 AND hidden = 0 AND ($2::text IS NULL OR dialect = $2) AND ($7::text IS NULL OR dialect != $7)
  AND ($3::text[] = '{}' OR status = ANY ($3))
  AND ($4::text IS NULL OR idem = $4) AND ($5::text IS NULL OR n < (SELECT n FROM runs WHERE owner = $1 AND id = $5))
ORDER BY n DESC LIMIT $6;

-- name: rows_up
-- A page of runs, oldest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs
WHERE owner = $1 AND hidden = 0 AND ($2::text IS NULL OR dialect = $2) AND ($7::text IS NULL OR dialect != $7)
  AND ($3::text[] = '{}' OR status = ANY ($3))
  AND ($4::text IS NULL OR idem = $4) AND ($5::text IS NULL OR n > (SELECT n FROM runs WHERE owner = $1 AND id = $5))
ORDER BY n ASC LIMIT $6;

-- name: chain
-- The turns of a chain, oldest first; deleted ancestors still lend theirs. In a conversation: as they were edited there.
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
SELECT turn FROM session_turns WHERE owner = $1 AND session = $2 ORDER BY n LIMIT $3;

-- name: add_turn
-- A session takes a finished turn. Of two at once one fails on the primary key and is tried again.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT $1, $2, 1 + COALESCE(max(n), 0), $3, $4, $5 FROM session_turns WHERE owner = $1 AND session = $2;

-- name: claimable
-- Runs that nobody holds, those with a signal first, then each owner's oldest, one of each owner in turn; parked ones not
-- before their time, unless the signal is for them.
SELECT owner, id FROM (
  SELECT r.owner, r.id, r.n, w.wished, row_number() OVER (PARTITION BY r.owner ORDER BY r.n) AS place
  FROM runs r LEFT JOIN replicas p ON p.holder = r.holder
    CROSS JOIN LATERAL (SELECT EXISTS (
      SELECT FROM signals s WHERE s.run = r.id AND (s.kind != 'approval' OR s.key = r.asks)) AS wished) w,
    (SELECT holdfast_now() AS now) c
  WHERE NOT r.ended AND (r.holder IS NULL OR COALESCE(p.dead, false)
      OR NOT (r.held_until > c.now OR (COALESCE(p.lease_until, 0) > c.now AND p.since < r.held_until)))
    AND (r.wake_at <= c.now OR w.wished)
) free ORDER BY NOT wished, place, n LIMIT $1;

-- name: annotate
-- The owner's own notes on a run.
UPDATE runs SET metadata = $3 WHERE owner = $1 AND id = $2 AND hidden = 0 RETURNING 1;

-- name: grant
-- A tool need not ask any more, in one session or (empty) in all.
INSERT INTO grants (owner, session, tool) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: granted
-- Is there such a permission?
SELECT 1 FROM grants WHERE owner = $1 AND session IN ($2, '') AND tool = $3 LIMIT 1;

-- name: answered
-- Nobody waits for the answer any more.
UPDATE runs SET waits = false, lost_at = 0 WHERE owner = $1 AND id = $2 AND (waits OR lost_at > 0);

-- name: lose
-- The connection on which somebody waited is gone.
UPDATE runs SET waits = false, lost_at = holdfast_now() WHERE owner = $1 AND id = $2 AND waits;

-- name: now
-- The time by which things expire.
SELECT holdfast_now();

-- name: secret
-- The secret of this database.
SELECT value FROM meta WHERE name = 'secret';

-- name: make_secret
-- It is made once, by whoever comes first.
INSERT INTO meta (name, value) VALUES ('secret', $1) ON CONFLICT DO NOTHING;

-- name: sessions
-- A page of an owner's named sessions, the one used last first.
SELECT t.session, COALESCE(n.title, ''), count(*), min(t.at), max(t.at) FROM session_turns t
LEFT JOIN session_titles n ON n.owner = t.owner AND n.session = t.session
WHERE t.owner = $1 GROUP BY t.session, n.title
HAVING $2::text IS NULL OR (max(t.at), t.session)
  < (SELECT max(at), session FROM session_turns WHERE owner = $1 AND session = $2 GROUP BY session)
ORDER BY max(t.at) DESC, t.session DESC LIMIT $3;

-- name: one_session
-- One of them.
SELECT t.session, COALESCE(n.title, ''), count(*), min(t.at), max(t.at) FROM session_turns t
LEFT JOIN session_titles n ON n.owner = t.owner AND n.session = t.session
WHERE t.owner = $1 AND t.session = $2 GROUP BY t.session, n.title;

-- name: rename_session
-- A title for a session.
INSERT INTO session_titles (owner, session, title) VALUES ($1, $2, $3)
ON CONFLICT (owner, session) DO UPDATE SET title = excluded.title;

-- name: fork_session
-- A copy of a session, as it is now, under another name.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT owner, $3, n, at, run, turn FROM session_turns WHERE owner = $1 AND session = $2 ON CONFLICT DO NOTHING;

-- name: forget_session
-- A session goes, with its turns, its title and what was granted in it.
WITH turns AS (DELETE FROM session_turns WHERE owner = $1 AND session = $2),
  titles AS (DELETE FROM session_titles WHERE owner = $1 AND session = $2)
DELETE FROM grants WHERE owner = $1 AND session = $2;

-- name: key
-- An idempotency key of an owner.
SELECT run, fingerprint FROM keys WHERE owner = ? AND key = ?;

-- name: previous
-- What a chain needs to know of a run that is not deleted; an evicted one is told apart.
SELECT chains, session, hidden FROM runs WHERE owner = ? AND id = ? AND hidden != 1;

-- name: conversation
-- A conversation by id or by name.
SELECT id, latest, active FROM conversations WHERE owner = ?1 AND (id = ?2 OR name = ?2);

-- name: session_length
-- How many turns a session has.
SELECT COUNT(*) FROM session_turns WHERE owner = ? AND session = ?;

-- name: insert_run
-- A run begins.
INSERT INTO runs (owner, id, dialect, model, status, attempt, parked, last_seq, sealed_crc, created_at, updated_at,
  session, conversation, previous, idem, metadata, fingerprint, credential, waits)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING n;

-- name: lost_run
-- The newest run of a request whose connection was lost since a time; with any credential and session, or with one.
SELECT id FROM runs WHERE owner = ?1 AND fingerprint = ?2 AND lost_at > 0 AND lost_at >= ?3 AND hidden = 0
  AND (?4 IS NULL OR credential = ?4) AND (?5 IS NULL OR session = ?5) ORDER BY n DESC LIMIT 1;

-- name: wait_again
-- A request that was sent again took the place of the lost one.
UPDATE runs SET waits = 1, lost_at = 0 WHERE owner = ? AND id = ?;

-- name: answered
-- Nobody waits for the answer any more.
UPDATE runs SET waits = 0, lost_at = 0 WHERE owner = ? AND id = ? AND (waits = 1 OR lost_at > 0);

-- name: lose
-- The connection on which somebody waited is gone.
UPDATE runs SET waits = 0, lost_at = ?3 WHERE owner = ?1 AND id = ?2 AND waits = 1;

-- name: strand
-- All connections of the server before this one are gone.
UPDATE runs SET waits = 0, lost_at = ? WHERE waits = 1;

-- name: insert_key
-- A key is used.
INSERT INTO keys (owner, key, fingerprint, run) VALUES (?, ?, ?, ?);

-- name: insert_conversation
-- A conversation is made by its first run.
INSERT INTO conversations (owner, id, name, active, created_at, metadata) VALUES (?, ?, ?, ?, ?, ?);

-- name: take_conversation
-- A run becomes the active one.
UPDATE conversations SET active = ?3 WHERE owner = ?1 AND id = ?2;

-- name: claim_run
-- A new attempt begins.
UPDATE runs SET attempt = ?2, parked = 0, status = 'running', last_seq = ?3, updated_at = ?4 WHERE n = ?1;

-- name: mark_run
-- A run is parked or ends.
UPDATE runs SET status = ?2, parked = ?3, ended = ?4, chains = ?5, last_seq = ?6, updated_at = ?7, used_at = ?7,
  turn = ?8, bytes = bytes + COALESCE(LENGTH(?8), 0) WHERE n = ?1;

-- name: free_conversation
-- The active run ended; a completed one becomes the latest.
UPDATE conversations SET active = NULL, latest = CASE WHEN ?4 THEN ?3 ELSE latest END
WHERE owner = ?1 AND id = ?2 AND active = ?3;

-- name: add_turn
-- A session takes a finished turn.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT ?1, ?2, 1 + COALESCE(MAX(n), 0), ?3, ?4, ?5 FROM session_turns WHERE owner = ?1 AND session = ?2;

-- name: drop_signals
-- A run ended: nobody waits for its holder any more.
DELETE FROM signals WHERE run = ?;

-- name: insert_signal
-- A wish is left for the holder.
INSERT INTO signals (owner, run, kind, key, payload) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: signals
-- The wishes for one run.
SELECT run, kind, key, payload FROM signals WHERE run = ? ORDER BY kind, key;

-- name: run_for_delete
-- What deleting a run must clean up.
SELECT n, conversation, previous, idem FROM runs WHERE owner = ? AND id = ? AND hidden = 0;

-- name: hide_run
-- A tombstone: the row stays so that no zombie brings the run back, and its turn for descendants.
UPDATE runs SET hidden = ?3, ended = 1, status = 'deleted', idem = NULL, metadata = x'7b7d', updated_at = ?2,
  sealed_seq = last_seq, bytes = COALESCE(LENGTH(turn), 0) WHERE n = ?1;

-- name: delete_segments
-- The log of a deleted run goes.
DELETE FROM segments WHERE run = ?;

-- name: delete_key
-- A key is free again.
DELETE FROM keys WHERE owner = ? AND key = ?;

-- name: ancestor
-- One step back in a chain.
SELECT previous, hidden FROM runs WHERE owner = ? AND id = ?;

-- name: move_latest
-- The latest completed run was deleted.
UPDATE conversations SET active = CASE WHEN active = ?3 THEN NULL ELSE active END,
  latest = CASE WHEN latest = ?3 THEN ?4 ELSE latest END WHERE owner = ?1 AND id = ?2;

-- name: find
-- One run of an owner.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs WHERE owner = ? AND id = ? AND hidden = 0;

-- name: rows_down
-- A page of runs, newest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs
WHERE owner = ?1 AND hidden = 0 AND (?2 IS NULL OR dialect = ?2) AND (?7 IS NULL OR dialect != ?7)
  AND (?3 = '' OR instr(?3, ',' || status || ','))
  AND (?4 IS NULL OR idem = ?4) AND (?5 IS NULL OR n < (SELECT n FROM runs WHERE owner = ?1 AND id = ?5))
ORDER BY n DESC LIMIT ?6;

-- name: rows_up
-- A page of runs, oldest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq FROM runs
WHERE owner = ?1 AND hidden = 0 AND (?2 IS NULL OR dialect = ?2) AND (?7 IS NULL OR dialect != ?7)
  AND (?3 = '' OR instr(?3, ',' || status || ','))
  AND (?4 IS NULL OR idem = ?4) AND (?5 IS NULL OR n > (SELECT n FROM runs WHERE owner = ?1 AND id = ?5))
ORDER BY n ASC LIMIT ?6;

-- name: chain
-- The turns of a chain, oldest first; deleted ancestors still lend theirs. In a conversation: as they were edited there.
WITH RECURSIVE line (id, previous, turn, depth) AS (
  SELECT id, previous, turn, 0 FROM runs WHERE owner = ?1 AND id = ?2
  UNION ALL
  SELECT runs.id, runs.previous, runs.turn, line.depth + 1 FROM line JOIN runs ON runs.owner = ?1 AND runs.id = line.previous
)
SELECT id, previous, COALESCE(edits.turn, line.turn) FROM line
LEFT JOIN conversation_edits AS edits ON edits.owner = ?1 AND edits.conversation = ?3 AND edits.run = line.id
ORDER BY depth DESC;

-- name: session
-- The first turns of a session, oldest first.
SELECT turn FROM session_turns WHERE owner = ? AND session = ? ORDER BY n LIMIT ?;

-- name: annotate
-- The owner's own notes on a run.
UPDATE runs SET metadata = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 RETURNING n;

-- name: segment
-- How far a run is packed, and the segment that holds the first record after a place.
SELECT runs.sealed_seq, segments.crc, segments.data FROM runs
LEFT JOIN segments ON segments.run = runs.n AND segments.last_seq > ?3
WHERE runs.owner = ?1 AND runs.id = ?2 AND runs.hidden = 0
ORDER BY segments.first_seq LIMIT 1;

-- name: insert_segment
-- Records leave the hot table, packed.
INSERT INTO segments (run, first_seq, last_seq, crc, data)
SELECT ?1, ?2, ?3, ?4, ?5 FROM runs WHERE n = ?1 AND hidden = 0;

-- name: seal_run
-- How far a run is packed.
UPDATE runs SET sealed_seq = ?2, sealed_crc = ?3, bytes = bytes + ?4 WHERE n = ?1;

-- name: trim
-- A slice of rows that no live run needs leaves the hot table. The newest row stays: an empty table would number from 1.
DELETE FROM entries WHERE id IN (
  SELECT id FROM entries WHERE id < ? AND id < (SELECT MAX(id) FROM entries) ORDER BY id LIMIT 2000
);

-- name: open_runs
-- All runs that have not ended.
SELECT owner, id, n, attempt, parked, sealed_seq, sealed_crc, conversation, last_seq FROM runs
WHERE ended = 0 ORDER BY n;

-- name: hot_runs
-- Ended runs that still have rows in the hot table.
SELECT owner, id, n, sealed_seq, sealed_crc, last_seq FROM runs
WHERE ended = 1 AND hidden = 0 AND sealed_seq < last_seq ORDER BY n;

-- name: hot_rows
-- The hot table, in the order of writing.
SELECT id, run, seq, attempt, at, crc, data FROM entries ORDER BY id;

-- name: grant
-- A tool need not ask any more, in one session or (empty) in all.
INSERT INTO grants (owner, session, tool) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: granted
-- Is there such a permission?
SELECT 1 FROM grants WHERE owner = ?1 AND session IN (?2, '') AND tool = ?3 LIMIT 1;

-- name: sessions
-- A page of an owner's named sessions, the one used last first.
SELECT t.session, COALESCE(n.title, ''), COUNT(*), MIN(t.at), MAX(t.at) FROM session_turns t
LEFT JOIN session_titles n ON n.owner = t.owner AND n.session = t.session
WHERE t.owner = ?1 GROUP BY t.session
HAVING ?2 IS NULL OR (MAX(t.at), t.session) < (SELECT MAX(at), session FROM session_turns WHERE owner = ?1 AND session = ?2)
ORDER BY MAX(t.at) DESC, t.session DESC LIMIT ?3;

-- name: one_session
-- One of them.
SELECT t.session, COALESCE(n.title, ''), COUNT(*), MIN(t.at), MAX(t.at) FROM session_turns t
LEFT JOIN session_titles n ON n.owner = t.owner AND n.session = t.session
WHERE t.owner = ?1 AND t.session = ?2 GROUP BY t.session;

-- name: rename_session
-- A title for a session.
INSERT INTO session_titles (owner, session, title) VALUES (?1, ?2, ?3)
ON CONFLICT (owner, session) DO UPDATE SET title = excluded.title;

-- name: fork_session
-- A copy of a session, as it is now, under another name.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT owner, ?3, n, at, run, turn FROM session_turns WHERE owner = ?1 AND session = ?2;

-- name: forget_turns
-- A session goes.
DELETE FROM session_turns WHERE owner = ? AND session = ?;

-- name: forget_title
-- And its title.
DELETE FROM session_titles WHERE owner = ? AND session = ?;

-- name: forget_grants
-- And what was granted in it.
DELETE FROM grants WHERE owner = ? AND session = ?;

-- name: touch
-- A run was used.
UPDATE runs SET used_at = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 AND used_at < ?3;

-- name: pin
-- A run that retention leaves alone, or no longer.
UPDATE runs SET pinned = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 RETURNING n;

-- name: expired
-- Was there a run that retention took?
SELECT 1 FROM runs WHERE owner = ? AND id = ? AND hidden = 2;

-- name: stale
-- Ended runs beyond a bound (0: none), those used longest ago first: by number and bytes of each owner, by bytes in all, by age.
SELECT owner, id FROM (
  SELECT owner, id, n, used_at,
    ROW_NUMBER() OVER (PARTITION BY owner ORDER BY used_at DESC, n DESC) AS place,
    SUM(bytes) OVER (PARTITION BY owner ORDER BY used_at DESC, n DESC) AS own,
    SUM(bytes) OVER (ORDER BY used_at DESC, n DESC) AS total
  FROM runs WHERE hidden = 0 AND ended = 1 AND pinned = 0
) WHERE (?1 > 0 AND place > ?1) OR (?2 > 0 AND own > ?2) OR (?3 > 0 AND total > ?3) OR (?4 > 0 AND used_at < ?4)
ORDER BY used_at, n LIMIT ?5;

-- name: youngest
-- May this run go, and when was a run that follows it, however far down, last used? CROSS JOIN: those that follow are
-- few, and without it the planner begins with all runs.
WITH RECURSIVE down (id) AS (
  SELECT id FROM runs WHERE owner = ?1 AND previous = ?2
  UNION ALL
  SELECT runs.id FROM down CROSS JOIN runs ON runs.owner = ?1 AND runs.previous = down.id
)
SELECT used_at, (SELECT MAX(later.used_at) FROM down CROSS JOIN runs later ON later.id = down.id WHERE later.hidden = 0)
FROM runs WHERE owner = ?1 AND id = ?2 AND hidden = 0 AND ended = 1 AND pinned = 0;

-- name: forget_turns_of_hidden
-- A hidden run lends its turn as long as some run follows it that is there; then the turn goes too.
UPDATE runs SET turn = NULL, bytes = 0 WHERE n IN (
  SELECT n FROM runs AS gone WHERE hidden > 0 AND turn IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM runs AS later WHERE later.owner = gone.owner AND later.previous = gone.id
      AND (later.hidden = 0 OR later.turn IS NOT NULL)
  ) LIMIT 500
) RETURNING owner, id;

-- name: forget_edits_of
-- Nor is the turn of such a run kept as a conversation saw it.
DELETE FROM conversation_edits WHERE owner = ? AND run = ?;

-- name: drop_tombstones
-- A tombstone says "expired" for a while; then it goes, when nothing names it any more.
DELETE FROM runs WHERE n IN (
  SELECT n FROM runs AS gone WHERE hidden > 0 AND turn IS NULL AND updated_at < ?1 AND NOT EXISTS (
    SELECT 1 FROM runs AS later WHERE later.owner = gone.owner AND later.previous = gone.id
  ) LIMIT 500
);

-- name: usage
-- What each owner keeps.
SELECT owner, COUNT(*), SUM(bytes), SUM(pinned) FROM runs WHERE hidden = 0 GROUP BY owner ORDER BY SUM(bytes) DESC;

-- name: clean
-- Did the last process close the store?
SELECT value FROM meta WHERE name = 'clean';

-- name: set_clean
-- It does now, or begins to write.
UPDATE meta SET value = ? WHERE name = 'clean';

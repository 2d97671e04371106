-- name: key
-- An idempotency key of an owner.
SELECT run, fingerprint FROM keys WHERE owner = ? AND key = ?;

-- name: previous
-- The run that a chain continues, unless it was deleted or is not stored; hidden = 2 is an evicted one.
SELECT chains, session, hidden FROM runs WHERE owner = ? AND id = ? AND hidden != 1 AND kept = 'stored';

-- name: conversation
-- A conversation by id or by name.
SELECT id, latest, active FROM conversations WHERE owner = ?1 AND (id = ?2 OR name = ?2);

-- name: session_active
-- The newest run of a session that has not ended. By the index of open runs: there are few.
SELECT MAX(n), id FROM runs INDEXED BY runs_open
WHERE owner = ? AND session = ? AND ended = 0 AND hidden = 0 AND kept IN ('stored', 'hours');

-- name: session_length
-- How many turns a session has.
SELECT COUNT(*) FROM session_turns WHERE owner = ? AND session = ?;

-- name: insert_run
-- Open a run. Its fingerprint is that of all requests that may join it.
INSERT INTO runs (n, owner, id, dialect, model, status, attempt, parked, last_seq, sealed_crc, created_at, updated_at,
  session, conversation, previous, idem, metadata, fingerprint, credential, waits, kept, resend_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: lost_run
-- The runs of the same request whose connection was lost, as long as they may be joined. The column `fingerprint` holds
-- Asked.match.
-- No ORDER BY n: with it SQLite plans the query anew each time.
SELECT n, id FROM runs WHERE owner = ?1 AND fingerprint = ?2 AND lost_at > 0 AND lost_at + resend_ms >= ?3 AND hidden = 0;

-- name: wait_again
-- A retried request takes over a lost run.
UPDATE runs SET waits = 1, lost_at = 0, credential = ?3, wake_at = CASE WHEN asks = '' THEN 0 ELSE wake_at END
WHERE owner = ?1 AND id = ?2;

-- name: answered
-- All that there is was delivered to the waiting caller. If the run has ended, it is delivered.
UPDATE runs SET waits = 0, lost_at = 0, delivered = CASE WHEN ended THEN ?3 ELSE 0 END
WHERE owner = ?1 AND id = ?2 AND waits = 1;

-- name: rest_given
-- A run that asked, and whose caller had the question, was shown to its end.
UPDATE runs SET delivered = ?3
WHERE owner = ?1 AND id = ?2 AND ended = 1 AND waits = 0 AND lost_at = 0 AND delivered = 0;

-- name: void
-- A run failed or was cancelled: nobody waits for its answer.
UPDATE runs SET waits = 0, lost_at = 0, delivered = ?2 WHERE n = ?1;

-- name: lose
-- The connection of a waiting caller was lost.
UPDATE runs SET waits = 0, lost_at = ?3 WHERE owner = ?1 AND id = ?2 AND waits = 1
RETURNING owner, fingerprint, lost_at + resend_ms;

-- name: strand
-- The caller who waited at the last process is lost. Nobody holds the run now, so it waits to be claimed.
UPDATE runs SET waits = 0, lost_at = ?3, status = CASE WHEN ended = 0 AND status = 'running' THEN 'queued' ELSE status END
WHERE owner = ?1 AND id = ?2 AND waits = 1;

-- name: sleep
-- An open run that nobody holds waits for its caller.
UPDATE runs SET wake_at = ?2 WHERE n = ?1;

-- name: waited_for
-- The runs with a waiting caller. At a start, these callers are lost.
SELECT owner, id FROM runs WHERE waits = 1;

-- name: joinable
-- What can be joined after a start at ?1: the owner, the match, and until when. By two indexes: an OR reads all runs.
SELECT owner, fingerprint, MAX(until) FROM (
  SELECT owner, fingerprint, ?1 + resend_ms AS until FROM runs WHERE waits = 1
  UNION ALL SELECT owner, fingerprint, lost_at + resend_ms FROM runs WHERE lost_at > 0 AND waits = 0
) GROUP BY owner, fingerprint;

-- name: insert_key
-- Store an idempotency key.
INSERT INTO keys (owner, key, fingerprint, run) VALUES (?, ?, ?, ?);

-- name: insert_conversation
-- A conversation is created by its first run.
INSERT INTO conversations (owner, id, name, active, created_at, metadata) VALUES (?, ?, ?, ?, ?, ?);

-- name: take_conversation
-- A run becomes the active run of its conversation.
UPDATE conversations SET active = ?3 WHERE owner = ?1 AND id = ?2;

-- name: claim_run
-- Start a new attempt. The wait for a person or a caller ends with it.
UPDATE runs SET attempt = ?2, parked = 0, status = 'running', last_seq = ?3, updated_at = ?4, wake_at = 0, asks = ''
WHERE n = ?1;

-- name: mark_run
-- Park or end a run, or note what it waits for. ?11 to ?13: how far it is sealed now, if it is.
UPDATE runs SET status = ?2, parked = ?3, ended = ?4, chains = ?5, last_seq = ?6, updated_at = ?7, used_at = ?7,
  turn = ?8, bytes = bytes + COALESCE(LENGTH(?8), 0) + ?13, wake_at = ?9, asks = ?10,
  sealed_seq = COALESCE(?11, sealed_seq), sealed_crc = COALESCE(?12, sealed_crc) WHERE n = ?1;

-- name: free_conversation
-- The active run ended; a completed run becomes the latest.
UPDATE conversations SET active = NULL, latest = CASE WHEN ?4 THEN ?3 ELSE latest END
WHERE owner = ?1 AND id = ?2 AND active = ?3;

-- name: add_turn
-- Add a finished turn to a session.
INSERT INTO session_turns (owner, session, n, at, run, turn)
SELECT ?1, ?2, 1 + COALESCE(MAX(n), 0), ?3, ?4, ?5 FROM session_turns WHERE owner = ?1 AND session = ?2;

-- name: end_signals
-- Drop the signals of a run that ended, but its steers.
DELETE FROM signals WHERE run = ? AND kind != 'steer';

-- name: drop_signals
-- Drop all signals of a run that goes.
DELETE FROM signals WHERE run = ?;

-- name: insert_signal
-- Leave a signal for the holder.
INSERT INTO signals (owner, run, kind, key, payload) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: signals
-- The pending signals of a run.
SELECT run, kind, key, payload FROM signals WHERE run = ? ORDER BY kind, key;

-- name: all_signals
-- The pending signals of all runs.
SELECT run, kind, key FROM signals;

-- name: run_for_delete
-- What deleting a run must clean up.
SELECT n, conversation, previous, idem, entry FROM runs WHERE owner = ? AND id = ? AND hidden = 0;

-- name: hide_run
-- Make a tombstone. The row stays, so that no late writer revives the run, and keeps its turn for descendants.
UPDATE runs SET hidden = ?3, ended = 1, status = 'deleted', idem = NULL, metadata = x'7b7d', updated_at = ?2,
  sealed_seq = last_seq, bytes = COALESCE(LENGTH(turn), 0), waits = 0, lost_at = 0, wake_at = 0, asks = '' WHERE n = ?1;

-- name: delete_segments
-- Delete the segments of a run.
DELETE FROM segments WHERE owner = ? AND run = ?;

-- name: delete_key
-- Free an idempotency key.
DELETE FROM keys WHERE owner = ? AND key = ?;

-- name: run_to_forget
-- An ended run that is not stored, for Journal.forget.
SELECT n, idem, entry FROM runs WHERE owner = ? AND id = ? AND ended = 1 AND kept != 'stored';

-- name: delete_run
-- Delete the row of a run. Only for runs that nothing follows.
DELETE FROM runs WHERE n = ?;

-- name: forget_records
-- Overwrite the rows of runs (?1: a JSON list of numbers) in the hot table, from a row on. They are not deleted: the
-- newest row must stay, and a deletion in the middle would copy records of other runs to other pages. `trim` deletes
-- them in order.
UPDATE entries SET owner = '', run = 0, seq = 0, attempt = 0, at = 0, crc = 0, data = x''
WHERE id >= ?2 AND run IN (SELECT value FROM json_each(?1));

-- name: ancestor
-- One step back in a chain.
SELECT previous, hidden FROM runs WHERE owner = ? AND id = ?;

-- name: move_latest
-- Repair a conversation after its active or latest run was deleted.
UPDATE conversations SET active = CASE WHEN active = ?3 THEN NULL ELSE active END,
  latest = CASE WHEN latest = ?3 THEN ?4 ELSE latest END WHERE owner = ?1 AND id = ?2;

-- name: find
-- One run of an owner.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs WHERE owner = ? AND id = ? AND hidden = 0;

-- name: rows_down
-- A page of runs, newest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs
WHERE owner = ?1 AND hidden = 0 AND (?2 IS NULL OR dialect = ?2) AND (?7 IS NULL OR dialect != ?7)
  AND (?3 = '' OR instr(?3, ',' || status || ',')) AND (?8 = 0 OR kept = 'stored')
  AND (?4 IS NULL OR idem = ?4) AND (?5 IS NULL OR n < (SELECT n FROM runs WHERE owner = ?1 AND id = ?5))
ORDER BY n DESC LIMIT ?6;

-- name: rows_up
-- A page of runs, oldest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs
WHERE owner = ?1 AND hidden = 0 AND (?2 IS NULL OR dialect = ?2) AND (?7 IS NULL OR dialect != ?7)
  AND (?3 = '' OR instr(?3, ',' || status || ',')) AND (?8 = 0 OR kept = 'stored')
  AND (?4 IS NULL OR idem = ?4) AND (?5 IS NULL OR n > (SELECT n FROM runs WHERE owner = ?1 AND id = ?5))
ORDER BY n ASC LIMIT ?6;

-- name: rows_of_all
-- A page of the runs of all owners, newest first. ?1 is not used: the places are those of rows_down.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs
WHERE ?1 IS NULL AND hidden = 0 AND (?2 IS NULL OR dialect = ?2) AND (?7 IS NULL OR dialect != ?7)
  AND (?3 = '' OR instr(?3, ',' || status || ',')) AND (?8 = 0 OR kept = 'stored')
  AND (?4 IS NULL OR idem = ?4) AND (?5 IS NULL OR n < (SELECT n FROM runs WHERE id = ?5))
ORDER BY n DESC LIMIT ?6;

-- name: rows_open
-- A page of runs that have not ended, of one owner or of all, newest first. By the index of open runs: there are few.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs INDEXED BY runs_open
WHERE ended = 0 AND hidden = 0 AND (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR dialect = ?2)
  AND (?7 IS NULL OR dialect != ?7) AND instr(?3, ',' || status || ',') AND (?8 = 0 OR kept = 'stored')
  AND (?4 IS NULL OR idem = ?4)
  AND (?5 IS NULL OR n < (SELECT n FROM runs WHERE id = ?5 AND (?1 IS NULL OR owner = ?1)))
ORDER BY n DESC LIMIT ?6;

-- name: owner_of
-- Whose run this is.
SELECT owner FROM runs WHERE id = ? AND hidden = 0;

-- name: chain
-- The turns of a chain, oldest first, with those of deleted ancestors. In a conversation: as edited there.
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
SELECT n, turn FROM session_turns WHERE owner = ? AND session = ? ORDER BY n LIMIT ?;

-- name: annotate
-- Replace the metadata of a run.
UPDATE runs SET metadata = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 RETURNING n;

-- name: asking
-- The run that asks a question.
SELECT id FROM runs WHERE owner = ? AND asks = ? AND asks != '' AND hidden = 0 ORDER BY n DESC LIMIT 1;

-- name: segment
-- How far a run is sealed, and the segment with the first record after a position.
SELECT runs.sealed_seq, segments.crc, segments.data FROM runs
LEFT JOIN segments ON segments.owner = runs.owner AND segments.run = runs.n AND segments.last_seq > ?3
WHERE runs.owner = ?1 AND runs.id = ?2 AND runs.hidden = 0
ORDER BY segments.first_seq LIMIT 1;

-- name: insert_segment
-- Store a segment, unless the run was deleted or sealed beyond it meanwhile.
INSERT INTO segments (owner, run, first_seq, last_seq, crc, data)
SELECT owner, ?1, ?2, ?3, ?4, ?5 FROM runs WHERE n = ?1 AND hidden = 0 AND sealed_seq < ?2;

-- name: insert_whole
-- Store a short run as one segment, with its end.
INSERT INTO segments (owner, run, first_seq, last_seq, crc, data) VALUES (?, ?, ?, ?, ?, ?);

-- name: seal_run
-- Note how far a run is sealed.
UPDATE runs SET sealed_seq = ?2, sealed_crc = ?3, bytes = bytes + ?4 WHERE n = ?1 AND sealed_seq < ?2;

-- name: trim
-- Delete rows that no tail needs from the hot table. The newest row stays: an empty table would restart its ids at 1.
DELETE FROM entries WHERE id IN (
  SELECT id FROM entries WHERE id < ? AND id < (SELECT MAX(id) FROM entries) ORDER BY id LIMIT 2000
);

-- name: open_runs
-- All runs that have not ended.
SELECT owner, id, n, attempt, parked, sealed_seq, sealed_crc, conversation, last_seq, kept, resend_ms, waits, lost_at,
  wake_at, asks FROM runs WHERE ended = 0 ORDER BY n;

-- name: last_number
-- The number of the newest run.
SELECT COALESCE(MAX(n), 0) FROM runs;

-- name: hot_runs
-- Ended runs that still have rows in the hot table.
SELECT owner, id, n, sealed_seq, sealed_crc, last_seq, kept FROM runs
WHERE ended = 1 AND hidden = 0 AND sealed_seq < last_seq ORDER BY n;

-- name: hot_rows
-- The hot table, in the order of writing.
SELECT id, owner, run, seq, attempt, at, crc, data FROM entries ORDER BY id;

-- name: grant
-- Lets one call run without approval.
INSERT INTO call_grants (owner, id, session, tool, arguments, at, given_by) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: trim_grants
-- Deletes all but the newest permissions of an owner.
DELETE FROM call_grants WHERE owner = ?1 AND id IN (
  SELECT id FROM call_grants WHERE owner = ?1 ORDER BY at DESC, id LIMIT -1 OFFSET ?2);

-- name: granted
-- Whether a call may run without approval.
SELECT 1 FROM call_grants WHERE owner = ?1 AND id IN (SELECT value FROM json_each(?2)) LIMIT 1;

-- name: grants
-- The permissions of an owner, the newest first.
SELECT owner, id, session, tool, arguments, at, given_by FROM call_grants WHERE owner = ? ORDER BY at DESC, id;

-- name: revoke
-- Takes a permission back.
DELETE FROM call_grants WHERE owner = ? AND id = ? RETURNING id;

-- name: forget_turns
-- Delete the turns of a session.
DELETE FROM session_turns WHERE owner = ? AND session = ?;

-- name: forget_grants
-- Delete the standing permissions of a session.
DELETE FROM call_grants WHERE owner = ? AND session = ?;

-- name: touch
-- Note when a run was last used.
UPDATE runs SET used_at = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 AND used_at < ?3;

-- name: pin
-- Pin a run against retention, or unpin it.
UPDATE runs SET pinned = ?3 WHERE owner = ?1 AND id = ?2 AND hidden = 0 RETURNING n;

-- name: expired
-- Whether retention evicted a run.
SELECT 1 FROM runs WHERE owner = ? AND id = ? AND hidden = 2;

-- name: forgettable
-- Ended runs that must be forgotten at ?1, oldest first. ?2: how long runs of the kind "hours" are kept; 0 means until
-- their delivery. ?3: how long a delivered run stays for its other readers. A run that may still be joined stays.
SELECT owner, id FROM (
  SELECT owner, id, n, updated_at FROM runs WHERE kept != 'stored' AND ended = 1 AND hidden = 0
    AND kept = 'hours' AND ?2 > 0 AND updated_at <= ?1 - ?2
  UNION ALL
  SELECT owner, id, n, updated_at FROM runs WHERE kept != 'stored' AND ended = 1 AND hidden = 0
    AND kept IN ('delivery', CASE WHEN ?2 > 0 THEN 'delivery' ELSE 'hours' END)
    AND CASE WHEN delivered > 0 THEN delivered + ?3 <= ?1
      ELSE waits = 0 AND (CASE WHEN lost_at > 0 THEN lost_at ELSE updated_at END) + resend_ms < ?1 END
) ORDER BY updated_at, n LIMIT ?4;

-- name: stale
-- What is beyond a limit, least recently used first: ended runs, sessions without a run at work, conversations without an
-- active run, and what is outside (?7, a JSON list of Holding; its place in the list is the id). Limits (0: none): runs
-- (stored ones and others apart) and bytes per owner, bytes in all, age. ?6 has the limits of bytes of single owners.
-- Sessions and conversations go after runs that were used at the same time.
WITH things (kind, owner, id, n, used_at, bytes, stored) AS (
  SELECT 'run', owner, id, n, used_at, bytes, kept = 'stored' FROM runs WHERE hidden = 0 AND ended = 1 AND pinned = 0
  UNION ALL
  SELECT 'session', t.owner, t.session, 1 << 62, MAX(t.at), SUM(64 + LENGTH(t.turn)) + COALESCE((SELECT SUM(LENGTH(CAST(x.text AS BLOB)))
    FROM session_texts x WHERE x.owner = t.owner AND x.entry = t.session), 0), 0 FROM session_turns t
  WHERE (?2 > 0 OR ?3 > 0 OR ?4 > 0) AND (t.owner, t.session) NOT IN (SELECT owner, session FROM runs WHERE ended = 0 AND session != '')
  GROUP BY t.owner, t.session
  UNION ALL
  SELECT 'session', owner, id, 1 << 62, used_at, 64 + LENGTH(CAST(title AS BLOB)), 0 FROM sessions AS s
  WHERE (?2 > 0 OR ?3 > 0 OR ?4 > 0) AND made = 1
    AND NOT EXISTS (SELECT 1 FROM session_turns t WHERE t.owner = s.owner AND t.session = s.id)
    AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = s.owner AND r.entry = s.id AND r.entry != '' AND r.hidden = 0)
    AND (owner, id) NOT IN (SELECT owner, session FROM runs WHERE ended = 0 AND session != '')
  UNION ALL
  SELECT 'conversation', named.owner, named.id, 1 << 62, MAX(named.created_at, COALESCE(runs.used_at, 0)),
    64 + LENGTH(named.metadata) + COALESCE((SELECT SUM(LENGTH(turn)) FROM conversation_edits AS edits
      WHERE edits.owner = named.owner AND edits.conversation = named.id), 0), 0
  FROM conversations AS named LEFT JOIN runs ON runs.owner = named.owner AND runs.id = named.latest
  WHERE (?2 > 0 OR ?3 > 0 OR ?4 > 0) AND named.active IS NULL
  UNION ALL
  SELECT 'outside', value ->> 'owner', key, key, value ->> 'used_at', value ->> 'bytes', 0 FROM json_each(?7)
), counted AS (
  SELECT kind, owner, id, n, used_at,
    ROW_NUMBER() OVER (PARTITION BY owner, kind, stored ORDER BY used_at DESC, n DESC, kind, id) AS place,
    SUM(bytes) OVER (PARTITION BY owner ORDER BY used_at DESC, n DESC, kind, id ROWS UNBOUNDED PRECEDING) AS own,
    SUM(bytes) OVER (ORDER BY used_at DESC, n DESC, kind, id ROWS UNBOUNDED PRECEDING) AS total
  FROM things
)
SELECT counted.kind, counted.owner, counted.id FROM counted LEFT JOIN json_each(?6) AS rooms ON rooms.key = counted.owner
WHERE (?1 > 0 AND kind = 'run' AND place > ?1) OR (?2 > 0 AND own > COALESCE(rooms.value, ?2)) OR (?3 > 0 AND total > ?3)
  OR (?4 > 0 AND used_at < ?4)
ORDER BY used_at, n LIMIT ?5;

-- name: session_is_stale
-- Whether there is such a session, and no run at work in it.
SELECT 1 FROM (SELECT owner, session FROM session_turns WHERE owner = ?1 AND session = ?2
  UNION SELECT owner, id FROM sessions WHERE owner = ?1 AND id = ?2)
WHERE (owner, session) NOT IN (SELECT owner, session FROM runs WHERE ended = 0 AND session != '') LIMIT 1;

-- name: conversation_is_stale
-- Whether no run is active in a conversation.
SELECT 1 FROM conversations WHERE owner = ? AND id = ? AND active IS NULL;

-- name: fixed
-- The bytes of each owner that count and are never evicted.
SELECT owner, SUM(64 + LENGTH(CAST(arguments AS BLOB))) FROM call_grants GROUP BY owner;

-- name: youngest
-- Whether a run may be evicted, and when a descendant was last used. CROSS JOIN: descendants are
-- few, and without it the planner begins with all runs.
WITH RECURSIVE down (id) AS (
  SELECT id FROM runs WHERE owner = ?1 AND previous = ?2
  UNION ALL
  SELECT runs.id FROM down CROSS JOIN runs ON runs.owner = ?1 AND runs.previous = down.id
)
SELECT used_at, (SELECT MAX(later.used_at) FROM down CROSS JOIN runs later ON later.id = down.id WHERE later.hidden = 0)
FROM runs WHERE owner = ?1 AND id = ?2 AND hidden = 0 AND ended = 1 AND pinned = 0;

-- name: forget_turns_of_hidden
-- A hidden run keeps its turn while a visible run descends from it. Then the turn is dropped.
UPDATE runs SET turn = NULL, bytes = 0 WHERE n IN (
  SELECT n FROM runs AS gone WHERE hidden > 0 AND turn IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM runs AS later WHERE later.owner = gone.owner AND later.previous = gone.id
      AND (later.hidden = 0 OR later.turn IS NOT NULL)
  ) LIMIT 500
) RETURNING owner, id;

-- name: forget_edits_of
-- Drop the edited turns of such a run.
DELETE FROM conversation_edits WHERE owner = ? AND run = ?;

-- name: drop_tombstones
-- Delete tombstones that are old and that no run follows.
DELETE FROM runs WHERE n IN (
  SELECT n FROM runs AS gone WHERE hidden > 0 AND turn IS NULL AND updated_at < ?1 AND NOT EXISTS (
    SELECT 1 FROM runs AS later WHERE later.owner = gone.owner AND later.previous = gone.id
  ) LIMIT 500
);

-- name: usage
-- How much each owner stores.
SELECT owner, COUNT(*), SUM(bytes), SUM(pinned) FROM runs WHERE hidden = 0 GROUP BY owner ORDER BY SUM(bytes) DESC;

-- name: uncarried
-- Whether segments of older releases wait to be carried over.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'segments_9';

-- name: carry_segments
-- Copy the first segments of older releases into the table whose key has the owner.
INSERT INTO segments (owner, run, first_seq, last_seq, crc, data)
SELECT COALESCE(r.owner, ''), s.run, s.first_seq, s.last_seq, s.crc, s.data FROM segments_9 s LEFT JOIN runs r ON r.n = s.run
WHERE s.rowid IN (SELECT rowid FROM segments_9 ORDER BY rowid LIMIT ?1);

-- name: carried_segments
-- Delete what was just copied.
DELETE FROM segments_9 WHERE rowid IN (SELECT rowid FROM segments_9 ORDER BY rowid LIMIT ?1);

-- name: end_carrying
-- All segments are carried over.
DROP TABLE segments_9;

-- name: clean
-- Whether the last process closed the store.
SELECT value FROM meta WHERE name = 'clean';

-- name: set_clean
-- Mark the store as closed, or as open.
UPDATE meta SET value = ? WHERE name = 'clean';

-- name: format
-- The format of the events (R18).
SELECT value FROM meta WHERE name = 'format';

-- name: set_format
-- Write it down before events of this format are added.
INSERT INTO meta (name, value) VALUES ('format', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

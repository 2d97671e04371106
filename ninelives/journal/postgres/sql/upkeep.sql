-- name: touch
-- Records when runs were used.
UPDATE runs SET used_at = u.at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (owner, id, at)
WHERE runs.owner = u.owner AND runs.id = u.id AND hidden = 0 AND used_at < u.at;

-- name: pin
-- Protects a run from retention, or no longer.
UPDATE runs SET pinned = $3 WHERE owner = $1 AND id = $2 AND hidden = 0 RETURNING 1;

-- name: expired
-- Whether retention took this run.
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 2;

-- name: stale
-- What is beyond a limit (0: no limit), least recently used first: ended runs, sessions without a run at work,
-- conversations without an active run, and what is outside ($8: owners, $9: bytes, $10: last use; the place in the lists
-- is the id). By number (stored runs and others for themselves) and bytes of each owner, by bytes in all, by age. $6 and
-- $7 are owners with a limit of bytes of their own. Something goes as long as what is older does not add up to the
-- excess. So the statement reads only the old end of an index of runs, and sums of the rest. It skips runs that somebody
-- reads. Sessions and conversations go after runs that were used at the same time.
WITH kept AS MATERIALIZED (
  SELECT owner, kept = 'stored' AS stored, count(*) AS runs, sum(bytes) AS bytes FROM runs
  WHERE hidden = 0 AND ended AND NOT pinned AND ($1::bigint > 0 OR $2::bigint > 0 OR $3::bigint > 0)
  GROUP BY owner, kept = 'stored'
), others (kind, owner, id, n, used_at, bytes) AS MATERIALIZED (
  SELECT 'session', t.owner, t.session, 1::bigint << 62, max(t.at),
    sum(64 + octet_length(t.turn)) + COALESCE((SELECT sum(octet_length(x.text)) FROM session_texts x
      WHERE x.owner = t.owner AND x.entry = t.session), 0) FROM session_turns t
  WHERE ($2 > 0 OR $3 > 0 OR $4::bigint > 0)
    AND NOT EXISTS (SELECT FROM runs WHERE NOT ended AND runs.owner = t.owner AND runs.session = t.session)
  GROUP BY t.owner, t.session
  UNION ALL
  SELECT 'session', s.owner, s.id, 1::bigint << 62, s.used_at, 64 + octet_length(s.title) FROM sessions s
  WHERE ($2 > 0 OR $3 > 0 OR $4 > 0) AND s.made
    AND NOT EXISTS (SELECT FROM session_turns t WHERE t.owner = s.owner AND t.session = s.id)
    AND NOT EXISTS (SELECT FROM runs WHERE runs.owner = s.owner AND runs.entry = s.id AND runs.entry != '' AND hidden = 0)
    AND NOT EXISTS (SELECT FROM runs WHERE NOT ended AND runs.owner = s.owner AND runs.session = s.id)
  UNION ALL
  SELECT 'conversation', c.owner, c.id, 1::bigint << 62, greatest(c.created_at, COALESCE(r.used_at, 0)),
    64 + octet_length(c.metadata) + COALESCE((SELECT sum(octet_length(e.turn)) FROM conversation_edits e
      WHERE e.owner = c.owner AND e.conversation = c.id), 0)
  FROM conversations c LEFT JOIN runs r ON r.owner = c.owner AND r.id = c.latest
  WHERE ($2 > 0 OR $3 > 0 OR $4 > 0) AND c.active IS NULL
  UNION ALL
  SELECT 'outside', o.owner, (o.place - 1)::text, o.place, o.used_at, o.bytes
  FROM unnest($8::text[], $9::bigint[], $10::bigint[]) WITH ORDINALITY AS o (owner, bytes, used_at, place)
), sums AS MATERIALIZED (
  SELECT owner, sum(bytes) AS bytes FROM (SELECT owner, bytes FROM kept UNION ALL SELECT owner, bytes FROM others) a
  GROUP BY owner
), beyond AS (
  SELECT 'run' AS kind, o.owner, o.id, o.n, o.used_at, o.read_until FROM (SELECT * FROM kept WHERE $1 > 0 AND runs > $1) k
  CROSS JOIN LATERAL (
    SELECT owner, id, n, used_at, read_until FROM runs
    WHERE owner = k.owner AND (kept = 'stored') = k.stored AND hidden = 0 AND ended AND NOT pinned
    ORDER BY used_at, n LIMIT least($5, k.runs - $1)
  ) o
  UNION
  SELECT o.kind, o.owner, o.id, o.n, o.used_at, o.read_until FROM (
    SELECT sums.owner, sums.bytes - COALESCE(rooms.bytes, $2) AS excess FROM sums
    LEFT JOIN unnest($6::text[], $7::bigint[]) AS rooms (owner, bytes) ON rooms.owner = sums.owner WHERE $2 > 0
  ) k CROSS JOIN LATERAL (
    SELECT oldest.*, sum(oldest.bytes) OVER (ORDER BY oldest.used_at, oldest.n, oldest.kind DESC, oldest.id DESC
      ROWS UNBOUNDED PRECEDING) - oldest.bytes AS older_bytes
    FROM (
      SELECT 'run' AS kind, r.* FROM (VALUES (true), (false)) AS part (stored) CROSS JOIN LATERAL (
        SELECT owner, id, n, used_at, read_until, bytes FROM runs
        WHERE owner = k.owner AND (kept = 'stored') = part.stored AND hidden = 0 AND ended AND NOT pinned
        ORDER BY used_at, n LIMIT $5
      ) r
      UNION ALL
      (SELECT kind, owner, id, n, used_at, 0, bytes FROM others WHERE owner = k.owner ORDER BY used_at LIMIT $5)
    ) oldest
  ) o WHERE k.excess > 0 AND o.older_bytes < k.excess
  UNION
  SELECT o.kind, o.owner, o.id, o.n, o.used_at, o.read_until FROM (
    SELECT oldest.*, sum(oldest.bytes) OVER (ORDER BY oldest.used_at, oldest.n, oldest.kind DESC, oldest.id DESC
      ROWS UNBOUNDED PRECEDING) - oldest.bytes AS older_bytes FROM (
      (SELECT 'run' AS kind, owner, id, n, used_at, read_until, bytes FROM runs
       WHERE hidden = 0 AND ended AND NOT pinned AND $3 > 0 ORDER BY used_at, n LIMIT $5)
      UNION ALL
      (SELECT kind, owner, id, n, used_at, 0, bytes FROM others WHERE $3 > 0 ORDER BY used_at LIMIT $5)
    ) oldest
  ) o WHERE o.older_bytes < (SELECT sum(bytes) FROM sums) - $3
  UNION
  (SELECT 'run', owner, id, n, used_at, read_until FROM runs
   WHERE hidden = 0 AND ended AND NOT pinned AND $4 > 0 AND used_at < $4 ORDER BY used_at, n LIMIT $5)
  UNION
  (SELECT kind, owner, id, n, used_at, 0 FROM others WHERE $4 > 0 AND used_at < $4 ORDER BY used_at LIMIT $5)
)
SELECT kind, owner, id FROM beyond WHERE read_until <= ninelives_now() ORDER BY used_at, n LIMIT $5;

-- name: drop_sessions
-- Deletes sessions in which no run is at work, with their turns and texts. Their runs are listed again.
WITH gone AS (
  SELECT g.owner, g.session FROM unnest($1::text[], $2::text[]) AS g (owner, session)
  WHERE NOT EXISTS (SELECT FROM runs WHERE NOT ended AND runs.owner = g.owner AND runs.session = g.session)
), texts AS (
  DELETE FROM session_texts t USING gone WHERE t.owner = gone.owner AND t.entry = gone.session
), again AS (
  UPDATE runs SET entry = '', listed = 0 FROM gone
  WHERE runs.owner = gone.owner AND runs.entry = gone.session AND runs.entry != '' AND hidden = 0
), entries AS (
  DELETE FROM sessions s USING gone WHERE s.owner = gone.owner AND s.id = gone.session RETURNING s.owner, s.id AS session
), turns AS (
  DELETE FROM session_turns t USING gone WHERE t.owner = gone.owner AND t.session = gone.session
  RETURNING t.owner, t.session
)
SELECT owner, session FROM turns UNION SELECT owner, session FROM entries;

-- name: drop_conversations
-- Deletes conversations in which no run is active, with their edits. Their runs stay.
WITH gone AS (
  DELETE FROM conversations c USING unnest($1::text[], $2::text[]) AS g (owner, id)
  WHERE c.owner = g.owner AND c.id = g.id AND c.active IS NULL RETURNING c.owner, c.id
), edits AS (
  DELETE FROM conversation_edits e USING gone WHERE e.owner = gone.owner AND e.conversation = gone.id
)
SELECT owner, id FROM gone;

-- name: fixed
-- The bytes of each owner that count and are never evicted.
SELECT owner, sum(64 + octet_length(arguments))::bigint FROM call_grants GROUP BY owner;

-- name: forgettable
-- Ended runs that must be forgotten, oldest first. $1: how long runs of the kind "hours" are kept; 0 means until their
-- delivery. $2: how long a delivered run stays for its other readers. A run whose request may still join it stays.
SELECT owner, id FROM (
  (SELECT owner, id, ended_at, n FROM runs, (SELECT ninelives_now() AS now) c
   WHERE ended AND hidden = 0 AND kept = 'hours' AND $1::bigint > 0 AND ended_at <= c.now - $1
   ORDER BY ended_at LIMIT $3)
  UNION ALL
  (SELECT owner, id, ended_at, n FROM runs, (SELECT ninelives_now() AS now) c
   WHERE ended AND hidden = 0 AND kept != 'stored'
     AND kept = ANY (CASE WHEN $1 = 0 THEN '{delivery,hours}'::text[] ELSE '{delivery}' END)
     AND CASE WHEN delivered_at > 0 THEN delivered_at + $2::bigint <= c.now
       ELSE NOT waits AND COALESCE(NULLIF(lost_at, 0), ended_at) + resend_ms < c.now END
   ORDER BY ended_at LIMIT $3)
) old ORDER BY ended_at, n LIMIT $3;

-- name: youngest
-- Whether this run may go, and when any of its descendants was last used.
WITH RECURSIVE down (id) AS (
  SELECT id FROM runs WHERE owner = $1 AND previous = $2
  UNION ALL
  SELECT runs.id FROM down JOIN runs ON runs.owner = $1 AND runs.previous = down.id
)
SELECT used_at, (SELECT max(later.used_at) FROM down JOIN runs later ON later.id = down.id WHERE later.hidden = 0) AS later
FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 AND ended AND NOT pinned AND read_until <= ninelives_now();

-- name: forget_turns_of_hidden
-- Deletes the turn of a hidden run, and its edits, once no visible run follows it.
WITH forgotten AS (
  UPDATE runs SET turn = NULL, bytes = 0 WHERE n IN (
    SELECT n FROM runs AS gone WHERE hidden > 0 AND turn IS NOT NULL AND NOT EXISTS (
      SELECT FROM runs AS later WHERE later.owner = gone.owner AND later.previous = gone.id
        AND (later.hidden = 0 OR later.turn IS NOT NULL)
    ) LIMIT 500
  ) RETURNING owner, id
)
DELETE FROM conversation_edits e USING forgotten f WHERE e.owner = f.owner AND e.run = f.id;

-- name: drop_tombstones
-- Deletes old tombstones that no run refers to, with what an old holder may have left of them.
WITH gone AS (
  DELETE FROM runs WHERE n IN (
    SELECT n FROM runs AS dead WHERE hidden > 0 AND turn IS NULL AND updated_at < $1 AND NOT EXISTS (
      SELECT FROM runs AS later WHERE later.owner = dead.owner AND later.previous = dead.id
    ) LIMIT 500
  ) RETURNING owner, id
), rest AS (DELETE FROM run_log USING gone WHERE run_log.owner = gone.owner AND run_log.run = gone.id)
DELETE FROM signals USING gone WHERE signals.run = gone.id;

-- name: usage
-- How much each owner stores.
SELECT owner, count(*), sum(bytes)::bigint, count(*) FILTER (WHERE pinned) FROM runs WHERE hidden = 0
GROUP BY owner ORDER BY sum(bytes) DESC;

-- name: alone
-- One process at a time does retention; the lock ends with its transaction.
SELECT pg_try_advisory_xact_lock(hashtextextended('ninelives upkeep', 0));

-- name: touch
-- Runs were used.
UPDATE runs SET used_at = u.at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (owner, id, at)
WHERE runs.owner = u.owner AND runs.id = u.id AND hidden = 0 AND used_at < u.at;

-- name: pin
-- A run that retention leaves alone, or no longer.
UPDATE runs SET pinned = $3 WHERE owner = $1 AND id = $2 AND hidden = 0 RETURNING 1;

-- name: expired
-- Was there a run that retention took?
SELECT 1 FROM runs WHERE owner = $1 AND id = $2 AND hidden = 2;

-- name: stale
-- Ended runs beyond a bound (0: none), those used longest ago first: by number and bytes of each owner, by bytes in all, by
-- age. What goes is the oldest, as long as what is older still does not make up for what is too much; so only that end of
-- an index is read, and of the rest the sums. Not what somebody reads.
WITH kept AS MATERIALIZED (
  SELECT owner, count(*) AS runs, sum(bytes) AS bytes FROM runs
  WHERE hidden = 0 AND ended AND NOT pinned AND ($1::bigint > 0 OR $2::bigint > 0 OR $3::bigint > 0) GROUP BY owner
), beyond AS (
  SELECT o.owner, o.id, o.n, o.used_at, o.read_until
  FROM (SELECT * FROM kept WHERE ($1 > 0 AND runs > $1) OR ($2 > 0 AND bytes > $2)) k
  CROSS JOIN LATERAL (
    SELECT oldest.*, row_number() OVER w - 1 AS older, sum(oldest.bytes) OVER w - oldest.bytes AS older_bytes FROM (
      SELECT owner, id, n, used_at, read_until, bytes FROM runs
      WHERE owner = k.owner AND hidden = 0 AND ended AND NOT pinned ORDER BY used_at, n LIMIT $5
    ) oldest WINDOW w AS (ORDER BY oldest.used_at, oldest.n)
  ) o WHERE ($1 > 0 AND o.older < k.runs - $1) OR ($2 > 0 AND o.older_bytes < k.bytes - $2)
  UNION
  SELECT o.owner, o.id, o.n, o.used_at, o.read_until FROM (
    SELECT oldest.*, sum(oldest.bytes) OVER (ORDER BY oldest.used_at, oldest.n) - oldest.bytes AS older_bytes FROM (
      SELECT owner, id, n, used_at, read_until, bytes FROM runs
      WHERE hidden = 0 AND ended AND NOT pinned AND $3 > 0 ORDER BY used_at, n LIMIT $5
    ) oldest
  ) o WHERE o.older_bytes < (SELECT sum(bytes) FROM kept) - $3
  UNION
  (SELECT owner, id, n, used_at, read_until FROM runs
   WHERE hidden = 0 AND ended AND NOT pinned AND $4::bigint > 0 AND used_at < $4 ORDER BY used_at, n LIMIT $5)
)
SELECT owner, id FROM beyond WHERE read_until <= holdfast_now() ORDER BY used_at, n LIMIT $5;

-- name: youngest
-- May this run go, and when was a run that follows it, however far down, last used?
WITH RECURSIVE down (id) AS (
  SELECT id FROM runs WHERE owner = $1 AND previous = $2
  UNION ALL
  SELECT runs.id FROM down JOIN runs ON runs.owner = $1 AND runs.previous = down.id
)
SELECT used_at, (SELECT max(later.used_at) FROM down JOIN runs later ON later.id = down.id WHERE later.hidden = 0) AS later
FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 AND ended AND NOT pinned AND read_until <= holdfast_now();

-- name: forget_turns_of_hidden
-- A hidden run lends its turn as long as some run follows it that is there; then the turn goes too, and its edits.
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
-- A tombstone says "expired" for a while; then it goes, when nothing names it any more, with what a zombie left of it.
WITH gone AS (
  DELETE FROM runs WHERE n IN (
    SELECT n FROM runs AS dead WHERE hidden > 0 AND turn IS NULL AND updated_at < $1 AND NOT EXISTS (
      SELECT FROM runs AS later WHERE later.owner = dead.owner AND later.previous = dead.id
    ) LIMIT 500
  ) RETURNING id
), rest AS (DELETE FROM run_log USING gone WHERE run_log.run = gone.id)
DELETE FROM signals USING gone WHERE signals.run = gone.id;

-- name: usage
-- What each owner keeps.
SELECT owner, count(*), sum(bytes)::bigint, count(*) FILTER (WHERE pinned) FROM runs WHERE hidden = 0
GROUP BY owner ORDER BY sum(bytes) DESC;

-- name: alone
-- One process at a time keeps house; it lets go at the end of its transaction.
SELECT pg_try_advisory_xact_lock(hashtextextended('holdfast upkeep', 0));

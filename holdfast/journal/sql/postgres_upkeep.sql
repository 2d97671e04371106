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
-- Ended runs beyond a bound (0: none), those used longest ago first: by number and bytes of each owner, by bytes in all, by age.
SELECT owner, id FROM (
  SELECT owner, id, n, used_at,
    row_number() OVER (PARTITION BY owner ORDER BY used_at DESC, n DESC) AS place,
    sum(bytes) OVER (PARTITION BY owner ORDER BY used_at DESC, n DESC) AS own,
    sum(bytes) OVER (ORDER BY used_at DESC, n DESC) AS total
  FROM runs WHERE hidden = 0 AND ended AND NOT pinned
) kept WHERE ($1::bigint > 0 AND place > $1) OR ($2::bigint > 0 AND own > $2) OR ($3::bigint > 0 AND total > $3)
  OR ($4::bigint > 0 AND used_at < $4)
ORDER BY used_at, n LIMIT $5;

-- name: youngest
-- May this run go, and when was a run that follows it, however far down, last used?
WITH RECURSIVE down (id) AS (
  SELECT id FROM runs WHERE owner = $1 AND previous = $2
  UNION ALL
  SELECT runs.id FROM down JOIN runs ON runs.owner = $1 AND runs.previous = down.id
)
SELECT used_at, (SELECT max(later.used_at) FROM down JOIN runs later ON later.id = down.id WHERE later.hidden = 0) AS later
FROM runs WHERE owner = $1 AND id = $2 AND hidden = 0 AND ended AND NOT pinned;

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

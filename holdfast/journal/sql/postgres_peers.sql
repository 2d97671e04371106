-- name: beat
-- A process is there. A beat that comes after its lease was over begins a new line of beats: what it held before is free.
-- Its lock is named only while it has it: else only its lease counts.
INSERT INTO replicas AS p (holder, name, works, beat_at, since, lease_until, lock_key)
SELECT $1, $2, $3, c.now, c.now, c.now + $4::bigint, $5 FROM (SELECT holdfast_now() AS now) c
ON CONFLICT (holder) DO UPDATE SET beat_at = excluded.beat_at, lease_until = excluded.lease_until, dead = false,
  lock_key = excluded.lock_key, since = CASE WHEN p.lease_until <= excluded.beat_at THEN excluded.beat_at ELSE p.since END
RETURNING since = beat_at AS anew;

-- name: unlocked_here
-- A process has lost its lock, and lives.
UPDATE replicas SET lock_key = NULL WHERE holder = $1 AND lock_key IS NOT NULL;

-- name: unlocked
-- Processes whose lease is fresh and whose session lock is free: their connection is gone. Not while all connections are.
WITH others AS MATERIALIZED (
  SELECT holder, lock_key FROM replicas WHERE holder != $1 AND NOT dead AND lock_key IS NOT NULL
    AND lease_until > holdfast_now()
    AND holdfast_now() > (extract(epoch FROM pg_postmaster_start_time()) + $2::float8) * 1000
)
SELECT holder FROM others WHERE pg_try_advisory_xact_lock_shared(lock_key);

-- name: bury
-- A process is gone before its lease is over; whoever waits for work is told.
WITH gone AS (
  UPDATE replicas SET dead = true WHERE holder = ANY ($1::text[]) AND NOT dead AND lease_until > holdfast_now()
  RETURNING holder
)
SELECT pg_notify('holdfast', $2) FROM gone;

-- name: revive
-- A process that has its lock was judged wrongly: its connection was gone for a moment only.
UPDATE replicas SET dead = false WHERE holder = $1 AND dead;

-- name: strand
-- Whoever waited on a connection to a process that is gone has lost it, but for one process. Rows that others have in hand
-- are left for the next time: whoever asks again meanwhile finds them too.
UPDATE runs SET waits = false, lost_at = holdfast_now() WHERE id IN (
  SELECT r.id FROM runs r WHERE r.waits AND r.waiter != $1 AND NOT EXISTS (
    SELECT FROM replicas p WHERE p.holder = r.waiter AND NOT p.dead AND p.lease_until > holdfast_now()
  ) FOR UPDATE SKIP LOCKED
);

-- name: forget
-- Processes that are gone are forgotten once nothing names them.
DELETE FROM replicas p WHERE holder != $1 AND (dead OR lease_until <= holdfast_now())
  AND NOT EXISTS (SELECT FROM runs r WHERE r.holder = p.holder AND NOT r.ended);

-- name: leave
-- A process ends in order: nothing waits for its lease.
UPDATE replicas SET dead = true WHERE holder = $1;

-- name: wished
-- The runs of a holder for which a signal waits.
SELECT DISTINCT r.owner, r.id FROM runs r JOIN signals s ON s.run = r.id WHERE r.holder = $1 AND NOT r.ended;

-- name: queued
-- How many runs wait to be claimed.
SELECT count(*) FROM runs r LEFT JOIN replicas p ON p.holder = r.holder, (SELECT holdfast_now() AS now) c
WHERE NOT r.ended AND (r.holder IS NULL OR COALESCE(p.dead, false)
    OR NOT (r.held_until > c.now OR (COALESCE(p.lease_until, 0) > c.now AND p.since < r.held_until)))
  AND (r.wake_at <= c.now OR EXISTS (SELECT FROM signals s WHERE s.run = r.id AND (s.kind != 'approval' OR s.key = r.asks)));

-- name: settle
-- The home of a workspace, if it has none.
INSERT INTO workspaces (owner, place, home) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: home
-- The home that it has.
SELECT home FROM workspaces WHERE owner = $1 AND place = $2;

-- name: replicas
-- Who is there, the one that was heard of last first.
SELECT p.holder, p.name, p.works, greatest(holdfast_now() - p.beat_at, 0) AS seen_ms,
  (SELECT count(*) FROM runs r WHERE r.holder = p.holder AND NOT r.ended) AS runs
FROM replicas p WHERE NOT p.dead ORDER BY p.beat_at DESC, p.holder;

-- name: lock
-- The lock that says: this process has its connection.
SELECT pg_try_advisory_lock($1);

-- name: beat
-- Renews the lease of a process. If the lease had expired, `since` starts again, and what the process held is free. The
-- lock is named only while the process holds it; without it only the lease counts. `missed`: others took the process for
-- gone (the subselect sees the row as it was).
INSERT INTO replicas AS p (holder, name, works, beat_at, since, lease_until, lock_key)
SELECT $1, $2, $3, c.now, c.now, c.now + $4::bigint, $5 FROM (SELECT ninelives_now() AS now) c
ON CONFLICT (holder) DO UPDATE SET beat_at = excluded.beat_at, lease_until = excluded.lease_until, dead = false,
  lock_key = excluded.lock_key, since = CASE WHEN p.lease_until <= excluded.beat_at THEN excluded.beat_at ELSE p.since END
RETURNING since = beat_at AS anew,
  since = beat_at OR COALESCE((SELECT o.dead FROM replicas o WHERE o.holder = $1), false) AS missed;

-- name: welcome_back
-- The callers of a process that was taken for gone still wait there, unless a retried request has taken their place. A
-- run that waited for one of them is work again.
WITH back AS (
  UPDATE runs SET waits = true, lost_at = 0, wake_at = CASE WHEN asks = '' THEN 0 ELSE wake_at END
  WHERE waiter = $1 AND NOT waits AND lost_at > 0 RETURNING holder, ended
)
SELECT pg_notify('ninelives', $2) FROM back WHERE holder IS NULL AND NOT ended LIMIT 1;

-- name: succeed
-- The processes before this one have ended, and their supervisor has seen it: what they held is free. The callers of these
-- runs are still connected, and wait here now, unless a retried request has taken their place.
WITH gone AS (
  UPDATE replicas SET dead = true, beat_at = ninelives_now() WHERE holder = ANY ($1::text[]) AND NOT dead
)
UPDATE runs r SET waits = true, lost_at = 0, waiter = $2, wake_at = CASE WHEN asks = '' THEN 0 ELSE wake_at END
FROM unnest($3::text[], $4::text[]) AS a (owner, id)
WHERE r.owner = a.owner AND r.id = a.id AND r.waiter = ANY ($1::text[]) AND (r.waits OR r.lost_at > 0);

-- name: unlocked_here
-- A process has lost its lock but lives.
UPDATE replicas SET lock_key = NULL WHERE holder = $1 AND lock_key IS NOT NULL;

-- name: locks
-- Processes with a valid lease that have named their session lock: whether it is free, because their connection is gone,
-- and whether the database has run for longer than a lease. A start of the database frees all locks.
WITH others AS MATERIALIZED (
  SELECT holder, lock_key FROM replicas WHERE holder != $1 AND NOT dead AND lock_key IS NOT NULL
    AND lease_until > ninelives_now()
)
SELECT holder, pg_try_advisory_xact_lock_shared(lock_key) AS free,
  ninelives_now() > (extract(epoch FROM pg_postmaster_start_time()) + $2::float8) * 1000 AS settled
FROM others;

-- name: bury
-- Marks processes as dead before their lease expires, and notifies those who wait for work. beat_at is then the time of
-- this: what a dead process held is free since then.
WITH gone AS (
  UPDATE replicas SET dead = true, beat_at = ninelives_now() WHERE holder = ANY ($1::text[]) AND NOT dead AND lease_until > ninelives_now()
  RETURNING holder
)
SELECT pg_notify('ninelives', $2) FROM gone;

-- name: revive
-- A process that holds its lock is not dead: it was without a connection for a moment.
UPDATE replicas SET dead = false WHERE holder = $1 AND dead RETURNING holder;

-- name: strand
-- Marks callers as lost whose process is gone, except those of one process. Skips rows that others have locked: the
-- next round takes them, and a retry finds them anyway. A run whose holder is gone too waits to be claimed. The run
-- still names that process (waiter): it may only have been frozen.
UPDATE runs SET waits = false, lost_at = ninelives_now(), status = CASE WHEN NOT ended AND status = 'running'
  AND NOT EXISTS (
    SELECT FROM replicas p WHERE p.holder = runs.holder AND NOT p.dead AND p.lease_until > ninelives_now()
  ) THEN 'queued' ELSE status END
WHERE id IN (
  SELECT r.id FROM runs r WHERE r.waits AND r.waiter != $1 AND NOT EXISTS (
    SELECT FROM replicas p WHERE p.holder = r.waiter AND NOT p.dead AND p.lease_until > ninelives_now()
  ) FOR UPDATE SKIP LOCKED
);

-- name: answered
-- All that there is was delivered to the callers who wait at this process. If their place was lost or taken over
-- meanwhile, nothing changes.
UPDATE runs r SET waits = false, lost_at = 0, delivered_at = CASE WHEN ended THEN ninelives_now() ELSE 0 END
FROM unnest($1::text[], $2::text[]) AS a (owner, id)
WHERE r.owner = a.owner AND r.id = a.id AND (r.waits OR r.lost_at > 0) AND r.waiter = $3;

-- name: rest_given
-- A run that asked, and whose caller had the question, was shown to its end.
UPDATE runs SET delivered_at = ninelives_now()
WHERE owner = $1 AND id = $2 AND ended AND NOT waits AND lost_at = 0 AND delivered_at = 0;

-- name: lose
-- The connection of the caller who waited at this process was lost. If nobody holds the run, it waits for the same
-- request, unless it is stored or a question is open. No process speaks of that caller any more (waiter): NULL where the
-- caller left ($4), which its holder should know, and empty where it was cut off.
UPDATE runs r SET waits = false, lost_at = c.now, waiter = CASE WHEN $4::boolean THEN NULL ELSE '' END,
  wake_at = CASE WHEN holder IS NULL AND NOT ended AND kept != 'stored' AND asks = '' THEN c.now + resend_ms ELSE wake_at END
FROM (SELECT ninelives_now() AS now) c WHERE r.owner = $1 AND r.id = $2 AND (r.waits OR r.lost_at > 0)
  AND r.waiter = $3;

-- name: forget
-- Deletes processes that are gone once no run names them.
DELETE FROM replicas p WHERE holder != $1 AND (dead OR lease_until <= ninelives_now())
  AND NOT EXISTS (SELECT FROM runs r WHERE r.holder = p.holder AND NOT r.ended);

-- name: leave
-- A process ends in order: nobody waits for its lease to expire.
UPDATE replicas SET dead = true, beat_at = ninelives_now() WHERE holder = $1;

-- name: held
-- The runs of a holder: whether a signal is pending, and how long ago the caller left (HeldRun.left_ms).
SELECT r.owner, r.id, r.attempt, EXISTS (SELECT FROM signals s WHERE s.run = r.id) AS wished,
  CASE WHEN r.lost_at > 0 AND (r.kept = 'delivery' OR (r.kept = 'hours' AND r.waiter IS NULL)) THEN greatest(ninelives_now() - r.lost_at, 1) ELSE 0 END AS left_ms
FROM (SELECT ninelives_now() AS now) c CROSS JOIN runs r LEFT JOIN replicas p ON p.holder = r.holder
WHERE r.holder = $1 AND NOT r.ended AND NOT COALESCE(p.dead, false)
  AND (r.held_until > c.now OR (COALESCE(p.lease_until, 0) > c.now AND p.since < r.held_until)) ORDER BY r.n;

-- name: settle_home
-- Sets the home of a workspace that has none.
INSERT INTO workspaces (owner, place, home) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: home
-- The home of a workspace.
SELECT home FROM workspaces WHERE owner = $1 AND place = $2;

-- name: replicas
-- All living processes, the one heard from last first.
SELECT p.holder, p.name, p.works, greatest(ninelives_now() - p.beat_at, 0) AS seen_ms,
  (SELECT count(*) FROM runs r WHERE r.holder = p.holder AND NOT r.ended) AS runs
FROM replicas p WHERE NOT p.dead ORDER BY p.beat_at DESC, p.holder;

-- name: lock
-- Takes the session lock that shows that this process is connected.
SELECT pg_try_advisory_lock($1);

-- name: active
-- How many runs of an owner have not ended and wait for no person.
SELECT count(*) FROM runs WHERE owner = $1 AND NOT ended AND asks = '';

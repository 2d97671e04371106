-- name: append
-- Appends slices without a mark. Each is written only where its attempt holds the run and the row before it (`before`
-- is its first number) is there: after a failover to a standby that was behind, rows may be missing. A row after it would
-- have its place, and a taken place fails the whole statement. {slices}: see append_statements() in log.py.
INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
SELECT held.owner, s.run, s.first_seq, s.last_seq, s.attempt, s.at, s.crc_before, s.crc_after, s.data
FROM {slices} AS s (run, attempt, first_seq, last_seq, at, crc_before, crc_after, data, before)
CROSS JOIN LATERAL (
  SELECT r.owner FROM runs r WHERE r.id = s.run AND r.attempt = s.attempt AND r.holder IS NOT NULL AND NOT r.ended
    AND (s.first_seq - 1, s.crc_before) =
      (SELECT b.last_seq, b.crc_after FROM run_log b WHERE b.owner = r.owner AND b.run = s.run
        AND b.first_seq = s.before) LIMIT 1
) AS held
RETURNING run;

-- name: append_contested
-- The same where a place is taken, or where other processes read a run: skips a slice whose place is taken, writes all
-- others, and notifies these processes.
WITH written AS (
  INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  SELECT held.owner, s.run, s.first_seq, s.last_seq, s.attempt, s.at, s.crc_before, s.crc_after, s.data
  FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[],
    $9::bigint[]) AS s (run, attempt, first_seq, last_seq, at, crc_before, crc_after, data, before)
  CROSS JOIN LATERAL (
    SELECT r.owner FROM runs r WHERE r.id = s.run AND r.attempt = s.attempt AND r.holder IS NOT NULL AND NOT r.ended
      AND (s.first_seq - 1, s.crc_before) =
        (SELECT b.last_seq, b.crc_after FROM run_log b WHERE b.owner = r.owner AND b.run = s.run
          AND b.first_seq = s.before) LIMIT 1
  ) AS held
  ON CONFLICT DO NOTHING RETURNING run
)%s
SELECT run FROM written UNION ALL SELECT pg_notify('ninelives', p)::text FROM unnest($10::text[]) AS p;

-- name: append_marked
-- Appends slices with a mark: locks and changes the run's row, then all that depends on it, in one statement. The log
-- must end where this process believes it does (as in `append`). A taken place fails it as a whole. used_at and ended_at go by the clock of the database, because retention compares them. A
-- run that was left (s.gone) waits until its request cannot join it any more, unless somebody has joined it already.
WITH m AS (
  UPDATE runs AS r SET status = s.status, updated_at = s.at, used_at = c.now, parked = s.parked, ended = s.ended,
    chains = s.chains, asks = s.asks, last_seq = s.last_seq, bytes = s.bytes, turn = s.turn,
    wake_at = CASE WHEN NOT s.gone THEN s.wake_at WHEN r.waits THEN 0
      ELSE COALESCE(NULLIF(r.lost_at, 0), c.now) + r.resend_ms END,
    holder = CASE WHEN s.ended OR s.parked THEN NULL ELSE r.holder END,
    waits = r.waits AND NOT s.void, lost_at = CASE WHEN s.void THEN 0 ELSE r.lost_at END,
    ended_at = CASE WHEN s.ended THEN c.now ELSE 0 END, delivered_at = CASE WHEN s.ended AND s.void THEN c.now ELSE 0 END
  FROM unnest($1::text[], $2::int[], $3::text[], $4::bigint[], $5::boolean[], $6::boolean[], $7::boolean[],
      $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::text[], $13::boolean[], $14::text[], $15::boolean[],
      $16::bytea[], $26::bigint[], $27::bigint[])
    AS s (run, attempt, status, at, parked, ended, chains, wake_at, last_seq, bytes, turn, session, void, asks, gone, said,
      end_seq, end_crc), (SELECT ninelives_now() AS now) c
  WHERE r.id = s.run AND r.attempt = s.attempt AND r.holder IS NOT NULL AND NOT r.ended AND (s.end_seq, s.end_crc) =
    (SELECT b.last_seq, b.crc_after FROM run_log b WHERE b.owner = r.owner AND b.run = s.run
      ORDER BY b.first_seq DESC LIMIT 1)
  RETURNING r.id, r.n, r.owner, r.conversation, s.ended, s.chains, s.at, s.session, COALESCE(s.said, s.turn) AS turn
), written AS (
  INSERT INTO run_log (owner, run, first_seq, last_seq, attempt, at, crc_before, crc_after, data)
  SELECT held.owner, s.run, s.first_seq, s.last_seq, s.attempt, s.at, s.crc_before, s.crc_after, s.data
  FROM unnest($17::text[], $18::int[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[],
      $24::bytea[]) AS s (run, attempt, first_seq, last_seq, at, crc_before, crc_after, data)
  JOIN m AS held ON held.id = s.run
), freed AS (
  UPDATE conversations c SET active = NULL, latest = CASE WHEN m.chains THEN m.id ELSE c.latest END
  FROM m WHERE m.ended AND c.owner = m.owner AND c.id = m.conversation AND c.active = m.id
), quiet AS (
  DELETE FROM signals USING m WHERE m.ended AND signals.run = m.id AND signals.kind != 'steer'
), turns AS (
  INSERT INTO session_turns (owner, session, n, at, run, turn)
  SELECT m.owner, m.session, row_number() OVER (PARTITION BY m.owner, m.session ORDER BY m.n)
    + COALESCE((SELECT max(t.n) FROM session_turns t WHERE t.owner = m.owner AND t.session = m.session), 0),
    m.at, m.id, COALESCE(m.turn, '') FROM m WHERE m.ended AND m.session != ''
)%s
SELECT id FROM m UNION ALL SELECT pg_notify('ninelives', p)::text FROM unnest($25::text[]) AS p;

-- name: audit
-- A part of the two statements above where slices bring entries of the audit log: those of slices that are written.
, audited AS (
  INSERT INTO audit_log (at, owner, key, action, object, result, remote, detail, id)
  SELECT e.at, e.owner, e.key, e.action, e.object, e.result, e.remote, e.detail, e.id
  FROM jsonb_to_recordset({entries}::jsonb) AS e (run text, place int, at bigint, owner text, key text, action text,
    object text, result text, remote text, detail text, id text)
  WHERE e.run IN ({written}) ORDER BY e.place ON CONFLICT DO NOTHING
)

-- name: ends
-- The end of the log and the attempt of runs, where this process does not know them.
SELECT r.id, r.attempt, l.first_seq, l.last_seq, l.crc_after,
  (SELECT COALESCE(sum(octet_length(data)), 0) FROM run_log WHERE owner = r.owner AND run = r.id)::bigint AS bytes
FROM runs r CROSS JOIN LATERAL (
  SELECT first_seq, last_seq, crc_after FROM run_log WHERE owner = r.owner AND run = r.id ORDER BY first_seq DESC LIMIT 1
) l WHERE r.id = ANY ($1::text[]) AND r.holder IS NOT NULL AND NOT r.ended;

-- name: went_back
-- Releases runs whose log ends before the last record that this process has written and shown ($3): the database lost
-- the rest. told_seq remembers how far readers were shown. A run whose claim was lost too belongs to whoever had it before.
UPDATE runs r SET told_seq = GREATEST(r.told_seq, d.seq), parked = r.parked AND r.attempt != d.attempt,
  holder = CASE WHEN r.attempt = d.attempt THEN NULL ELSE r.holder END,
  status = CASE WHEN r.attempt = d.attempt THEN 'queued' ELSE r.status END
FROM unnest($1::text[], $2::int[], $3::bigint[]) AS d (run, attempt, seq)
JOIN runs o ON o.id = d.run CROSS JOIN LATERAL (
  SELECT last_seq FROM run_log WHERE run_log.owner = o.owner AND run_log.run = d.run ORDER BY first_seq DESC LIMIT 1
) l
WHERE r.id = d.run AND r.attempt <= d.attempt AND (r.holder IS NULL OR r.holder = $4 OR r.attempt < d.attempt)
  AND NOT r.ended AND l.last_seq < d.seq
RETURNING r.id, d.seq - l.last_seq AS lost, pg_notify('ninelives', $5);

-- name: written
-- The rows at the places of slices whose answer was lost.
SELECT l.run, l.first_seq, l.attempt, l.data FROM unnest($1::text[], $2::bigint[]) AS d (run, first_seq)
JOIN runs r ON r.id = d.run JOIN run_log l ON l.owner = r.owner AND l.run = d.run AND l.first_seq = d.first_seq;

-- name: marked
-- The rows of runs whose mark had no answer.
SELECT id, attempt, status, updated_at FROM runs WHERE id = ANY ($1::text[]) AND holder IS NULL;

-- name: pages
-- For each (owner, run, place): the last number that the run's row knows of, about a page of the rows after the place, and
-- the row that has the place itself, where the reader has seen it ($5 is the attempt, -1 for a reader that has not).
SELECT q.i, r.last_seq AS least, r.ended, l.first_seq, l.last_seq, l.crc_before, l.crc_after, l.data, at_place
FROM unnest($1::text[], $2::text[], $3::bigint[], $5::bigint[]) WITH ORDINALITY AS q (owner, run, place, seen, i)
JOIN runs r ON r.id = q.run AND r.owner = q.owner AND r.hidden = 0
LEFT JOIN LATERAL (
  SELECT p.last_seq >= q.place AND (p.first_seq = 0 OR p.attempt = q.seen) AS at_place FROM run_log p
  WHERE q.seen >= 0 AND p.owner = q.owner AND p.run = q.run AND p.first_seq <= q.place ORDER BY p.first_seq DESC LIMIT 1
) seen ON true
LEFT JOIN LATERAL (
  SELECT * FROM (
    SELECT near.*, sum(octet_length(near.data)) OVER (ORDER BY near.first_seq) - octet_length(near.data) AS ahead
    FROM (
      SELECT first_seq, last_seq, crc_before, crc_after, data FROM run_log
      WHERE owner = q.owner AND run = q.run AND first_seq >= COALESCE((SELECT first_seq FROM run_log
        WHERE owner = q.owner AND run = q.run AND first_seq <= q.place + 1 ORDER BY first_seq DESC LIMIT 1), 0)
      ORDER BY first_seq LIMIT 512
    ) near
  ) measured WHERE ahead < $4
) l ON true
ORDER BY q.i, l.first_seq;

-- name: being_read
-- Spares runs from retention while somebody reads them page by page. Written again only after a fifth of the time.
UPDATE runs SET read_until = ninelives_now() + $2::bigint
WHERE id = ANY ($1::text[]) AND hidden = 0 AND read_until < ninelives_now() + $2::bigint * 4 / 5;

-- name: notify_all
-- Says something to all processes.
SELECT pg_notify('ninelives', $1);

-- name: runs
-- All runs but tombstones.
SELECT id, n, last_seq, sealed_seq, sealed_crc, ended FROM runs WHERE hidden = 0 ORDER BY n;

-- name: hot
-- The hot table, in the order of writing.
SELECT run, seq, attempt, at, crc, data FROM entries ORDER BY id;

-- name: segments
-- The packed records of a run.
SELECT crc, data FROM segments WHERE owner = (SELECT owner FROM runs WHERE n = ?1) AND run = ?1 ORDER BY first_seq;

-- name: old_segments
-- The same before schema 10.
SELECT crc, data FROM segments WHERE run = ? ORDER BY first_seq;

-- name: loose_ends
-- Dangling references, each as a sentence.
SELECT 'conversation ' || c.id || ': its active run ' || c.active || ' is not active' FROM conversations c
WHERE c.active IS NOT NULL AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = c.owner AND r.id = c.active AND r.ended = 0)
UNION ALL
SELECT 'conversation ' || c.id || ': its latest run ' || c.latest || ' is not there' FROM conversations c
WHERE c.latest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = c.owner AND r.id = c.latest AND r.hidden = 0)
UNION ALL
SELECT 'an idempotency key names the run ' || k.run || ', which is not there' FROM keys k
WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = k.owner AND r.id = k.run AND r.hidden = 0)
UNION ALL
SELECT 'run ' || r.id || ' follows ' || r.previous || ', whose turn is gone' FROM runs r
WHERE r.hidden = 0 AND r.previous IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.owner = r.owner AND p.id = r.previous AND p.turn IS NOT NULL)
UNION ALL
SELECT 'segments of the run number ' || s.run || ' belong to nobody' FROM segments s
WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.n = s.run AND r.hidden = 0) GROUP BY s.run;

-- name: loose_edits
-- Edits of conversations that do not exist, each as a sentence. The table came with schema 3.
SELECT 'items were removed from the conversation ' || e.conversation || ', which is not there' FROM conversation_edits e
WHERE NOT EXISTS (SELECT 1 FROM conversations c WHERE c.owner = e.owner AND c.id = e.conversation);

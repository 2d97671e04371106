-- name: find
-- A conversation by id or by name.
SELECT id, name, created_at, metadata, latest, active FROM conversations WHERE owner = ?1 AND (id = ?2 OR name = ?2);

-- name: page_up
-- A page of an owner's conversations, oldest first.
SELECT id, name, created_at, metadata, latest, active FROM conversations WHERE owner = ?1 AND (?2 IS NULL
  OR (created_at, id) > (SELECT created_at, id FROM conversations WHERE owner = ?1 AND id = ?2))
ORDER BY created_at, id LIMIT ?3;

-- name: page_down
-- The same, newest first.
SELECT id, name, created_at, metadata, latest, active FROM conversations WHERE owner = ?1 AND (?2 IS NULL
  OR (created_at, id) < (SELECT created_at, id FROM conversations WHERE owner = ?1 AND id = ?2))
ORDER BY created_at DESC, id DESC LIMIT ?3;

-- name: annotate
-- Replace the metadata of a conversation.
UPDATE conversations SET metadata = ?3 WHERE owner = ?1 AND (id = ?2 OR name = ?2) RETURNING id;

-- name: line
-- The runs of a conversation, oldest first, each with its removed items.
WITH RECURSIVE line (id, previous, dialect, hidden, depth) AS (
  SELECT runs.id, runs.previous, runs.dialect, runs.hidden, 0 FROM conversations AS named
  JOIN runs ON runs.owner = ?1 AND runs.id = named.latest WHERE named.owner = ?1 AND (named.id = ?2 OR named.name = ?2)
  UNION ALL
  SELECT runs.id, runs.previous, runs.dialect, runs.hidden, line.depth + 1
  FROM line JOIN runs ON runs.owner = ?1 AND runs.id = line.previous
)
SELECT line.id, line.dialect, line.hidden, edits.removed FROM line
LEFT JOIN conversation_edits AS edits ON edits.owner = ?1 AND edits.run = line.id
  AND edits.conversation = (SELECT id FROM conversations WHERE owner = ?1 AND (id = ?2 OR name = ?2))
ORDER BY line.depth DESC;

-- name: edit
-- Note which items were removed from a run's turn.
INSERT INTO conversation_edits (owner, conversation, run, removed, turn) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (owner, conversation, run) DO UPDATE SET removed = excluded.removed, turn = excluded.turn;

-- name: forget
-- Delete a conversation.
DELETE FROM conversations WHERE owner = ? AND id = ?;

-- name: forget_edits
-- Delete the edits of a conversation.
DELETE FROM conversation_edits WHERE owner = ? AND conversation = ?;

-- name: unlisted
-- Runs that must be listed: ended ones, and with ?3 those that were not listed when they began. NULL: all owners.
SELECT owner, id FROM runs WHERE listed < 2 AND hidden = 0 AND kept IN ('stored', 'hours')
  AND (?1 IS NULL OR owner = ?1) AND (ended = 1 OR (?3 AND listed = 0)) ORDER BY n LIMIT ?2;

-- name: unlisted_turns
-- Stored turns that must be listed, and whose run is gone or never was here.
SELECT owner, session, run, at, turn FROM session_turns AS t WHERE listed = 0 AND (?1 IS NULL OR owner = ?1)
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = t.owner AND r.id = t.run AND r.hidden = 0)
ORDER BY owner, session, n LIMIT ?2;

-- name: runs_to_list
-- How far runs are listed: ?1 is a JSON list of owners and ids. Those that are gone are left out.
SELECT r.owner, r.id, r.listed, r.entry FROM json_each(?1) AS named
JOIN runs AS r ON r.owner = named.value ->> 0 AND r.id = named.value ->> 1 WHERE r.hidden = 0;

-- name: turn_to_list
-- Whether a stored turn must be listed.
SELECT 1 FROM session_turns WHERE owner = ? AND session = ? AND COALESCE(run, '') = ? AND at = ? AND listed = 0 LIMIT 1;

-- name: entry_of_run
-- The listed session of a run, also of a deleted one.
SELECT entry FROM runs WHERE owner = ? AND id = ? AND entry != '';

-- name: entry_by_all
-- The chat that ended with exactly this history.
SELECT entry FROM session_texts WHERE owner = ? AND mark_all = ? AND mark_all != '' ORDER BY id DESC LIMIT 1;

-- name: entry_by_user
-- The chat in which the user had said exactly this.
SELECT entry FROM session_texts WHERE owner = ? AND mark_user = ? AND mark_user != '' ORDER BY id DESC LIMIT 1;

-- name: is_listed
-- Whether there is a session with this id.
SELECT 1 FROM sessions WHERE owner = ? AND id = ?;

-- name: add_to_session
-- Count a turn, and create the session with its first one.
INSERT INTO sessions (owner, id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens,
  output_tokens, created_at, used_at)
VALUES (?1, ?2, ?3, 0, '', ?4, ?5, ?6, '', ?7, ?8 + ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (owner, id) DO UPDATE SET
  preview = CASE WHEN preview = '' THEN excluded.preview ELSE preview END,
  source = CASE WHEN source = '' THEN excluded.source ELSE source END,
  model = CASE WHEN excluded.model = '' THEN model ELSE excluded.model END,
  turns = turns + ?7, messages = messages + CASE WHEN turns = 0 THEN ?8 + ?9 ELSE ?8 END,
  input_tokens = input_tokens + ?10, output_tokens = output_tokens + ?11,
  created_at = MIN(created_at, ?12), used_at = MAX(used_at, ?13);

-- name: list_run
-- Note how far a run is listed. Its text counts towards its size.
UPDATE runs SET entry = ?3, listed = ?4, bytes = bytes + ?5 WHERE owner = ?1 AND id = ?2;

-- name: list_stored_turn
-- Note that a stored turn is listed.
UPDATE session_turns SET listed = 1 WHERE owner = ?1 AND session = ?2 AND COALESCE(run, '') = ?3 AND listed = 0;

-- name: add_text
-- Add a text to the search. Rows of more texts may follow.
INSERT INTO session_texts (owner, entry, run, mark_all, mark_user, text) VALUES (?, ?, ?, ?, ?, ?);

-- name: forget_text
-- Delete the text of a turn or a title.
DELETE FROM session_texts WHERE owner = ? AND entry = ? AND run = ?;

-- name: has_text
-- Whether the text of a turn can be searched.
SELECT 1 FROM session_texts WHERE owner = ? AND entry = ? AND run = ?;

-- name: edit_preview
-- The preview of a session whose first words were removed.
UPDATE sessions SET preview = ?4 WHERE owner = ?1 AND id = ?2 AND preview = ?3;

-- name: unlist_text
-- Delete the text of a run that goes, unless a session kept its turn.
DELETE FROM session_texts WHERE owner = ?1 AND entry = ?2 AND run = ?3 AND NOT EXISTS (
  SELECT 1 FROM session_turns t WHERE t.owner = ?1 AND t.session = ?2 AND t.run = ?3);

-- name: drop_empty
-- Delete a session that has no run and no turn any more, unless somebody created it.
DELETE FROM sessions WHERE owner = ?1 AND id = ?2 AND made = 0
  AND NOT EXISTS (SELECT 1 FROM runs WHERE owner = ?1 AND entry = ?2 AND entry != '' AND hidden = 0)
  AND NOT EXISTS (SELECT 1 FROM session_turns WHERE owner = ?1 AND session = ?2) RETURNING id;

-- name: forget_texts
-- Delete all texts of a session.
DELETE FROM session_texts WHERE owner = ? AND entry = ?;

-- name: forget_entry
-- Delete a listed session.
DELETE FROM sessions WHERE owner = ? AND id = ?;

-- name: list_again
-- The runs of a deleted session are listed again, as far as they are still there.
UPDATE runs SET entry = '', listed = 0 WHERE owner = ? AND entry = ? AND entry != '' AND hidden = 0;

-- name: page
-- A page of sessions, the one used last first.
SELECT id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens, output_tokens,
  created_at, used_at, '' FROM sessions
WHERE owner = ?1 AND (?2 IS NULL OR source = ?2)
  AND (?3 IS NULL OR (used_at, id) < (SELECT used_at, id FROM sessions WHERE owner = ?1 AND id = ?3))
ORDER BY used_at DESC, id DESC LIMIT ?4 OFFSET ?5;

-- name: search
-- The same for sessions that have the words ?6, each with the newest text that has them (a bare column beside MAX).
SELECT s.id, s.session, s.made, s.title, s.preview, s.source, s.model, s.end_reason, s.turns, s.messages, s.input_tokens,
  s.output_tokens, s.created_at, s.used_at, t.text, MAX(t.id) FROM session_words
JOIN session_texts t ON t.id = session_words.rowid JOIN sessions s ON s.owner = t.owner AND s.id = t.entry
WHERE session_words MATCH ?6 AND t.owner = ?1 AND (?2 IS NULL OR s.source = ?2)
  AND (?3 IS NULL OR (s.used_at, s.id) < (SELECT used_at, id FROM sessions WHERE owner = ?1 AND id = ?3))
GROUP BY s.id ORDER BY s.used_at DESC, s.id DESC LIMIT ?4 OFFSET ?5;

-- name: find
-- One session.
SELECT id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens, output_tokens,
  created_at, used_at FROM sessions WHERE owner = ? AND id = ?;

-- name: runs
-- The runs of a session, oldest first.
SELECT owner, id, dialect, model, status, ended, created_at, updated_at, session, conversation, previous, idem,
  metadata, last_seq, kept FROM runs WHERE owner = ? AND entry = ? AND entry != '' AND hidden = 0 ORDER BY n;

-- name: turns
-- The turns that a session keeps itself, oldest first.
SELECT at, run, turn FROM session_turns WHERE owner = ? AND session = ? ORDER BY n;

-- name: change
-- Set the title, why a session ended, or its model.
UPDATE sessions SET title = COALESCE(?3, title), end_reason = COALESCE(?4, end_reason), model = COALESCE(?5, model)
WHERE owner = ?1 AND id = ?2
RETURNING title;

-- name: make
-- Create a session.
INSERT INTO sessions (owner, id, session, made, title, preview, source, model, end_reason, turns, messages, input_tokens,
  output_tokens, created_at, used_at) VALUES (?1, ?2, ?2, 1, ?3, '', ?4, ?5, ?6, 0, 0, ?7, ?8, ?9, ?9)
ON CONFLICT DO NOTHING RETURNING id;

-- name: has_turns
-- Whether a session has turns that are not listed yet.
SELECT 1 FROM session_turns WHERE owner = ? AND session = ? LIMIT 1;

-- name: make_turn
-- A turn of a session that is created.
INSERT INTO session_turns (owner, session, n, at, run, turn, listed) VALUES (?, ?, ?, ?, ?, ?, 1);

-- Every session that owns a run is listed (D2), and can be searched. `entry` is the listed session of a run. `listed`
-- says how far that went: 0 not yet, 1 when it began, 2 with its end. Runs of older releases are listed after the start.
ALTER TABLE runs ADD COLUMN entry TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN listed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_entry ON runs (owner, entry, n) WHERE entry != '' AND hidden = 0;
CREATE INDEX runs_to_list ON runs (n) WHERE listed < 2 AND hidden = 0 AND kept IN ('stored', 'hours');
ALTER TABLE session_turns ADD COLUMN listed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX session_turns_to_list ON session_turns (owner, session, n) WHERE listed = 0;

-- `made`: it stays without a run or a turn, because somebody created it. `session` is the session id of its runs.
CREATE TABLE sessions (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  session TEXT NOT NULL,
  made INTEGER NOT NULL,
  title TEXT NOT NULL,
  preview TEXT NOT NULL,
  source TEXT NOT NULL,
  model TEXT NOT NULL,
  end_reason TEXT NOT NULL,
  turns INTEGER NOT NULL,
  messages INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  used_at INTEGER NOT NULL,
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX sessions_by_use ON sessions (owner, used_at, id);
INSERT INTO sessions SELECT owner, session, session, 0, title, '', '', '', '', 0, 0, 0, 0,
  (SELECT MIN(at) FROM session_turns t WHERE t.owner = session_titles.owner AND t.session = session_titles.session),
  (SELECT MAX(at) FROM session_turns t WHERE t.owner = session_titles.owner AND t.session = session_titles.session)
FROM session_titles WHERE (owner, session) IN (SELECT owner, session FROM session_turns);

-- What a search finds: a text per turn, and the title of a session (then `run` is empty). The marks tell chats apart that
-- begin alike. The index drops the words of a deleted text at once (secure-delete), not at its next merge.
CREATE TABLE session_texts (
  id INTEGER PRIMARY KEY,
  owner TEXT NOT NULL,
  entry TEXT NOT NULL,
  run TEXT NOT NULL,
  mark_all TEXT NOT NULL,
  mark_user TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE INDEX session_texts_by_entry ON session_texts (owner, entry, run);
CREATE INDEX session_texts_by_all ON session_texts (owner, mark_all) WHERE mark_all != '';
CREATE INDEX session_texts_by_user ON session_texts (owner, mark_user) WHERE mark_user != '';
CREATE VIRTUAL TABLE session_words USING fts5(
  text, content = 'session_texts', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2');
INSERT INTO session_words (session_words, rank) VALUES ('secure-delete', 1);
CREATE TRIGGER session_texts_added AFTER INSERT ON session_texts BEGIN
  INSERT INTO session_words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER session_texts_deleted AFTER DELETE ON session_texts BEGIN
  INSERT INTO session_words (session_words, rowid, text) VALUES ('delete', old.id, old.text);
END;
INSERT INTO session_texts (owner, entry, run, mark_all, mark_user, text)
SELECT owner, id, '', '', '', title FROM sessions WHERE title != '';

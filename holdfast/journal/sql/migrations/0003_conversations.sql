-- Conversations as things of their own: notes on them, lists of them, and items that were taken out of them.
ALTER TABLE conversations ADD COLUMN metadata BLOB NOT NULL DEFAULT x'7b7d';
CREATE INDEX conversations_by_age ON conversations (owner, created_at, id);

-- A run's turn as its conversation sees it without the removed items (a JSON list of ids). The run itself stays as it was.
CREATE TABLE conversation_edits (
  owner TEXT NOT NULL,
  conversation TEXT NOT NULL,
  run TEXT NOT NULL,
  removed BLOB NOT NULL,
  turn BLOB NOT NULL,
  PRIMARY KEY (owner, conversation, run)
) WITHOUT ROWID;

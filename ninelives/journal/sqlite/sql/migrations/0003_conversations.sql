-- Conversations as resources: metadata, listing, and removed items.
ALTER TABLE conversations ADD COLUMN metadata BLOB NOT NULL DEFAULT x'7b7d';
CREATE INDEX conversations_by_age ON conversations (owner, created_at, id);

-- A run's turn as its conversation sees it, without the removed items (a JSON list of ids). The run stays unchanged.
CREATE TABLE conversation_edits (
  owner TEXT NOT NULL,
  conversation TEXT NOT NULL,
  run TEXT NOT NULL,
  removed BLOB NOT NULL,
  turn BLOB NOT NULL,
  PRIMARY KEY (owner, conversation, run)
) WITHOUT ROWID;

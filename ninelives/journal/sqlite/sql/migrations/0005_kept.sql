-- What is kept of a run (B6), how long the same request joins it after its connection was lost (B8), what it waits for,
-- and when its answer was delivered (0: not yet). Runs of older releases could be joined for 15 minutes.
ALTER TABLE runs ADD COLUMN kept TEXT NOT NULL DEFAULT 'stored';
ALTER TABLE runs ADD COLUMN resend_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN wake_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN asks TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN delivered INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET resend_ms = 900000 WHERE waits = 1 OR lost_at > 0;
CREATE INDEX runs_asking ON runs (owner, asks) WHERE asks != '';
CREATE INDEX runs_to_forget ON runs (kept, updated_at) WHERE kept != 'stored' AND ended = 1 AND hidden = 0;

-- Retention: last use, size and pin of a run. hidden = 2 is an evicted run.
ALTER TABLE runs ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET used_at = updated_at, bytes = COALESCE(LENGTH(turn), 0)
  + (SELECT COALESCE(SUM(LENGTH(data)), 0) FROM segments WHERE segments.run = runs.n);
CREATE INDEX runs_by_use ON runs (used_at, n, owner, bytes) WHERE hidden = 0 AND ended = 1 AND pinned = 0;
CREATE INDEX runs_hidden ON runs (n) WHERE hidden > 0;
-- Ended runs that still have rows in the hot table: a start finds them without reading every run.
CREATE INDEX runs_hot ON runs (n) WHERE ended = 1 AND hidden = 0 AND sealed_seq < last_seq;
INSERT INTO meta VALUES ('clean', '0');

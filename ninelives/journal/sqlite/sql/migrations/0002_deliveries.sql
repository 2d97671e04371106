-- Who waits for which answer, so that a retried request finds its first run (docs/contract.md, B8 and G13).
ALTER TABLE runs ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN credential TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN lost_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_lost ON runs (owner, fingerprint) WHERE lost_at > 0;
CREATE INDEX runs_waited_for ON runs (n) WHERE waits = 1;

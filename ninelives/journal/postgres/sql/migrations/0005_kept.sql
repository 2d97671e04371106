-- What is kept of a run (B6), how long the same request may join it after its connection was lost (B8), and when it
-- ended and was delivered (0: not yet). Both times are the database's, because any replica may forget the run.
ALTER TABLE runs ADD COLUMN kept text COLLATE "C" NOT NULL DEFAULT 'stored',
  ADD COLUMN resend_ms bigint NOT NULL DEFAULT 0,
  ADD COLUMN ended_at bigint NOT NULL DEFAULT 0,
  ADD COLUMN delivered_at bigint NOT NULL DEFAULT 0;
UPDATE runs SET resend_ms = 900000 WHERE waits OR lost_at > 0;
CREATE INDEX runs_asking ON runs (owner, asks) WHERE asks != '';
CREATE INDEX runs_to_forget ON runs (kept, ended_at) WHERE ended AND hidden = 0 AND kept != 'stored';
-- Stored runs and others have limits of their own.
DROP INDEX runs_by_owner_and_use;
CREATE INDEX runs_by_owner_and_use ON runs (owner, (kept = 'stored'), used_at, n) INCLUDE (bytes, kept)
  WHERE hidden = 0 AND ended AND NOT pinned;

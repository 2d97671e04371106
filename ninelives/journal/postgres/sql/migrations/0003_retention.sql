-- A long run that is read page by page, on whatever replica, is not taken by retention meanwhile (R15).
ALTER TABLE runs ADD COLUMN read_until bigint NOT NULL DEFAULT 0;
-- What each owner keeps, and what of it was used longest ago, without reading the rows themselves.
CREATE INDEX runs_by_owner_and_use ON runs (owner, used_at, n) INCLUDE (bytes) WHERE hidden = 0 AND ended AND NOT pinned;

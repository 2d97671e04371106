-- Each entry of the audit log has an id of its own, so that one that is sent twice is written once.
ALTER TABLE audit_log ADD COLUMN id text COLLATE "C" NOT NULL DEFAULT '';
CREATE UNIQUE INDEX audit_log_by_id ON audit_log (id) WHERE id != '';

-- The owner is part of the key of the log. Replicas of the release before write rows without it and look for them by the
-- run alone: the trigger and the second index serve them. The second index also stays the fence whatever owner a row has.
ALTER TABLE run_log ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '', DROP CONSTRAINT run_log_pkey;
UPDATE run_log SET owner = runs.owner FROM runs WHERE runs.id = run_log.run;
CREATE UNIQUE INDEX run_log_place ON run_log (run, first_seq);
ALTER TABLE run_log ADD PRIMARY KEY (owner, run, first_seq);
CREATE FUNCTION run_log_owner() RETURNS trigger LANGUAGE plpgsql
  AS 'BEGIN NEW.owner = COALESCE((SELECT owner FROM runs WHERE id = NEW.run), ''''); RETURN NEW; END';
CREATE TRIGGER run_log_owner BEFORE INSERT ON run_log FOR EACH ROW WHEN (NEW.owner = '') EXECUTE FUNCTION run_log_owner();

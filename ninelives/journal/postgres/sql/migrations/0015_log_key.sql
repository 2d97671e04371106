-- The key of the log is its only index, and a row without an owner is refused. What served replicas that did not write the
-- owner goes: none of a release that has it can run beside this one, and each row of the log paid for it.
ALTER TABLE run_log ALTER COLUMN owner DROP DEFAULT;
DROP TRIGGER run_log_owner ON run_log;
DROP FUNCTION run_log_owner();
DROP INDEX run_log_place;

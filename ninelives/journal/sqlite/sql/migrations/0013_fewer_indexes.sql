-- Retention reads all ended runs, with columns that the index did not have. Each end, sealing and listing wrote to it.
DROP INDEX runs_by_use;

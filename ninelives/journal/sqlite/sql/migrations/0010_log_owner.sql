-- The owner is part of the key of the log. `segments_9` holds what older releases packed: load.py carries it over in
-- small transactions, because a copy in this one would need the size of the store again on the disk.
ALTER TABLE entries ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE entries SET owner = COALESCE((SELECT owner FROM runs WHERE runs.n = entries.run), '');
ALTER TABLE segments RENAME TO segments_9;
CREATE TABLE segments (
  owner TEXT NOT NULL,
  run INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  crc INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (owner, run, first_seq)
);

-- Standing permissions for single calls (D4). `id` is a hash of session, call and tool. The table `grants` has those of
-- older releases, which covered all calls of a tool. Only replicas of those releases read it.
CREATE TABLE call_grants (
  owner text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  tool text COLLATE "C" NOT NULL,
  arguments text COLLATE "C" NOT NULL,
  at bigint NOT NULL,
  given_by text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, id)
);

-- What a user of `fpdiff sql` sees. The tables in the schema `stored` hold the rows as they lie on
-- disk, with the run's label and the rank in front.

CREATE VIEW main.runs AS
SELECT run, path, level, command, created, ended, exit_code FROM stored.runs;

CREATE VIEW main.ranks AS
SELECT
    run, rank, hostname, finished, stopped,
    environment::JSON AS environment,
    blind_spots::JSON AS blind_spots
FROM stored.ranks;

CREATE VIEW main.sites AS FROM stored.sites;

CREATE VIEW main.steps AS FROM stored.steps;

CREATE VIEW main.events AS
SELECT
    run, rank, e.step, e.microbatch, e.seq,
    s.phase, s.kind, s.module, s.module_class, s.call, s.op, s.occurrence, s.slot,
    s.members, s.dtype, s.shape, s.source,
    e.digest, e.value, e.l2, e.absmax, e.nonfinite, e.kernels, e.span, site
FROM stored.events AS e
JOIN stored.sites AS s USING (run, rank, site);

-- Only losses and metrics have a name; other scalars stay in events.value.
CREATE VIEW main.metrics AS
SELECT
    run, rank, step, microbatch,
    CASE kind WHEN 'loss' THEN 'loss' ELSE slot END AS name,
    value
FROM main.events
WHERE kind IN ('loss', 'metric');

-- An event reads the events at its offsets and the `span` events just before it; an event that is
-- in both is one input.
CREATE VIEW main.inputs AS
SELECT
    run, rank, step, seq,
    unnest(list_distinct(list_concat(
        [seq - producer FOR producer IN inputs], range(seq - span, seq)
    ))) AS input_seq
FROM stored.events;

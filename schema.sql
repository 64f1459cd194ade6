-- The file of one event log.
--
-- `log` is the source of truth: one row an event, appended and never changed. Everything else is the log's own
-- index (session, event_type, session_index, turn_version, job, open_turn, open_input), what is folded from it
-- (projection, usage, snapshot), what subscribers owe and were owed (hook, extension, delivery and their gaps), or what
-- handlers keep (kv, file, reminder).
--
-- Rules that hold for every table:
--   * Times are integers: microseconds since 1970-01-01 UTC. Nothing is ordered by time.
--   * Facts are append-only. A trigger refuses UPDATE and DELETE unless the row of the `gate` is there, and
--     only erasing and pruning put it there, inside their own transaction.
--   * One process owns the file and writes; every other connection is read-only.
--   * The views at the end are stable and for people; the tables are not.
--
-- The store creates a file by running this text in one transaction. There is no other DDL.

-- ------------------------------------------------------------------------------------------------ identity

-- An event's id is "<era>:<position>". A new era begins whenever a position may be issued a second time.
CREATE TABLE era (
    era             TEXT    NOT NULL PRIMARY KEY CHECK (length(era) = 8),
    first_position  INTEGER NOT NULL CHECK (first_position >= 1),
    began_at        INTEGER NOT NULL,
    reason          TEXT    NOT NULL CHECK (reason IN ('created', 'accepted-loss', 'restored'))
) STRICT, WITHOUT ROWID;

-- Counts the owners; each raises it when it opens the file.
CREATE TABLE epoch (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    epoch  INTEGER NOT NULL CHECK (epoch >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO epoch VALUES (1, 0);

-- What its own transaction is allowed to do beyond appending. Empty outside of such a transaction.
CREATE TABLE gate (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    purpose  TEXT    NOT NULL CHECK (purpose IN ('import', 'prune', 'forget', 'rebuild'))
) STRICT, WITHOUT ROWID;

-- --------------------------------------------------------------------------------------------- the log

CREATE TABLE event_type (
    type  INTEGER NOT NULL PRIMARY KEY,
    name  TEXT    NOT NULL UNIQUE
) STRICT;

-- The vocabulary has fixed keys below 1000, so that triggers can name them; own types follow from 1000 on.
INSERT INTO event_type (type, name) VALUES
    (1, 'session.started'), (2, 'session.updated'), (3, 'session.waiting'),
    (4, 'session.completed'), (5, 'session.failed'),
    (6, 'turn.started'), (7, 'turn.completed'), (8, 'turn.failed'),
    (9, 'job.queued'), (10, 'job.started'), (11, 'job.completed'),
    (12, 'message.received'), (13, 'message.appended'), (14, 'message.completed'),
    (15, 'reasoning.appended'), (16, 'reasoning.completed'),
    (17, 'actions.requested'), (18, 'action.result'),
    (19, 'input.requested'), (20, 'input.resolved'),
    (21, 'step.started'), (22, 'step.completed'), (23, 'step.failed'),
    (24, 'ab.assigned'), (25, 'artifact.tagged'),
    (26, 'reminder.created'), (27, 'reminder.cancelled'), (28, 'reminder.due');

-- One row a session; the columns from `title` on follow its session.* events.
CREATE TABLE session (
    session             INTEGER NOT NULL PRIMARY KEY,
    id                  TEXT    NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 256),
    agent               TEXT,
    project             TEXT    NOT NULL,
    channel_id          TEXT    NOT NULL,
    mode                TEXT    NOT NULL CHECK (mode IN ('chat', 'task')),
    purpose             TEXT    NOT NULL CHECK (purpose IN ('live', 'eval')),
    auth                TEXT    CHECK (auth IS NULL OR json_valid(auth)),
    started_at          INTEGER NOT NULL,
    first_index         INTEGER NOT NULL DEFAULT 0 CHECK (first_index >= 0),  -- all before it were pruned; the next one, if no row is left
    title               TEXT,
    sdk_agent_id        TEXT,
    abs                 TEXT    CHECK (abs IS NULL OR json_valid(abs)),
    continuation_token  TEXT,
    status              TEXT    NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'waiting', 'completed', 'failed'))
) STRICT;

CREATE TABLE log (
    position  INTEGER PRIMARY KEY AUTOINCREMENT,                      -- never issued twice, also after pruning
    session   INTEGER NOT NULL REFERENCES session (session),
    idx       INTEGER NOT NULL CHECK (idx >= 0),
    type      INTEGER NOT NULL REFERENCES event_type (type),
    turn_id   TEXT    CHECK (turn_id IS NULL OR length(turn_id) BETWEEN 1 AND 256),
    at        INTEGER NOT NULL,
    data      TEXT    NOT NULL,                                       -- a JSON value, as it was encoded once
    key       TEXT    CHECK (key IS NULL OR length(key) BETWEEN 1 AND 256),
    checksum  BLOB    NOT NULL CHECK (length(checksum) = 16)          -- blake2b over all of the above
) STRICT;

-- Only events that have a key pay for this index.
CREATE UNIQUE INDEX log_by_key ON log (session, key) WHERE key IS NOT NULL;

CREATE TRIGGER log_is_append_only_update BEFORE UPDATE ON log
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'forget')
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

CREATE TRIGGER log_is_append_only_delete BEFORE DELETE ON log
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'prune')
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- Where each session's events are. It absorbs the log in sorted slices, because an entry written with each
-- event would dirty a page a session; what lies behind `absorbed` is found by scanning that short tail.
CREATE TABLE session_index (
    session   INTEGER NOT NULL,
    idx       INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    PRIMARY KEY (session, idx)
) STRICT, WITHOUT ROWID;

CREATE TABLE absorbed (
    one       INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    position  INTEGER NOT NULL CHECK (position >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO absorbed VALUES (1, 0);

-- Positions that were imported: history, which no hook is owed.
CREATE TABLE imported (
    first  INTEGER NOT NULL PRIMARY KEY,
    last   INTEGER NOT NULL CHECK (last >= first)
) STRICT, WITHOUT ROWID;

-- Positions that pruning removed, ranges side by side being one; a hole that is not in here is damage.
CREATE TABLE removed (
    first   INTEGER NOT NULL PRIMARY KEY,
    last    INTEGER NOT NULL CHECK (last >= first),
    at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- From this position on no session was pruned: a reader whose cursor lies before it may have missed one. What is
-- pruned of deltas does not raise it, since their text stands in a later event.
CREATE TABLE floor (
    one       INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    position  INTEGER NOT NULL CHECK (position >= 1)
) STRICT, WITHOUT ROWID;
INSERT INTO floor VALUES (1, 1);

-- What a session's own events say of it, in the fields that their type has; any other field is its writer's. `abs` is
-- any JSON value, and kept as it was written: asked for twice, it comes as '[X,X]', while alone it would come as
-- SQLite's own value, with true as 1 and 2**70 as 1.18e+21.
CREATE TRIGGER log_moves_session AFTER INSERT ON log
WHEN NEW.type <= 6
BEGIN
    UPDATE session SET
        title = iif(NEW.type > 2, title, coalesce(json_extract(NEW.data, '$.title'), title)),
        sdk_agent_id = iif(NEW.type > 2, sdk_agent_id, coalesce(json_extract(NEW.data, '$.sdkAgentId'), sdk_agent_id)),
        abs = iif(NEW.type > 2 OR json_type(NEW.data, '$.abs') IS NULL, abs,
                  (SELECT substr(pair, 2, (length(pair) - 3) / 2)
                   FROM (SELECT json_extract(NEW.data, '$.abs', '$.abs') AS pair))),
        continuation_token = iif(NEW.type > 3, continuation_token,
                                 coalesce(json_extract(NEW.data, '$.continuationToken'), continuation_token)),
        status = CASE NEW.type WHEN 3 THEN 'waiting' WHEN 4 THEN 'completed' WHEN 5 THEN 'failed'
                               WHEN 2 THEN status ELSE 'active' END
    WHERE session = NEW.session;
END;

-- A background job, as far as its events tell. A terminal status is final.
CREATE TABLE job (
    session   INTEGER NOT NULL REFERENCES session (session),
    job_id    TEXT    NOT NULL,
    name      TEXT,
    status    TEXT    NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'outcomeUnknown')),
    position  INTEGER NOT NULL,                                       -- of the event that gave it this status
    PRIMARY KEY (session, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_by_id ON job (job_id, position);

CREATE TRIGGER log_moves_job AFTER INSERT ON log
WHEN NEW.type BETWEEN 9 AND 11 AND json_type(NEW.data, '$.jobId') IS NOT NULL  -- else it was forgotten, and imported
BEGIN
    INSERT INTO job (session, job_id, name, status, position)
    VALUES (NEW.session, json_extract(NEW.data, '$.jobId'), iif(NEW.type = 9, json_extract(NEW.data, '$.name'), NULL),
            CASE NEW.type WHEN 9 THEN 'queued' WHEN 10 THEN 'running' ELSE json_extract(NEW.data, '$.status') END,
            NEW.position)
    ON CONFLICT (session, job_id) DO UPDATE
    SET status = excluded.status, name = coalesce(excluded.name, name), position = excluded.position
    WHERE status IN ('queued', 'running');
END;

-- Each turn.completed is one version of its turn, from 1.
CREATE TABLE turn_version (
    session   INTEGER NOT NULL REFERENCES session (session),
    turn_id   TEXT    NOT NULL,
    version   INTEGER NOT NULL CHECK (version >= 1),
    position  INTEGER NOT NULL,
    PRIMARY KEY (session, turn_id, version)
) STRICT, WITHOUT ROWID;

-- --------------------------------------------------------------- what a dead owner leaves unfinished

-- Turns that began and did not end. Few, however long the log is, so that a start need not look through it; the
-- calls of such a turn are read from its first event on. What was imported is history, and unfinished for ever.
CREATE TABLE open_turn (
    session   INTEGER NOT NULL REFERENCES session (session),
    turn_id   TEXT    NOT NULL,
    idx       INTEGER NOT NULL,                                       -- of its first turn.started
    position  INTEGER NOT NULL,                                       -- of its last one
    PRIMARY KEY (session, turn_id)
) STRICT, WITHOUT ROWID;

-- Questions that nobody answered. They outlive a turn that completed: the answer may come days later.
CREATE TABLE open_input (
    session     INTEGER NOT NULL REFERENCES session (session),
    request_id  TEXT    NOT NULL,
    turn_id     TEXT    NOT NULL,
    position    INTEGER NOT NULL,                                     -- of the input.requested that has it
    PRIMARY KEY (session, request_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_running ON job (position) WHERE status = 'running';

-- Only types that come a few times a turn: looking up a row for each tool call would cost every append of one.
CREATE TRIGGER log_moves_unfinished AFTER INSERT ON log
WHEN NEW.type BETWEEN 6 AND 20 AND NEW.type NOT BETWEEN 9 AND 18
BEGIN
    INSERT INTO open_turn (session, turn_id, idx, position)
    SELECT NEW.session, NEW.turn_id, NEW.idx, NEW.position
    WHERE NEW.type = 6 AND NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'import')
    ON CONFLICT (session, turn_id) DO UPDATE SET position = excluded.position;

    DELETE FROM open_turn WHERE NEW.type IN (7, 8) AND session = NEW.session AND turn_id = NEW.turn_id;

    INSERT INTO open_input (session, request_id, turn_id, position)
    SELECT NEW.session, json_extract(value, '$.requestId'), NEW.turn_id, NEW.position
    FROM json_each(NEW.data, '$.requests')
    WHERE NEW.type = 19 AND NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'import')
    ON CONFLICT (session, request_id) DO UPDATE SET turn_id = excluded.turn_id, position = excluded.position;

    DELETE FROM open_input
    WHERE NEW.type = 20 AND session = NEW.session
      AND request_id IN (SELECT json_extract(value, '$.requestId') FROM json_each(NEW.data, '$.resolutions'));

    DELETE FROM open_input WHERE NEW.type = 8 AND session = NEW.session AND turn_id = NEW.turn_id;
END;

-- ------------------------------------------------------------------------- durable hooks: at least once

-- The numbers that the file itself has to know, because a commit may happen while nothing else is up.
CREATE TABLE policy (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    capacity     INTEGER NOT NULL CHECK (capacity >= 1),              -- live deliveries of one extension
    retention_s  INTEGER NOT NULL CHECK (retention_s >= 1)
) STRICT, WITHOUT ROWID;
INSERT INTO policy VALUES (1, 1000, 604800);

-- Its deliveries are in the commits of their events, so an enabled extension is always at the head of the log: only
-- where it stopped is written down. The manifest stands last, because what lies behind a long text is slow to reach.
CREATE TABLE extension (
    extension     INTEGER NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,                            -- its folder
    id            TEXT    NOT NULL,                                   -- publisher.name
    version       TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('enabled', 'disabled', 'uninstalled')),
    paused        INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    generation    INTEGER NOT NULL DEFAULT 1 CHECK (generation >= 1), -- raised by everything that clears its deliveries
    crowded       INTEGER NOT NULL DEFAULT 0 CHECK (crowded IN (0, 1)), -- it has more places than its queue may have
    stopped_at    INTEGER,                                            -- the log's last position when it was stopped
    installed_at  INTEGER NOT NULL,
    failure       TEXT,                                               -- why its last activation failed
    manifest      TEXT    NOT NULL CHECK (json_valid(manifest)),
    CHECK ((state = 'enabled') = (stopped_at IS NULL))
) STRICT;

CREATE TABLE subscription (
    extension  INTEGER NOT NULL REFERENCES extension (extension),
    type       INTEGER NOT NULL CHECK (type IN (7, 11)),
    handler    TEXT    NOT NULL,
    PRIMARY KEY (extension, type)
) STRICT, WITHOUT ROWID;

CREATE TABLE extension_grant (
    extension   INTEGER NOT NULL REFERENCES extension (extension),
    capability  TEXT    NOT NULL CHECK (capability IN ('conversations.turns.read', 'jobs.read')),
    project     TEXT    NOT NULL,
    granted_at  INTEGER NOT NULL,
    PRIMARY KEY (extension, capability, project)
) STRICT, WITHOUT ROWID;
CREATE INDEX extension_grant_by_project ON extension_grant (project, capability);

-- A queue is a row of places, numbered from 1 without a hole. An event takes one, and the end of its delivery leaves it
-- free for another. None is taken away but from the end, so the last number says how many places there are, and an
-- index of the free ones whether one is left: two look-ups, however long the queue is. A row that was deleted instead
-- would leave no trace, and room could be known by counting only, or by a counter that every delivery writes as well.
CREATE TABLE delivery (
    extension    INTEGER NOT NULL REFERENCES extension (extension),
    place        INTEGER NOT NULL CHECK (place <> 0),                 -- a dead letter has none, and stands at minus its position
    state        TEXT    CHECK (state IN ('pending', 'delivering', 'dead')),  -- NULL: the place is free, and all else NULL
    position     INTEGER,
    session      INTEGER,                                             -- its lane
    project      TEXT,
    type         INTEGER CHECK (type IN (7, 11)),
    version      INTEGER,                                             -- of the turn; NULL for a job
    attempts     INTEGER CHECK (attempts >= 0),                       -- calls begun, over all retries
    spent        INTEGER CHECK (spent >= 0),                          -- of these, calls that no longer count against the limit
    due_at       INTEGER,
    recorded_at  INTEGER,
    generation   INTEGER,
    request_id   TEXT,                                                -- of the attempt that holds it
    reason       TEXT,                                                -- why it is dead
    last_error   TEXT,
    died_at      INTEGER,
    PRIMARY KEY (extension, place),
    CHECK ((state IS NULL) = (position + session + length(project) + type + attempts + spent + due_at + recorded_at
                              + generation IS NULL)),
    CHECK ((state = 'dead') = (died_at IS NOT NULL)),
    CHECK ((state = 'delivering') = (request_id IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX delivery_free ON delivery (extension, place) WHERE state IS NULL;
CREATE UNIQUE INDEX delivery_lane ON delivery (extension, session, position) WHERE state <> 'dead';
CREATE INDEX delivery_due ON delivery (extension, due_at, position) WHERE state = 'pending';
CREATE INDEX delivery_age ON delivery (recorded_at) WHERE state <> 'dead';
CREATE INDEX delivery_dead ON delivery (died_at) WHERE state = 'dead';

-- The place that the next delivery of an extension takes; NULL: its queue is full.
CREATE VIEW queue AS
SELECT extension, state, generation,
       CASE WHEN crowded = 0
            THEN coalesce((SELECT min(place) FROM delivery INDEXED BY delivery_free
                           WHERE extension = e.extension AND state IS NULL),
                          (SELECT last + 1 FROM (SELECT coalesce(max(place), 0) AS last FROM delivery
                                                 WHERE extension = e.extension AND place > 0)
                           WHERE last < (SELECT capacity FROM policy)))
            WHEN (SELECT count(*) FROM delivery INDEXED BY delivery_lane
                  WHERE extension = e.extension AND state <> 'dead') < (SELECT capacity FROM policy)
            THEN (SELECT min(place) FROM delivery INDEXED BY delivery_free
                  WHERE extension = e.extension AND state IS NULL) END AS place
FROM extension AS e;

-- Free places at the end are taken away with each start. A queue that is longer than its capacity even so, because that
-- was lowered under it, is counted from then on.
CREATE TRIGGER policy_fits_queues AFTER UPDATE OF capacity ON policy
BEGIN
    DELETE FROM delivery WHERE (extension, place) IN (
        SELECT f.extension, f.place
        FROM (SELECT extension, (SELECT coalesce(max(place), 0) FROM delivery INDEXED BY delivery_lane
                                 WHERE extension = x.extension AND state <> 'dead') AS last
              FROM extension AS x) AS e
        CROSS JOIN delivery AS f INDEXED BY delivery_free
        ON f.extension = e.extension AND f.place > e.last AND f.state IS NULL);
    UPDATE extension SET crowded = NEW.capacity < (
        SELECT coalesce(max(place), 0) FROM delivery WHERE extension = extension.extension AND place > 0);
END;

-- Who is owed the events of a type and a project. Nobody is, while history is imported.
CREATE VIEW owed AS
SELECT g.project, u.type, q.extension, q.generation, q.place
FROM extension_grant AS g
CROSS JOIN subscription AS u ON u.extension = g.extension
    AND g.capability = iif(u.type = 7, 'conversations.turns.read', 'jobs.read')
CROSS JOIN queue AS q ON q.extension = g.extension AND q.state = 'enabled'
WHERE NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'import');

-- A delivery that dies leaves its place to others; a retry takes one for it again.
CREATE TRIGGER delivery_leaves_the_queue AFTER UPDATE OF state ON delivery
WHEN NEW.state = 'dead' AND NEW.place > 0
BEGIN
    UPDATE delivery SET place = -position WHERE extension = NEW.extension AND place = NEW.place;
    INSERT INTO delivery (extension, place) VALUES (NEW.extension, NEW.place);
END;

-- The owner that meets one of these stops to write: what it has in mind is not what the file holds.
CREATE TRIGGER delivery_is_made_once BEFORE INSERT ON delivery
WHEN NEW.position < (SELECT max(position) FROM log)
BEGIN
    SELECT RAISE(ABORT, 'broken: a delivery is made with its event and never again');
END;
CREATE TRIGGER generation_only_rises BEFORE UPDATE OF generation ON extension
WHEN NEW.generation < OLD.generation
BEGIN
    SELECT RAISE(ABORT, 'broken: the generation of an extension only rises');
END;

-- Attempts that did not end in an ACK. The one that did leaves no row.
CREATE TABLE attempt (
    extension   INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    number      INTEGER NOT NULL CHECK (number >= 1),
    request_id  TEXT    NOT NULL,
    ended_at    INTEGER NOT NULL,
    outcome     TEXT    NOT NULL CHECK (outcome IN ('failed', 'timeout', 'crashed', 'rejected', 'retry-after')),
    error       TEXT    NOT NULL,
    traceback   TEXT,
    PRIMARY KEY (extension, position, number)
) STRICT, WITHOUT ROWID;

-- Whatever ends a delivery takes its attempts along. The call that holds it has no row yet.
CREATE TRIGGER delivery_takes_its_attempts AFTER UPDATE OF state ON delivery
WHEN NEW.state IS NULL AND OLD.attempts > (OLD.state = 'delivering')
BEGIN
    DELETE FROM attempt WHERE extension = OLD.extension AND position = OLD.position;
END;
CREATE TRIGGER dead_letter_takes_its_attempts AFTER DELETE ON delivery
WHEN OLD.attempts > 0
BEGIN
    DELETE FROM attempt WHERE extension = OLD.extension AND position = OLD.position;
END;

-- Events that an extension will never get. One row collects refusals until the queue takes an event again.
CREATE TABLE delivery_gap (
    gap        INTEGER NOT NULL PRIMARY KEY,
    extension  INTEGER NOT NULL REFERENCES extension (extension),
    project    TEXT    NOT NULL,
    reason     TEXT    NOT NULL CHECK (reason IN ('capacity', 'forgotten')),
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL CHECK (last >= first),
    count      INTEGER NOT NULL CHECK (count >= 1),
    at         INTEGER NOT NULL,
    open       INTEGER CHECK (open = 1)                               -- 1 while it collects, then NULL
) STRICT;
CREATE UNIQUE INDEX delivery_gap_open ON delivery_gap (extension, project, reason) WHERE open = 1;

-- Before, because an event that takes a place which was free is no insert in the end.
CREATE TRIGGER delivery_ends_gap BEFORE INSERT ON delivery
WHEN NEW.place IS NOT NULL
 AND EXISTS (SELECT 1 FROM delivery_gap WHERE open = 1 AND extension = NEW.extension AND project = NEW.project)
BEGIN
    UPDATE delivery_gap SET open = NULL WHERE open = 1 AND extension = NEW.extension AND project = NEW.project;
END;
CREATE TRIGGER delivery_finds_no_place BEFORE INSERT ON delivery
WHEN NEW.place IS NULL
BEGIN
    INSERT INTO delivery_gap (extension, project, reason, first, last, count, at, open)
    VALUES (NEW.extension, NEW.project, 'capacity', NEW.position, NEW.position, 1, NEW.recorded_at, 1)
    ON CONFLICT (extension, project, reason) WHERE open = 1
    DO UPDATE SET last = excluded.last, count = count + 1, at = excluded.at;
    SELECT RAISE(IGNORE);
END;

-- The two durable types become deliveries in the statement that records them, whoever is up or down.
CREATE TRIGGER log_makes_deliveries AFTER INSERT ON log
WHEN NEW.type IN (7, 11)
BEGIN
    INSERT INTO turn_version (session, turn_id, version, position)
    SELECT NEW.session, NEW.turn_id,
           1 + coalesce((SELECT max(version) FROM turn_version WHERE session = NEW.session AND turn_id = NEW.turn_id), 0),
           NEW.position
    WHERE NEW.type = 7;

    INSERT INTO delivery (extension, place, state, position, session, project, type, version, attempts, spent,
                          due_at, recorded_at, generation)
    SELECT o.extension, o.place, 'pending', NEW.position, NEW.session, o.project, NEW.type,
           iif(NEW.type = 7, (SELECT max(version) FROM turn_version
                              WHERE session = NEW.session AND turn_id = NEW.turn_id), NULL),
           0, 0, NEW.at, NEW.at, o.generation
    FROM session AS s CROSS JOIN owed AS o ON o.project = s.project AND o.type = NEW.type
    WHERE s.session = NEW.session
    ON CONFLICT (extension, place) DO UPDATE SET
        state = excluded.state, position = excluded.position, session = excluded.session, project = excluded.project,
        type = excluded.type, version = excluded.version, attempts = 0, spent = 0, due_at = excluded.due_at,
        recorded_at = excluded.recorded_at, generation = excluded.generation;
END;

-- ------------------------------------------------------------------------- observe hooks: at most once

-- How far each hook is: everything up to its cursor is known to be finished, or is in one of its gaps. What a
-- "resume" hook claimed beyond it may have been shown, and is not shown again.
CREATE TABLE hook (
    hook        INTEGER NOT NULL PRIMARY KEY,
    agent       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    on_restart  TEXT    NOT NULL CHECK (on_restart IN ('skip', 'resume')),
    source      TEXT    NOT NULL,
    events      TEXT    NOT NULL CHECK (json_valid(events)),
    cursor      INTEGER NOT NULL CHECK (cursor >= 0),
    claimed     INTEGER CHECK (claimed >= cursor),                    -- NULL: "skip"
    calls       INTEGER NOT NULL DEFAULT 0,
    errors      INTEGER NOT NULL DEFAULT 0,
    loaded      INTEGER NOT NULL DEFAULT 1 CHECK (loaded IN (0, 1)),  -- by the last runtime of its agent
    UNIQUE (agent, name),
    CHECK ((on_restart = 'resume') = (claimed IS NOT NULL))
) STRICT;

-- Events that no handler of the hook is known to have finished, and that it will never be shown again.
CREATE TABLE hook_gap (
    gap      INTEGER NOT NULL PRIMARY KEY,
    hook     INTEGER NOT NULL REFERENCES hook (hook),
    session  INTEGER,                                                 -- NULL: of every session
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL CHECK (last >= first),
    at_most  INTEGER NOT NULL CHECK (at_most >= 1),                   -- events in it
    at       INTEGER NOT NULL
) STRICT;
CREATE INDEX hook_gap_by_hook ON hook_gap (hook, first);

-- What handlers threw; the newest ones are kept.
CREATE TABLE hook_error (
    error     INTEGER PRIMARY KEY AUTOINCREMENT,
    agent     TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    message   TEXT    NOT NULL,
    at        INTEGER NOT NULL
) STRICT;

-- ----------------------------------------------------------------------------------- what handlers keep

CREATE TABLE kv (
    agent  TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL CHECK (json_valid(value)),
    PRIMARY KEY (agent, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE file (
    file     INTEGER NOT NULL PRIMARY KEY,
    agent    TEXT    NOT NULL,
    session  TEXT    NOT NULL,                                        -- a session's id, or '' for the whole deployment
    path     TEXT    NOT NULL,
    content  BLOB    NOT NULL,
    at       INTEGER NOT NULL,
    UNIQUE (agent, session, path)
) STRICT;

-- A reminder, as far as its events tell: imported ones are history, and never due. `reminder.due` and
-- `reminder.cancelled` are appended under one key, so that whichever comes first is the only one.
CREATE TABLE reminder (
    reminder  INTEGER NOT NULL PRIMARY KEY,
    session   INTEGER NOT NULL REFERENCES session (session),
    id        TEXT    NOT NULL,
    text      TEXT    NOT NULL,
    due_at    INTEGER NOT NULL,
    state     TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'due', 'cancelled')),
    UNIQUE (session, id)
) STRICT;
CREATE INDEX reminder_due ON reminder (due_at) WHERE state = 'pending';
CREATE INDEX reminder_of_session ON reminder (session, due_at) WHERE state = 'pending';

-- The time is RFC 3339 with any fraction and offset. SQLite reads the first 19 characters of it; the rest is
-- arithmetic, because SQLite's own reading ends at milliseconds and at offsets of 14 hours.
CREATE TRIGGER log_moves_reminder AFTER INSERT ON log
WHEN NEW.type BETWEEN 26 AND 28
BEGIN
    INSERT INTO reminder (session, id, text, due_at)
    SELECT NEW.session, json_extract(NEW.data, '$.reminderId'), json_extract(NEW.data, '$.text'),
           1000000 * (strftime('%s', substr(at, 1, 19)) - (sign || 60) * (60 * hours + minutes))
           + CAST(round(1000000 * ('0' || substr(at, 20))) AS INTEGER)
    FROM (SELECT at, substr(zone, 1, 1) AS sign, substr(zone, 2, 2) AS hours, substr(zone, 4, 2) AS minutes
          FROM (SELECT at, CASE WHEN at LIKE '%Z' THEN '+0000' ELSE substr(replace(at, ':', ''), -5) END AS zone
                FROM (SELECT upper(json_extract(NEW.data, '$.at')) AS at)))
    WHERE NEW.type = 26 AND NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'import')
    ON CONFLICT DO NOTHING;

    UPDATE reminder SET state = iif(NEW.type = 28, 'due', 'cancelled')
    WHERE NEW.type > 26 AND state = 'pending'
      AND session = NEW.session AND id = json_extract(NEW.data, '$.reminderId');
END;

-- ------------------------------------------------------------------------------------- facts stay as they are

-- The log's own triggers stand beside it. `gate` says which work may do more, and only inside its own transaction.

CREATE TRIGGER session_is_a_fact_update
BEFORE UPDATE OF session, id, agent, project, channel_id, mode, purpose, auth, started_at ON session
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'forget')
BEGIN
    SELECT RAISE(ABORT, 'how a session began is a fact');
END;
CREATE TRIGGER session_is_a_fact_delete BEFORE DELETE ON session
BEGIN
    SELECT RAISE(ABORT, 'a session that was started is a fact');
END;

CREATE TRIGGER event_type_is_a_fact_update BEFORE UPDATE ON event_type
BEGIN
    SELECT RAISE(ABORT, 'an event type keeps its name');
END;
CREATE TRIGGER event_type_is_a_fact_delete BEFORE DELETE ON event_type
BEGIN
    SELECT RAISE(ABORT, 'an event type keeps its name');
END;

CREATE TRIGGER era_is_a_fact_update BEFORE UPDATE ON era
BEGIN
    SELECT RAISE(ABORT, 'an era is a fact');
END;
CREATE TRIGGER era_is_a_fact_delete BEFORE DELETE ON era
BEGIN
    SELECT RAISE(ABORT, 'an era is a fact');
END;

CREATE TRIGGER turn_version_is_a_fact_update BEFORE UPDATE ON turn_version
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'rebuild')
BEGIN
    SELECT RAISE(ABORT, 'a version of a turn is a fact');
END;
CREATE TRIGGER turn_version_is_a_fact_delete BEFORE DELETE ON turn_version
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'rebuild')
BEGIN
    SELECT RAISE(ABORT, 'a version of a turn is a fact');
END;

CREATE TRIGGER imported_is_a_fact_update BEFORE UPDATE ON imported
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'import')
BEGIN
    SELECT RAISE(ABORT, 'what was imported is a fact');
END;
CREATE TRIGGER imported_is_a_fact_delete BEFORE DELETE ON imported
BEGIN
    SELECT RAISE(ABORT, 'what was imported is a fact');
END;

CREATE TRIGGER removed_is_a_fact_update BEFORE UPDATE ON removed
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'prune')
BEGIN
    SELECT RAISE(ABORT, 'what was removed is a fact');
END;
CREATE TRIGGER removed_is_a_fact_delete BEFORE DELETE ON removed
WHEN NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'prune')
BEGIN
    SELECT RAISE(ABORT, 'what was removed is a fact');
END;

CREATE TRIGGER floor_only_rises BEFORE UPDATE ON floor
WHEN NEW.position < OLD.position OR NOT EXISTS (SELECT 1 FROM gate WHERE purpose = 'prune')
BEGIN
    SELECT RAISE(ABORT, 'the floor only rises, by pruning');
END;
CREATE TRIGGER floor_is_a_fact BEFORE DELETE ON floor
BEGIN
    SELECT RAISE(ABORT, 'the floor only rises, by pruning');
END;

CREATE TRIGGER hook_gap_is_a_fact_update BEFORE UPDATE ON hook_gap
BEGIN
    SELECT RAISE(ABORT, 'a gap is a fact');
END;
CREATE TRIGGER hook_gap_is_a_fact_delete BEFORE DELETE ON hook_gap
BEGIN
    SELECT RAISE(ABORT, 'a gap is a fact');
END;

-- It grows while it is open, and is closed once.
CREATE TRIGGER delivery_gap_is_a_fact_update BEFORE UPDATE ON delivery_gap
WHEN OLD.open IS NULL OR NEW.last < OLD.last OR NEW.count < OLD.count
  OR (NEW.gap, NEW.extension, NEW.project, NEW.reason, NEW.first)
     IS NOT (OLD.gap, OLD.extension, OLD.project, OLD.reason, OLD.first)
BEGIN
    SELECT RAISE(ABORT, 'a gap is a fact');
END;
CREATE TRIGGER delivery_gap_is_a_fact_delete BEFORE DELETE ON delivery_gap
BEGIN
    SELECT RAISE(ABORT, 'a gap is a fact');
END;

CREATE TRIGGER attempt_is_a_fact_update BEFORE UPDATE ON attempt
BEGIN
    SELECT RAISE(ABORT, 'an attempt is a fact');
END;
CREATE TRIGGER attempt_goes_with_its_delivery BEFORE DELETE ON attempt
WHEN EXISTS (SELECT 1 FROM delivery WHERE extension = OLD.extension AND place = -OLD.position)
  OR EXISTS (SELECT 1 FROM log AS l CROSS JOIN delivery AS d INDEXED BY delivery_lane
             ON d.extension = OLD.extension AND d.session = l.session AND d.position = l.position AND d.state <> 'dead'
             WHERE l.position = OLD.position)
BEGIN
    SELECT RAISE(ABORT, 'an attempt goes with its delivery');
END;
-- --------------------------------------------------------------------------------- what is folded from the log

-- A projection: `state` holds what the events up to `cursor` came to, and both are written in one commit. While a new
-- version is folded, or the same one again, that row does not serve; it takes the other's place in one commit.
CREATE TABLE projection (
    projection  INTEGER PRIMARY KEY AUTOINCREMENT,                    -- never issued twice, so that what is late finds no row
    name        TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 256),
    version     INTEGER NOT NULL CHECK (version >= 1),
    serves      INTEGER NOT NULL CHECK (serves IN (0, 1)),
    events      TEXT    NOT NULL CHECK (json_valid(events)),          -- the types that it folds
    initial     TEXT    NOT NULL CHECK (json_valid(initial)),         -- the state before the first event
    state       TEXT    NOT NULL CHECK (json_valid(state)),
    cursor      INTEGER NOT NULL DEFAULT 0 CHECK (cursor >= 0),
    passed      INTEGER NOT NULL DEFAULT 0 CHECK (passed >= 0),       -- events that could not be read
    stuck       TEXT,                                                 -- why it does not get beyond its cursor
    UNIQUE (name, serves)
) STRICT;

-- What kept an event from being folded; the newest ones are kept.
CREATE TABLE projection_error (
    error     INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    message   TEXT    NOT NULL,
    at        INTEGER NOT NULL
) STRICT;

-- What turns used, the rows of the projection "usage". A sum counts the turns that told their number.
CREATE TABLE usage (
    projection          INTEGER NOT NULL REFERENCES projection (projection),
    session             INTEGER NOT NULL REFERENCES session (session),
    model               TEXT    NOT NULL,                             -- '': no turn told its price
    day                 TEXT    NOT NULL CHECK (length(day) = 10),    -- in UTC
    turns               INTEGER NOT NULL CHECK (turns >= 1),
    measured            INTEGER NOT NULL CHECK (measured BETWEEN 0 AND turns),
    input_tokens        INTEGER NOT NULL,
    output_tokens       INTEGER NOT NULL,
    cache_read_tokens   INTEGER NOT NULL,
    cache_write_tokens  INTEGER NOT NULL,
    reasoned            INTEGER NOT NULL CHECK (reasoned BETWEEN 0 AND turns),
    reasoning_tokens    INTEGER NOT NULL,
    priced              INTEGER NOT NULL CHECK (priced BETWEEN 0 AND turns),
    cost_usd            TEXT    NOT NULL,                             -- a decimal number: sums of floats depend on their order
    PRIMARY KEY (projection, session, model, day)
) STRICT, WITHOUT ROWID;

-- A session folded up to an index, so that a fold need not begin at its first event.
CREATE TABLE snapshot (
    session  INTEGER NOT NULL REFERENCES session (session),
    reducer  TEXT    NOT NULL,
    version  INTEGER NOT NULL CHECK (version >= 1),
    initial  BLOB    NOT NULL CHECK (length(initial) = 16),           -- blake2b of the state before the first event
    idx      INTEGER NOT NULL CHECK (idx >= 0),
    state    TEXT    NOT NULL CHECK (json_valid(state)),
    PRIMARY KEY (session, reducer, version)
) STRICT;

-- Sessions that lost events on purpose. What was folded from these stays as it is: it cannot be folded again.
CREATE TABLE incomplete_session (
    session  INTEGER NOT NULL PRIMARY KEY REFERENCES session (session)
) STRICT;

-- Rows that are being folded again and that nobody reads; empty outside of a rebuild.
CREATE TABLE session_anew (
    session             INTEGER NOT NULL PRIMARY KEY,
    title               TEXT,
    sdk_agent_id        TEXT,
    abs                 TEXT,
    continuation_token  TEXT,
    status              TEXT
) STRICT;
CREATE TABLE turn_version_anew (
    session   INTEGER NOT NULL,
    turn_id   TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    PRIMARY KEY (session, turn_id, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE job_anew (
    session   INTEGER NOT NULL,
    job_id    TEXT    NOT NULL,
    name      TEXT,
    status    TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    PRIMARY KEY (session, job_id)
) STRICT, WITHOUT ROWID;

-- -------------------------------------------------------------------------------- stable views for people

CREATE VIEW events AS
SELECT l.position, s.id AS session_id, l.idx, t.name AS type, l.turn_id,
       strftime('%Y-%m-%dT%H:%M:%S', l.at / 1000000, 'unixepoch') || printf('.%06dZ', l.at % 1000000) AS at,
       l.data, l.key
FROM log AS l JOIN session AS s ON s.session = l.session JOIN event_type AS t ON t.type = l.type;

CREATE VIEW sessions AS
WITH tail AS MATERIALIZED (
    SELECT session, max(idx) + 1 AS next_idx, max(position) AS position
    FROM log WHERE position > (SELECT position FROM absorbed) GROUP BY session
)
SELECT s.id, s.agent, s.project, s.channel_id, s.mode, s.purpose, s.title, s.status,
       coalesce(tail.next_idx, (SELECT max(i.idx) + 1 FROM session_index AS i WHERE i.session = s.session), s.first_index) AS next_idx,
       strftime('%Y-%m-%dT%H:%M:%fZ', s.started_at / 1000000.0, 'unixepoch') AS started_at
FROM session AS s LEFT JOIN tail ON tail.session = s.session;

CREATE VIEW turns AS
SELECT s.id AS session_id, v.turn_id, v.version, l.idx, v.position,
       json_extract(l.data, '$.result') AS result,
       json_extract(l.data, '$.usage.inputTokens') AS input_tokens,
       json_extract(l.data, '$.usage.outputTokens') AS output_tokens,
       json_extract(l.data, '$.cost.totalUsd') AS cost_usd
FROM turn_version AS v JOIN session AS s ON s.session = v.session JOIN log AS l ON l.position = v.position;

CREATE VIEW jobs AS
SELECT j.job_id, s.id AS session_id, s.project, j.name, j.status, j.position
FROM job AS j JOIN session AS s ON s.session = j.session;

CREATE VIEW deliveries AS
SELECT e.name AS extension, d.position, s.id AS session_id, d.project, t.name AS type, d.version, d.state,
       d.attempts, strftime('%Y-%m-%dT%H:%M:%fZ', d.due_at / 1000000.0, 'unixepoch') AS due_at, d.last_error
FROM delivery AS d JOIN extension AS e ON e.extension = d.extension
JOIN session AS s ON s.session = d.session JOIN event_type AS t ON t.type = d.type
WHERE d.state <> 'dead';

CREATE VIEW dead_letters AS
SELECT e.name AS extension, d.position, s.id AS session_id, d.project, t.name AS type, d.version, d.reason,
       d.attempts, strftime('%Y-%m-%dT%H:%M:%fZ', d.died_at / 1000000.0, 'unixepoch') AS died_at, d.last_error
FROM delivery AS d JOIN extension AS e ON e.extension = d.extension
JOIN session AS s ON s.session = d.session JOIN event_type AS t ON t.type = d.type
WHERE d.state = 'dead';

CREATE VIEW projections AS
SELECT p.name, p.version, p.serves, p.events, p.cursor,
       (SELECT coalesce(max(position), 0) FROM log) - p.cursor AS lag, p.passed, p.stuck
FROM projection AS p;

CREATE VIEW hooks AS
SELECT h.agent, h.name, h.events, h.source, h.on_restart, h.cursor,
       (SELECT coalesce(max(position), 0) FROM log) - h.cursor AS lag,
       (SELECT count(*) FROM hook_gap AS g WHERE g.hook = h.hook) AS gaps, h.calls, h.errors
FROM hook AS h WHERE h.loaded = 1;

PRAGMA application_id = 0x45564c47;  -- "EVLG"
PRAGMA user_version = 1;

"""The file on disk. Every SQL statement of the package is in this folder.

Read in this order: `owner` (who may write), `database` (one connection, one thread), `schema` (what is in the
file), `writer` (group commit), `events` (the log itself), `reading` (pages of events), `index` (the session index),
`store` (all of it, opened); then the other table owners: `cursors`, `deliveries`, `keep`, `reminders`.
"""

"""An archive that many archivers write at once: one Delta table, in a directory or an object store.

A row of the table is a row of one relation: of ``events``, of a typed table, or of the archive's own::

    relation       partition column: the name of the relation
    record_number  of the record that the row was made from: SLOT * 2^40 + OFFSET
    events         struct: the row's columns, if it is of this relation; one such column for each relation
    turns          ...

- Files are written once and never changed: ``relation=NAME/TIME-RANDOM.parquet``. A commit of the table adds
  and removes any number of them, of all relations, or none.
- How far a partition is archived is an application transaction of the table, and a row of the relation
  ``positions`` in the same commit. A commit makes the next version of the table or fails, so whoever commits
  knows all positions at that moment (:mod:`.store`).
- Each partition of each log has a slot of its own, given once, in a commit.
- An event archived twice has typed rows twice; readers leave out all but those of the smallest record number
  (:mod:`.snapshot`).
"""

"""Take records out of a shared archive that the log has lost, with every row that was made from them.

In this order:

1. save the records' rows of ``events`` as a Parquet file in ``_lost_by_the_log``: nothing is destroyed;
2. write the files anew that have rows of them, without these;
3. commit: the old files go, the new ones come, the position is set back, and ``divergences`` says so.

Where the same events are archived from another position, their rows are there, and readers see them now.
"""

import time

import pyarrow as pa
import pyarrow.compute as pc

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.newest import KEPT
from unstable_stream.archive.shared.relations import DIVERGENCES, NUMBER, Place, as_rows
from unstable_stream.archive.shared.snapshot import newest_before
from unstable_stream.archive.shared.standing import Standing, crowded, position_name, write_standings
from unstable_stream.archive.shared.table import LOST, SharedTable, TableFile
from unstable_stream.archive.writing import Removed

__all__ = ["remove_records"]


def remove_records(
    table: SharedTable, place: Place, before: Standing, offset: int, timeout_s: float
) -> Removed:
    """Take out the records of a partition from an offset on.

    Args:
        table: the table.
        place: the partition.
        before: the standing that the caller knows; if it is another now, nothing is done.
        offset: the first offset to take out.
        timeout_s: how long to try again while others commit.

    Raises:
        ArchiveBusyError: others committed all the time.
    """
    low, end = before.first_number + offset, before.end_number
    newest = newest_before(table.archive, before.first_number, low, KEPT)
    after = before._replace(times_set_back=before.times_set_back + 1, next_offset=offset, newest=newest)
    standings = write_standings(table, {place: after})
    deadline = time.monotonic() + timeout_s
    while True:
        version = table.refresh()
        if (table.position(position_name(place)) or 0) != before.mark:
            return Removed(0, "")
        affected = [f for f in table.files() if f.last is not None and f.last >= low and (f.first or 0) < end]
        kept: list[TableFile] = []
        changed: list[TableFile] = []
        ghosts: list[pa.Table] = []
        for file in affected:
            rows = table.read(file)
            lost = pc.and_(pc.greater_equal(rows[NUMBER], low), pc.less(rows[NUMBER], end))
            if not pc.any(lost).as_py():
                continue
            changed.append(file)
            if file.relation == EVENTS.name:
                ghosts.append(_columns(rows.filter(lost)))
            remaining = rows.filter(pc.invert(lost))
            if remaining.num_rows:
                kept.append(table.write(file.relation, remaining))
        records, saved_to = sum(each.num_rows for each in ghosts), ""
        if records:
            name = f"{LOST}/{place.topic}-{place.partition}-from-{offset}-time-{after.times_set_back}.parquet"
            table.save(name, pa.concat_tables(ghosts, promote_options="default").sort_by(NUMBER))
            saved_to = f"{table.uri}/{name}"
        note = {
            **place._asdict(),
            "first_offset": offset,
            "next_offset": before.next_offset,
            "records": records,
            "saved_to": saved_to,
        }
        noted = table.write(DIVERGENCES, as_rows(DIVERGENCES, [note]))
        if table.commit([*kept, standings, noted], changed, {position_name(place): after.mark}, upon=version):
            return Removed(records, saved_to)
        if time.monotonic() >= deadline:
            raise crowded(table, timeout_s)


def _columns(rows: pa.Table) -> pa.Table:
    columns = pa.Table.from_struct_array(rows[EVENTS.name].combine_chunks())
    return columns.append_column(NUMBER, rows[NUMBER])

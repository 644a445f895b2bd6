"""The content of an archive: what two archives must have in common to be the same."""

from unstable_stream.archive import open_archive, query
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.tables import TABLES
from unstable_stream.log.stores.archive_address import ArchiveAddress, is_shared


def content(path: ArchiveAddress, *, numbered: bool = False) -> dict[str, list[str]]:
    """Return every row of every table as text, sorted; of a file with ``numbered`` its record number, too."""
    # Two shared archives may give the slots of their partitions in another order.
    columns = "*" if numbered and not is_shared(path) else "COLUMNS(lambda name: name <> 'record_number')"
    with open_archive(path) as connection:
        return {
            name: sorted(map(str, connection.execute(f'SELECT {columns} FROM "{name}"').fetchall()))
            for name in (EVENTS.name, *(table.name for table in TABLES), "positions")
        }


def rows_of(archive: ArchiveAddress, run: str, columns: str = "*") -> dict[str, list[str]]:
    """Return a run's rows as readers see them, by table, those without rows left out."""
    of_table = "SELECT '{0}' AS name, t::VARCHAR FROM (SELECT {1} FROM {0} WHERE run_id = $run) AS t"
    names = [EVENTS.name, *(table.name for table in TABLES)]
    sql = " UNION ALL ".join(of_table.format(name, columns) for name in names) + " ORDER BY ALL"
    found: dict[str, list[str]] = {}
    for name, row in query(archive, sql, {"run": run}).rows:
        found.setdefault(name, []).append(row)
    return found


def typed_content(path: ArchiveAddress) -> dict[str, list[str]]:
    """Return the content of the typed tables alone."""
    whole = content(path)
    return {table.name: whole[table.name] for table in TABLES}

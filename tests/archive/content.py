"""The content of an archive: what two archives must have in common to be the same."""

from unstable_stream.archive import open_archive
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


def typed_content(path: ArchiveAddress) -> dict[str, list[str]]:
    """Return the content of the typed tables alone."""
    whole = content(path)
    return {table.name: whole[table.name] for table in TABLES}

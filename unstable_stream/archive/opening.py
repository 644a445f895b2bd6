"""Open an archive of any kind, to read it or to write to it: a file, a shared archive, an export."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from unstable_stream.archive.exported import open_export
from unstable_stream.archive.store import Connection, connect_file, naming_damage
from unstable_stream.archive.writing import ArchiveStore
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress, is_export, is_shared


@contextlib.contextmanager
def open_archive(
    path: ArchiveAddress, *, read_only: bool = True, files: bool = False, records_only: bool = False
) -> Iterator[Connection]:
    """Open an existing archive (``with open_archive(path) as con``); leave soon, a writer may be waiting.

    A shared archive or an export is opened as it is now, in memory; nobody waits for its readers.

    Args:
        path: the archive.
        read_only: by default nothing can be changed; a shared archive and an export never can.
        files: other files may be read and written. In one process either all connections may, or none: the
            others wait.
        records_only: only ``events`` and the archive's own tables are asked for, which opens a shared archive
            sooner.

    Raises:
        ArchiveBusyError: another process held it for a minute.
        ArchiveError: there is none, it is not an archive, or a newer version of the package wrote it; or
            DuckDB failed on it inside the block, e.g. because it is damaged.
    """
    if is_shared(path):
        if not read_only:
            raise ArchiveError(f"{path} is a shared archive: only archivers change it")
        # Imported here: deltalake may not be installed.
        from unstable_stream.archive.shared.snapshot import open_shared

        connection = open_shared(path, files=files, records_only=records_only)
    elif is_export(path):
        if not read_only:
            raise ArchiveError(f"{path} is an export, which is only read")
        connection = open_export(Path(path), files=files)
    else:
        connection = connect_file(Path(path), read_only=read_only, files=files)
    with naming_damage(path, connection):
        yield connection


def archive_bytes(archive: ArchiveAddress) -> int:
    """Return the size of an archive; of a shared one, of the files that a reader sees now.

    Raises:
        ArchiveError: there is no shared archive of this address.
        ArchiveBusyError: its store cannot be reached.
        FileNotFoundError: there is no such file.
    """
    if not is_shared(archive):
        return Path(archive).stat().st_size
    # Imported here: deltalake may not be installed.
    from unstable_stream.archive.shared.table import SharedTable

    return sum(file.size for file in SharedTable(archive).files())


def open_store(archive: ArchiveAddress, *, create: bool = True) -> ArchiveStore:
    """Open an archive to write to it.

    Args:
        archive: a path, or the address of a shared archive.
        create: make it if there is none, and give it tables that an older package did not have.

    Raises:
        ArchiveError: there is something else, it is an export, or a newer version of the package wrote it.
    """
    if is_export(archive):
        raise ArchiveError(
            f"{archive} is an export, which is only read: name another directory with --data, or delete the "
            "export to be rid of the run"
        )
    # Imported here: the one is not needed for the other, and deltalake may not be installed.
    if is_shared(archive):
        from unstable_stream.archive.shared.store import SharedStore

        return SharedStore(archive, create=create)
    from unstable_stream.archive.file_store import FileStore

    return FileStore(Path(archive))

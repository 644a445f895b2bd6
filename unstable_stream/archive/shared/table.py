"""Open the table, write its files, commit, read what is committed. The only module that imports deltalake.

A commit makes the version after the one that its caller has looked at, or none: the package is told not to
try again by itself, and another thread may have learnt of a newer version in between. So nothing can be
committed on top of something unseen.

In a directory, files are on the disk before the commit that names them, and a commit is before it counts as
made; the package itself leaves that to the system. If the machine loses power in between, the commit's own
file may be empty: a version that adds nothing, rows and positions alike, which are then archived again.
"""

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from unstable_stream.archive.shared.relations import RELATION, table_schema
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.console import get_logger
from unstable_stream.errors import ArchiveBusyError, ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress, table_of

try:
    import deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.fs import DeltaStorageHandler
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as missing:
    raise ArchiveError("a shared archive needs deltalake: pip install 'unstable_stream[delta]'") from missing

if TYPE_CHECKING:
    from deltalake.schema import Field

_log = get_logger(__name__)

_ROW_GROUP_ROWS: Final = 20_480
"""As in the DuckDB file: rows are kilobytes, and a reader has a group of them in memory."""
_SETTINGS: Final = {
    # Opening reads the last checkpoint of the log of the table and the commits after it.
    "delta.checkpointInterval": "100",
    # Each checkpoint lists what was removed for so long. A reader keeps a state of the table for seconds.
    "delta.deletedFileRetentionDuration": "interval 6 hours",
    "delta.logRetentionDuration": "interval 1 days",
    # Nothing is looked up by the files' statistics.
    "delta.dataSkippingNumIndexedCols": "0",
}
_KEPT_HOURS: Final = 6
"""Hours until a file that is not of the table any more, or never was, may be deleted."""
_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "20s", "timeout": "30s"}
"""Of one request to an object store. Whoever calls tries again, and must hear of a stop in between."""
_DESCRIPTION: Final = "unstable_stream archive, schema version {}"
_RACES: Final = 20
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_OF_A_STORE: Final = re.compile(r"\bGeneric (S3|GCS|MicrosoftAzure) error\b")
"""In a message: a store over the network did not do what it was asked."""
_REFUSED: Final = re.compile(r"\b40[0134] ")
"""Of HTTP: the request is wrong, not the moment."""
_TOLD: Final = 500


class TableFile(NamedTuple):
    """One file of the table."""

    name: str
    relation: str
    size: int
    """Bytes."""
    rows: int


class SharedTable:
    """One version of the table after the other. Threads may share it."""

    def __init__(self, archive: ArchiveAddress, *, create: bool = False) -> None:
        """Open the table; with ``create`` it is made if there is none, and given the columns that it lacks.

        Raises:
            ArchiveError: there is none, it is none of ours, or a newer version of the package wrote it.
            ArchiveBusyError: its store cannot be reached.
        """
        self.archive = archive
        self.uri = table_of(archive)
        self._options = _options(self.uri)
        self._lock = threading.Lock()
        with self._explained():
            self._delta = self._made() if create else self._opened()
            self._check()
            if create:
                self._widen()
            self._schema = self._delta.schema()
            self.archive_id = str(self._delta.metadata().id).replace("-", "")[:8]
            """Names the archive's consumer group."""
            self._files = pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri, self._options))

    @property
    def version(self) -> int:
        """The version that is known here."""
        with self._lock:
            return self._delta.version()

    def refresh(self) -> int:
        """Learn what others have committed; return the version that is known then."""
        with self._lock, self._explained():
            self._delta.update_incremental()
            return self._delta.version()

    def position(self, name: str) -> int | None:
        """Return the number committed under this name; ``None``: none yet."""
        with self._lock, self._explained():
            return self._delta.transaction_version(name)

    def files(self, relation: str | None = None) -> list[TableFile]:
        """Return the files of this version, or those of a relation, the oldest first."""
        with self._lock, self._explained():
            found = pa.table(self._delta.get_add_actions(flatten=True))
        names = ("path", f"partition.{RELATION}", "size_bytes", "num_records")
        nothing = pa.nulls(found.num_rows).to_pylist()
        columns = [found[name].to_pylist() if name in found.column_names else nothing for name in names]
        files = [TableFile(*row) for row in zip(*columns, strict=True)]
        # Names begin with a time.
        return sorted(file for file in files if relation in (None, file.relation))

    def write(self, relation: str, rows: pa.Table) -> TableFile:
        """Write a file; it is of the table once it is committed."""
        name = f"{RELATION}={relation}/{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(8)}.parquet"
        with self._explained(), self._files.open_output_stream(name) as out:
            pq.write_table(rows, out, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
            size = int(out.tell())
        # The directory may be new too.
        self._keep(name, os.path.dirname(name), "")
        return TableFile(name, relation, size, rows.num_rows)

    def open(self, name: str) -> BinaryIO:
        """Open one of the files to read; it belongs to one thread at a time."""
        with self._explained():
            opened: BinaryIO = self._files.open_input_file(name)
            return opened

    def read(self, file: TableFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file, or some columns of them: ``turns.run_id``; one that it lacks is left
        out.
        """
        with self._explained(), self._files.open_input_file(file.name) as opened:
            return pq.ParquetFile(opened).read(columns=columns)

    def commit(
        self,
        added: Sequence[TableFile],
        removed: Sequence[TableFile] = (),
        positions: Mapping[str, int] | None = None,
        *,
        upon: int | None = None,
        changes: bool = True,
    ) -> bool:
        """Make the next version; ``False``: somebody else made it first, and nothing was done.

        After an error it is not known whether it was made: look at what is committed.

        Args:
            added: files to add.
            removed: files to leave out from now on.
            positions: name to number.
            upon: the version that the caller has looked at: if another is known by now, nothing is done.
                ``None``: the caller has looked at nothing that another commit can change.
            changes: whether any row comes, goes or changes.
        """
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            *(_added(file, now_ms, changes) for file in added),
            *(
                RemoveAction(file.name, changes, now_ms, file.size, {RELATION: file.relation})
                for file in removed
            ),
        ]
        settings = deltalake.CommitProperties(
            max_commit_retries=0,
            app_transactions=[deltalake.Transaction(*each) for each in (positions or {}).items()],
        )
        with self._lock, self._explained():
            if upon is not None and self._delta.version() != upon:
                return False
            try:
                self._delta.create_write_transaction(
                    actions, "append", self._schema, [RELATION], commit_properties=settings
                )
            except CommitFailedError:
                return False
            self._keep(f"_delta_log/{self._delta.version() + 1:020d}.json", "_delta_log")
        return True

    def _keep(self, *names: str) -> None:
        """Have the disk keep files or directories of the table; an object store does so by itself."""
        if "://" in self.uri:
            return
        with self._explained():
            for name in names:
                handle = os.open(os.path.join(self.uri, name), os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def vacuum(self) -> int:
        """Delete files that have not been of the table for hours; return how many."""
        with self._lock, self._explained():
            gone = self._delta.vacuum(_KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        return len(gone)

    # -- opening ------------------------------------------------------------------------------

    def _opened(self) -> "deltalake.DeltaTable":
        return deltalake.DeltaTable(self.uri, storage_options=self._options)

    def _made(self) -> "deltalake.DeltaTable":
        if "://" not in self.uri:
            os.makedirs(self.uri, exist_ok=True)
        for _ in range(_RACES):
            try:
                return self._opened()
            except TableNotFoundError:
                # Another archiver may be first: its table is taken. Tried again, this one would be the next
                # version of that, with another id.
                with contextlib.suppress(CommitFailedError, DeltaError):
                    deltalake.DeltaTable.create(
                        self.uri,
                        table_schema(),
                        partition_by=[RELATION],
                        description=_DESCRIPTION.format(SCHEMA_VERSION),
                        configuration=dict(_SETTINGS),
                        storage_options=self._options,
                        commit_properties=deltalake.CommitProperties(max_commit_retries=0),
                    )
        return self._opened()

    def _check(self) -> None:
        found = re.fullmatch(_DESCRIPTION.format(r"(\d+)"), self._delta.metadata().description or "")
        if found is None:
            raise ArchiveError(f"{self.archive} is a Delta table but not an archive of unstable_stream")
        if int(found[1]) > SCHEMA_VERSION:
            raise ArchiveError(
                f"the archive {self.archive} has schema version {found[1]}; this package knows up to "
                f"{SCHEMA_VERSION}. Upgrade unstable_stream."
            )

    def _widen(self) -> None:
        """Add the columns of relations that an older package did not have."""
        for _ in range(_RACES):
            lacking = self._lacking()
            if not lacking:
                return
            # Another archiver of this version of the package may do the same now.
            with contextlib.suppress(CommitFailedError):
                self._delta.alter.add_columns(lacking)
            self._delta = self._opened()
        raise ArchiveError(f"could not add columns to the archive {self.archive}: others write it; try again")

    def _lacking(self) -> "list[Field]":
        ours, theirs = table_schema(), pa.schema(self._delta.schema())
        lacking = []
        for field in ours:
            if field.name in theirs.names and pa.types.is_struct(field.type):
                there = {inner.name for inner in theirs.field(field.name).type}
                inner = [each for each in field.type if each.name not in there]
                if inner:
                    lacking.append(pa.field(field.name, pa.struct(inner)))
            elif field.name not in theirs.names:
                lacking.append(field)
        return list(deltalake.Schema.from_arrow(pa.schema(lacking)).fields) if lacking else []

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TableNotFoundError as error:
            raise ArchiveError(
                f"no archive at {self.archive}: start an archiver with this address first, "
                "unstable-stream archive"
            ) from error
        except (OSError, DeltaError) as error:
            told = " ".join(_COLOURS.sub("", str(error)).split())[:_TOLD]
            # The kinds of error do not tell what a store has answered.
            lasting = isinstance(error, FileNotFoundError | PermissionError) or (
                isinstance(error, DeltaError) and not _OF_A_STORE.search(told)
            )
            if lasting or _REFUSED.search(told):
                raise ArchiveError(f"cannot use the archive {self.archive}: {told}") from error
            raise ArchiveBusyError(f"the archive {self.archive} cannot be reached: {told}") from error


def _options(uri: str) -> dict[str, str] | None:
    """Return what the store's client does not find in the environment by itself."""
    if "://" not in uri:
        return None
    options = dict(_PATIENCE)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if uri.startswith("s3") and endpoint:
        options["aws_endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
    return options


def _added(file: TableFile, now_ms: int, changes: bool) -> AddAction:
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.name, file.size, {RELATION: file.relation}, now_ms, changes, stats)

"""Read a run's game outcomes from the archive as columns, to rate the games anew."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.read import arrow_reader
from unstable_stream.log.stores.archive_address import ArchiveAddress, is_shared

_BATCH_ROWS: Final = 200_000


class Coded(NamedTuple):
    """A column of few different texts: each row has a number, and ``values[number]`` is its text."""

    codes: NDArray[np.int32]
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class SeatColumns:
    """Consecutive games of a run, in the order of their outcomes on the log."""

    game_ids: Any
    """``str[games]``, an Arrow array."""
    starts: NDArray[np.int64]
    """``int64[games + 1]``: each game's first row in the columns of seats, then the number of rows."""
    envs: Coded
    """``[games]``"""
    models: Coded
    """``[seats]``"""
    versions: list[int | None]
    """For each value of ``models``, the update that made it; ``None`` for a fixed opponent."""
    ranks: NDArray[np.int32]
    """``int32[seats]``"""
    teams: NDArray[np.int32]
    """``int32[seats]``: -1 for one who plays for itself."""


def archived_parents(
    path: ArchiveAddress, run_id: str, *, timeout_s: float = 30.0
) -> Mapping[str, str | None]:
    """Return each checkpoint's parent, by uid."""
    with open_archive(path, timeout_s=timeout_s) as connection:
        rows = connection.execute(
            "SELECT model_uid, parent_uid FROM checkpoints WHERE run_id = ?", [run_id]
        ).fetchall()
    return dict(rows)


def archived_seats(path: ArchiveAddress, run_id: str, *, timeout_s: float = 30.0) -> Iterator[SeatColumns]:
    """Yield a run's outcomes, each game once.

    They come in the log's order: all of a run's are on one partition. Read on without a pause: while the
    iterator is open, nobody can write to the archive, unless it is a shared one.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    with open_archive(path, timeout_s=timeout_s) as connection:
        # Without ORDER BY, DuckDB returns a table's rows in insertion order; the files of a shared archive
        # come in any order.
        order = " ORDER BY record_number, seat" if is_shared(path) else ""
        there = connection.sql("SELECT * FROM seats LIMIT 0").columns
        team = "coalesce(team, -1)" if "team" in there else "-1"
        relation = connection.sql(
            f'SELECT game_id, env_id, model_uid, policy_version, "rank", {team}::INTEGER AS team '
            f"FROM seats WHERE run_id = $run{order}",
            params={"run": run_id},
        )
        left_over: pa.Table | None = None
        for batch in arrow_reader(relation, _BATCH_ROWS):
            rows = pa.Table.from_batches([batch])
            if left_over is not None:
                rows = pa.concat_tables([left_over, rows])
            starts = _game_starts(rows)
            if len(starts) == 0:
                continue
            # The last game may go on in the next batch.
            last = int(starts[-1])
            left_over = rows.slice(last)
            if last > 0:
                yield _columns(rows.slice(0, last), starts[:-1])
        if left_over is not None:
            yield _columns(left_over, _game_starts(left_over))


def _game_starts(rows: pa.Table) -> NDArray[np.int64]:
    if rows.num_rows == 0:
        return np.empty(0, dtype=np.int64)
    ids = rows["game_id"].combine_chunks()
    changes = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)


def _columns(rows: pa.Table, starts: NDArray[np.int64]) -> SeatColumns:
    models = _coded(rows["model_uid"].combine_chunks())
    _, first_rows = np.unique(models.codes, return_index=True)
    first = pa.array(starts)
    return SeatColumns(
        game_ids=rows["game_id"].combine_chunks().take(first),
        starts=np.append(starts, rows.num_rows),
        envs=_coded(rows["env_id"].combine_chunks().take(first)),
        models=models,
        versions=rows["policy_version"].combine_chunks().take(pa.array(first_rows)).to_pylist(),
        ranks=rows["rank"].combine_chunks().to_numpy(),
        teams=rows["team"].combine_chunks().to_numpy(),
    )


def _coded(column: pa.Array) -> Coded:
    encoded = pc.dictionary_encode(column)
    return Coded(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

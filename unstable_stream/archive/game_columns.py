"""Read a run's game outcomes from the archive as columns, to rate the games anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unstable_stream.archive.opening import open_archive
from unstable_stream.log.stores.archive_address import ArchiveAddress, is_shared


class Coded(NamedTuple):
    """A column of few different texts: each row has a number, and ``values[number]`` is its text."""

    codes: NDArray[np.int32]
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class SeatColumns:
    """The games of a run, in the order of their outcomes on the log."""

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


def archived_parents(path: ArchiveAddress, run_id: str) -> Mapping[str, str | None]:
    """Return each checkpoint's parent, by uid."""
    with open_archive(path) as connection:
        rows = connection.execute(
            "SELECT model_uid, parent_uid FROM checkpoints WHERE run_id = ?", [run_id]
        ).fetchall()
    return dict(rows)


def archived_seats(path: ArchiveAddress, run_id: str) -> SeatColumns:
    """Return a run's outcomes, each game once, in the log's order: all of a run's are on one partition.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    # Without ORDER BY, DuckDB returns a table's rows in insertion order; the files of a shared archive come
    # in any order.
    order = " ORDER BY record_number, seat" if is_shared(path) else ""
    with open_archive(path) as connection:
        rows = connection.sql(
            'SELECT game_id, env_id, model_uid, policy_version, "rank", coalesce(team, -1)::INTEGER AS team '
            f"FROM seats WHERE run_id = $run AND branched IS NOT TRUE{order}",
            params={"run": run_id},
        ).to_arrow_table()
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    ids = columns["game_id"]
    changes = pc.not_equal(ids.slice(1), ids.slice(0, max(0, len(ids) - 1))).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.concatenate([[True], changes]))[: len(ids)]
    models = _coded(columns["model_uid"])
    _, first_rows = np.unique(models.codes, return_index=True)
    return SeatColumns(
        game_ids=ids.take(pa.array(starts)),
        starts=np.append(starts, len(ids)),
        envs=_coded(columns["env_id"].take(pa.array(starts))),
        models=models,
        versions=columns["policy_version"].take(pa.array(first_rows)).to_pylist(),
        ranks=columns["rank"].to_numpy(),
        teams=columns["team"].to_numpy(),
    )


def _coded(column: pa.Array) -> Coded:
    encoded = pc.dictionary_encode(column)
    return Coded(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

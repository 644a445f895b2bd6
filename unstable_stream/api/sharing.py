"""Games of others become games of a run, and games of a run a data set."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from unstable_stream.api.loops import stopped, wait_for
from unstable_stream.api.place import Place, PlacedRun, placed
from unstable_stream.api.topics import create_topics
from unstable_stream.archive import dataset
from unstable_stream.archive.rows import read_rows
from unstable_stream.errors import ConfigError, FencedError, RunError
from unstable_stream.events import IMPORTED, Event, RunFinished, event_id, now_ms
from unstable_stream.extensions import confined
from unstable_stream.history.hindsight.imported import GameMapping, imported_games, load_mapping
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Producer
from unstable_stream.runs.config import parse_config, read_toml
from unstable_stream.runs.history import list_runs
from unstable_stream.runs.recording import run_slug, start_run


def export_dataset(
    run: str | PlacedRun,
    directory: Path | str,
    *,
    force: bool = False,
    data: Path | str | None = None,
) -> dict[str, int]:
    """Write the finished games of a run, a row for each move, as a data set that ``datasets`` reads.

    Args:
        run: a run, its id or the beginning of it.
        directory: made if it does not exist; it gets ``data/SPLIT-*.parquet``, ``README.md``, the card, and
            ``mapping.toml``, with which :func:`import_games` reads a file back.
        force: replace files that are there already.
        data: as for :func:`build`.

    Returns:
        The rows of each split.

    Raises:
        RunError: no such run.
        ArchiveError: the run has no finished game, files are there already, or one cannot be written.
    """
    place, named = placed(run, data, None)
    return dataset.write_dataset(place.archive, named, directory, force=force)


class Imported(NamedTuple):
    """The result of :func:`import_games`."""

    run_id: str
    games: int
    """Games that were added: none, if the file had been imported before."""


def import_games(
    file: Path | str,
    mapping: Path | str | Mapping[str, Any],
    *,
    name: str | None = None,
    data: Path | str | None = None,
    log: str | None = None,
    allow_code: Sequence[str] | None = (),
) -> Imported:
    """Record the games of a file as a run that is over, in the split ``imported``, rated and archived.

    All of them are recorded at once or none is, and a file that was imported before adds nothing.

    Args:
        file: JSON Lines, JSON or Parquet: a row for each move, or with the list of them.
        mapping: a TOML file, or its content, that names the columns: docs/how-to/share-games.md.
        name: of the run; by default that of the file.
        data: the data directory.
        log: the event log; ``None``: ``local``.
        allow_code: patterns of environments' code that the file may name; ``None``: any. It is loaded.

    Raises:
        ConfigError: a column is missing, or a value is not what it should be, and names the row; or an
            environment is code that is not allowed.
        EnvironmentUnavailableError: there is no such environment.
        RunError: another import of the file began meanwhile.
    """
    from unstable_stream.services.streams.service import run_processors
    from unstable_stream.services.workers.archiver import run_archiver

    place, path = Place.at(data, log), Path(file)
    given = mapping if isinstance(mapping, Mapping) else read_toml(Path(mapping))
    columns = load_mapping(given, "mapping" if isinstance(mapping, Mapping) else str(mapping))
    content = _digest(path)
    how = hashlib.sha256(msgspec.json.encode(columns, order="deterministic")).hexdigest()[:4]
    create_topics(place)

    async def work() -> Imported:
        gone = place.dropped()
        async with opened_log(place.log, place.data.log) as opened:
            # Of two imports of a file at once, the later one is recorded, or sees the games of the other.
            producer = await opened.producer(f"import/{content}")
            known = [run.run_id for run in await list_runs(opened)]
            before = [run for run in known if f"-{content}-" in run and run not in gone]
            run_id = before[0] if before else f"{run_slug(name or path.stem)}-{content}-{how}"
            if run_id in gone:
                raise ConfigError(f"{path} was imported as {run_id}, which was removed: its games stay away")
            added = 0
            if not before:
                try:
                    added = await _record(opened, producer, path, columns, run_id, name or path.stem)
                except FencedError as error:
                    raise RunError(
                        f"{path}: another import of it began meanwhile, which records its games"
                    ) from error
            await run_processors(opened, run_id, stopped())
            await run_archiver(opened, place.archive, stop=stopped())
        return Imported(run_id, added)

    with confined(allow_code):
        return wait_for(work())


async def _record(
    opened: EventLog, producer: Producer, path: Path, columns: GameMapping, run_id: str, title: str
) -> int:
    """Record the games of a file at once; return their number."""
    from unstable_stream.games.environments import check_known

    events: list[Event] = []
    players: dict[str, int] = {}
    at_ms, count = now_ms(), 0
    for started, played in imported_games(read_rows(path), columns, run_id, at_ms):
        if started.env_id not in players:
            check_known(started.env_id)
        players[started.env_id] = len(started.seats)
        events += (started, *played.trajectories, played.outcome)
        count += 1
    config = parse_config(
        {
            "name": title,
            "model": IMPORTED,
            "train_envs": [{"env_id": env, "num_players": seats} for env, seats in players.items()],
            "learner": {"iterations": 0},
        }
    )
    ended = RunFinished(
        event_id=event_id(run_id, "run-finished", 0),
        run_id=run_id,
        occurred_at_ms=at_ms,
        outcome="completed",
        reason=f"{count:,} games of {path.name}",
    )
    await start_run(opened, config, run_id, events=[*events, ended], producer=producer)
    return count


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error

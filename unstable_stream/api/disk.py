"""Measure what takes the space of a data directory, or of a run in it, and name what frees each part."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.api.place import Place
from unstable_stream.api.removal import bytes_in
from unstable_stream.archive import find_archived_run, open_archive
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import source_header
from unstable_stream.log.stores.archive_address import is_shared
from unstable_stream.log.stores.cache import CACHE, HostCache

_KINDS: Final = {
    "checkpoints": "checkpoints",
    "logs": "output of processes",
    "tracking": "files of trackers",
    "what-if": "what-if sets",
    "code": "names of code",
}
"""Directories of the data directory with a part for each run, which goes with ``rm``."""
_STAYS: Final = {"plugins": "nothing: states of plug-ins", "sweeps": "nothing: locks of sweeps"}


class Used(NamedTuple):
    """Some files, or a part of one."""

    what: str
    bytes: int
    frees: str
    """The command that frees it, or what does."""


def disk_usage(place: Place, run: str | None = None) -> list[Used]:
    """Return what takes space in a data directory and in caches of this machine, or of a run; change nothing.

    Args:
        place: whose data directory; a log on Kafka and a shared archive are elsewhere, and left out.
        run: only of this run; the archive is then divided by its records.

    Raises:
        RunError: no such run, or it was dropped.
        ArchiveError, EventLogError: archive or log cannot be read.
    """
    run_id = None
    if run is not None:
        with open_archive(place.archive) as connection:
            run_id = find_archived_run(connection, run)
    used = [*_log(place, run_id), *_archive(place, run_id), *_files(place, run_id)]
    used += [] if run_id is not None else _caches()
    return sorted((each for each in used if each.bytes), key=lambda each: (-each.bytes, each.what))


def _log(place: Place, run_id: str | None) -> Iterator[Used]:
    async def ask(log: EventLog) -> Mapping[tuple[str, bytes], tuple[int, int]]:
        return await log.sizes() if isinstance(log, LocalLog) else {}

    file = place.data.log
    if place.log != "local" or not file.is_file():
        return
    found = place.ask_log(ask)
    by_topic: dict[str, int] = {}
    for (topic, source), (_, size) in found.items():
        if run_id is None or source == source_header(run_id):
            by_topic[topic] = by_topic.get(topic, 0) + size
    for topic, size in by_topic.items():
        yield Used(f"log: {topic}", size, f"rm {run_id or 'RUN'}")
    if run_id is None:
        side = sum(bytes_in(each) for each in file.parent.glob(f"{file.name}-*"))
        rest = bytes_in(file) + side - sum(by_topic.values())
        yield Used("log: pages, free space", rest, "topics trim --shrink")


def _archive(place: Place, run_id: str | None) -> Iterator[Used]:
    file = place.data.archive_file
    if not file.is_file() or is_shared(place.archive):
        return
    side = sum(map(bytes_in, _beside_archive(place)))
    with open_archive(file) as connection:
        if run_id is not None:
            ((share,),) = connection.execute(_SHARE, [run_id]).fetchall()
            yield Used("archive: its share", round(share * (bytes_in(file) + side)), f"rm {run_id}")
            return
        ((block, total, free),) = connection.execute(_BLOCKS).fetchall()
        tables = connection.execute(_TABLES).fetchall()
        taken = 0
        for (table,) in tables:
            ((blocks,),) = connection.execute(_BLOCKS_OF, [table]).fetchall()
            taken += blocks
            yield Used(f"archive: {table}", blocks * block, "rm RUN")
    yield Used("archive: free blocks", free * block, "rm RUN, which writes it anew")
    yield Used("archive: its lists", max(0, total - free - taken) * block, "nothing")
    yield Used("archive: write-ahead log", side, "nothing: it is merged later")


def _beside_archive(place: Place) -> list[Path]:
    name = place.data.archive_file.name
    return [each for each in place.root.glob(f"{name}?*") if not each.name.endswith(".old")]


def _files(place: Place, run_id: str | None) -> Iterator[Used]:
    beside = (each.name for each in _beside_archive(place))
    root, known = place.root, {place.data.archive_file.name, *beside, *_KINDS}
    for kind, told in _KINDS.items():
        runs = sorted((root / kind).iterdir()) if (root / kind).is_dir() else []
        for each in runs:
            owner = each.name.removesuffix(".json") if kind == "code" else each.name
            if run_id in (None, owner):
                yield Used(f"{told}: {owner}", bytes_in(each), f"rm {owner}")
    if run_id is not None:
        return
    for each in sorted(root.iterdir()) if root.is_dir() else ():
        if each.name not in known and not each.name.startswith(place.data.log.name):
            remedy = _STAYS.get(each.name, "delete it, if you know it")
            yield Used(each.name, bytes_in(each), "delete it" if each.name.endswith(".old") else remedy)


def _caches() -> Iterator[Used]:
    cache = HostCache.of_host()
    yield Used(f"cache of stores: {cache.root}", bytes_in(cache.root), f"delete it; {CACHE}_GB bounds it")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    for model in sorted(hub.glob("models--*")):
        name = model.name.removeprefix("models--").replace("--", "/")
        yield Used(f"Hugging Face: {name}", bytes_in(model), f"hf cache rm model/{name}")


_SHARE: Final = "SELECT count(*) FILTER (run_id = $1) / greatest(1, count(*)) FROM events"
_BLOCKS: Final = "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size()"
_TABLES: Final = "SELECT table_name FROM duckdb_tables() WHERE NOT internal"
_BLOCKS_OF: Final = """
SELECT count(DISTINCT block) FROM (
    SELECT unnest(list_append(additional_block_ids, block_id)) AS block FROM pragma_storage_info($1)
) WHERE block >= 0
"""

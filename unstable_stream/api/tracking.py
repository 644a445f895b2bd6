"""Give the metrics of a recorded run to TensorBoard, Weights & Biases, a file, or a tracker of your own."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import Spec
from unstable_stream.history.hindsight.offline import find_recorded_run
from unstable_stream.history.hindsight.track import Tracked, track
from unstable_stream.services.streams.ordered_history import ArchiveHistory, LogHistory
from unstable_stream.services.streams.trackers import Received, RunTracker, build_tracker, tracker_title

__all__ = ["Tracked", "track_run"]


def _nobody(read: int, total: int) -> None:
    pass


def track_run(
    place: Place,
    run: str,
    to: Spec | RunTracker,
    directory: Path | str | None = None,
    *,
    follow: bool = False,
    source: Literal["log", "archive"] = "log",
    progress: Callable[[int, int], None] = _nobody,
) -> Tracked:
    """Give a tracker every metric of a run, each once, also if it is called again.

    Args:
        place: where the run is recorded.
        run: id or prefix.
        to: ``jsonl``, ``tensorboard``, ``wandb``, ``{"type": "wandb", "project": "UB"}``, a tracker class by
            reference, or an object with ``log``.
        directory: files are written to ``directory/RUN``; by default ``tracking/RUN`` in the data directory.
        follow: go on until the run ends.
        source: ``log``, with what expired in it from the archive, or only the ``archive``.
        progress: told how many records have been read, and how many there are.

    Raises:
        ConfigError: no such tracker, its library is not installed, or it is not given its arguments.
        RunError: no such run, or the tracker cannot write.
    """
    if source not in ("log", "archive"):
        raise ConfigError(f"source {source!r}: expected log or archive")
    if follow and source == "archive":
        raise ConfigError("follow reads the log as it grows: leave out source='archive' (--source archive)")

    async def work() -> Tracked:
        if source == "archive":
            archived = ArchiveHistory(place.archive, None)
            try:
                return await give(archived)
            finally:
                await archived.close()
        async with place.opened_history() as log:
            return await give(LogHistory(log))

    async def give(history: LogHistory | ArchiveHistory) -> Tracked:
        run_id, _ = await find_recorded_run(history, run)
        here = place.data.tracking(run_id)
        home = here if directory is None else Path(directory) / here.name
        tracker, title = _tracker_of(to, home)
        received = Received(home, title)
        return await track(history, run_id, tracker, received, follow=follow, progress=progress)

    return wait_for(work())


def _tracker_of(to: Spec | RunTracker, home: Path) -> tuple[RunTracker, str]:
    if isinstance(to, str | dict):
        return build_tracker(to, home, "to"), tracker_title(to, "to")
    log = getattr(to, "log", None)
    if inspect.isclass(to) or not callable(log):
        raise ConfigError(
            f"to={to!r}: expected jsonl, tensorboard, wandb, module:Name, or an object with "
            "log(values, *, run_id, source, step, time_ms)"
        )
    return to, type(to).__name__  # type: ignore[return-value]

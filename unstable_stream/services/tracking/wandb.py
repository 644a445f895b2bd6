"""Send metrics to Weights & Biases: the only module that imports ``wandb``."""

import netrc
import os
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError
from unstable_stream.services.streams.trackers import Parent

try:
    import wandb
except ModuleNotFoundError as error:
    raise ConfigError(
        f"the tracker wandb needs {error.name}: pip install 'unstable_stream[wandb]'"
    ) from error

_STEP: Final = "update"
_TIME: Final = "_timestamp"
"""W&B takes the time of a row from here; by default it is the time at which the row is logged."""
_HOST: Final = "api.wandb.ai"
_ROW: Final = np.dtype([("step", "<i8"), ("update", "<i8")])
"""Of each row that was logged: W&B's own number of it, ``_step``, and its update."""
_log = get_logger(__name__)


class WandbTracker:
    """One W&B run with the run's id. Its axis is ``update``, the number of the learner update.

    A metric that belongs to no update (the engines', the services') has that of the newest one so far. After
    a restart the same W&B run goes on, offline in a further directory, whose rows are numbered on: W&B takes
    rows with numbers that it has for the same ones. A fork goes on from the row of its parent at which it was
    forked, so W&B shows the parent's curve before its own; the parent must have been sent from here before.
    """

    def __init__(
        self,
        directory: str,
        project: str = "unstable-stream",
        entity: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        fork: bool = True,
        parent: Parent | None = None,
    ) -> None:
        """Store the arguments; the W&B run begins with the first metric.

        Args:
            directory: where W&B keeps its files, in ``wandb``.
            project: name of the W&B project.
            entity: user or team; ``None``: W&B's default.
            group: W&B's group of runs.
            mode: ``offline`` only writes files, which ``wandb sync`` sends later. ``None``: the environment's
                ``WANDB_MODE``, else ``online`` where an API key is, else ``offline``.
            fork: let a fork go on from its parent's W&B run; some servers refuse it.
            parent: the point that the run was forked from; it is given by whoever makes the tracker.

        Raises:
            ConfigError: another mode.
        """
        if mode not in (None, "online", "offline"):
            raise ConfigError(f"wandb: mode {mode!r}: expected 'online' or 'offline'")
        self._directory = Path(directory)
        self._project = project
        self._entity = entity
        self._group = group
        self._mode = mode
        self._parent = parent if fork else None
        self._row = 0
        self._run: Any = None  # wandb.Run, whose methods W&B documents and leaves partly untyped
        self._newest = 0 if parent is None else parent.update

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Log the values at their update."""
        if self._run is None:
            self._run = self._begin(run_id)
        self._newest = max(self._newest, step or 0)
        at = self._newest if step is None else step
        self._run.log({**values, _STEP: at, _TIME: time_ms / 1000}, step=self._row)
        with _rows_file(self._directory).open("ab") as file:
            file.write(np.array((self._row, at), dtype=_ROW).tobytes())
        self._row += 1

    def close(self) -> None:
        """Finish the W&B run: wait until everything is written, and sent if online."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _begin(self, run_id: str) -> Any:
        mode = self._mode
        if mode is None and not os.environ.get("WANDB_MODE"):
            mode = "online" if _has_key() else "offline"
        if (mode or os.environ.get("WANDB_MODE")) == "offline":
            files = self._directory / "wandb" / "offline-run-*"
            _log.info("wandb only writes files", to_send_them=f"wandb sync {files}")
        self._directory.mkdir(parents=True, exist_ok=True)
        beginning = self._beginning(offline=(mode or os.environ.get("WANDB_MODE")) == "offline")
        # What this machine measures and holds is not the run's: a back-fill may be made anywhere.
        settings = wandb.Settings(
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_meta=True,
            disable_git=True,
            save_code=False,
        )
        try:
            run = wandb.init(
                project=self._project,
                entity=self._entity,
                group=self._group,
                id=run_id,
                name=run_id,
                dir=str(self._directory),
                mode=mode,
                **beginning,
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"wandb does not start: {error}; set WANDB_API_KEY, or mode = 'offline' to write files only"
                + ("; or fork = false to begin a curve of its own" if "fork_from" in beginning else "")
            ) from error
        self._row = max(self._row, run.step)
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)
        return run

    def _beginning(self, *, offline: bool) -> dict[str, Any]:
        """Return how the W&B run begins: it goes on, goes on from its parent's, or is new."""
        rows = _rows(self._directory)
        if len(rows):
            self._row = int(rows["step"][-1]) + 1
            self._newest = int(rows["update"].max())
            return {"resume": "allow"}
        if self._parent is not None:
            before = _rows(self._parent.directory)
            later = np.flatnonzero(before["update"] > self._parent.update)
            before = before[: later[0]] if len(later) else before
            if len(before):
                self._row = int(before["step"][-1]) + 1
                return {"fork_from": f"{self._parent.run_id}?_step={self._row - 1}"}
            _log.info("wandb begins a curve of its own", parent_not_sent_from_here=self._parent.run_id)
        return {"resume": None if offline else "allow"}


def _rows_file(directory: Path) -> Path:
    return directory / ".wandb.rows"


def _rows(directory: Path) -> Any:  # a structured array, whose fields mypy does not know
    """Return the rows that were logged from a directory, ``_ROW[n]``."""
    path = _rows_file(directory)
    if not path.exists():
        return np.empty(0, dtype=_ROW)
    return np.frombuffer(path.read_bytes(), dtype=_ROW, count=path.stat().st_size // _ROW.itemsize)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return _HOST in netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False

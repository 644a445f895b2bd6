"""Send metrics to Weights & Biases: the only module that imports ``wandb``."""

import netrc
import os
from pathlib import Path
from typing import Any, Final, Literal

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError

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
_log = get_logger(__name__)


class WandbTracker:
    """One W&B run with the run's id. Its axis is ``update``, the number of the learner update.

    A metric that belongs to no update (the engines', the services') has that of the newest one so far. After
    a restart the same W&B run goes on.
    """

    def __init__(
        self,
        directory: str,
        project: str = "unstable-stream",
        entity: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        """Store the arguments; the W&B run begins with the first metric.

        Args:
            directory: where W&B keeps its files, in ``wandb``.
            project: name of the W&B project.
            entity: user or team; ``None``: W&B's default.
            group: W&B's group of runs.
            mode: ``offline`` only writes files, which ``wandb sync`` sends later. ``None``: the environment's
                ``WANDB_MODE``, else ``online`` where an API key is, else ``offline``.

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
        self._run: Any = None  # wandb.Run, whose methods W&B documents and leaves partly untyped
        self._newest = 0

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Log the values at their update."""
        if self._run is None:
            self._run = self._begin(run_id)
        self._newest = max(self._newest, step or 0)
        at = self._newest if step is None else step
        self._run.log({**values, _STEP: at, _TIME: time_ms / 1000})

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
                resume="allow" if mode != "offline" else None,
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"wandb does not start: {error}; set WANDB_API_KEY, or mode = 'offline' to write files only"
            ) from error
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)
        return run


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return _HOST in netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False

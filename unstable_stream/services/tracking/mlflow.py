"""Send metrics to MLflow: the only module that imports ``mlflow``."""

import os
import re
from pathlib import Path
from typing import Final

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError, RunError

try:
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException
    from mlflow.tracking.client import MlflowClient
except ModuleNotFoundError as error:
    raise ConfigError(
        f"the tracker mlflow needs {error.name}: pip install 'unstable_stream[mlflow]'"
    ) from error

_RUN: Final = "unstable_stream.run_id"
"""The tag by which a run is found again; MLflow chooses ids of its own."""
_REFUSED: Final = re.compile(r"[^\w\-. :/]")
"""The characters that names of MLflow's metrics cannot have."""
_AT_ONCE: Final = 1000
"""The most metrics that MLflow takes in one request."""


class MlflowTracker:
    """One MLflow run with the name of the run. Its step is the number of the learner update.

    A metric that belongs to no update (the engines', the services') has that of the newest one so far. After
    a restart the same MLflow run goes on.
    """

    def __init__(
        self, directory: str, tracking_uri: str | None = None, experiment: str = "unstable_stream"
    ) -> None:
        """Store the arguments; the MLflow run begins with the first metric.

        Args:
            directory: the run's directory.
            tracking_uri: the server or the database, e.g. ``http://127.0.0.1:5000``. ``None``: the
                environment's ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the run's directory.
            experiment: name of the experiment; made if there is none.
        """
        own = Path(directory).absolute() / "mlflow.db"
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{own}"
        if self._uri == f"sqlite:///{own}":
            own.parent.mkdir(parents=True, exist_ok=True)
        self._experiment = experiment
        self._client: MlflowClient | None = None
        self._run = ""
        self._newest = 0
        self._newest_ms = 0

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Log the values at their update.

        Raises:
            RunError: MLflow does not take them.
        """
        self._newest = max(self._newest, step or 0)
        self._newest_ms = max(self._newest_ms, time_ms)
        at = self._newest if step is None else step
        metrics = [Metric(_REFUSED.sub("_", name), value, time_ms, at) for name, value in values.items()]
        try:
            if self._client is None:
                self._client = MlflowClient(tracking_uri=self._uri)
                self._run = self._begin(self._client, run_id, time_ms)
            for first in range(0, len(metrics), _AT_ONCE):
                self._client.log_batch(self._run, metrics=metrics[first : first + _AT_ONCE])
        except (MlflowException, ModuleNotFoundError) as error:  # a database's driver may not be installed
            reason = without_logins(f"{self._uri} does not take metrics: {error}")
            raise RunError(
                f"mlflow: {reason}; start MLflow there, or name another tracking_uri, and run it again: it "
                "goes on where it was"
            ) from error

    def close(self) -> None:
        """End the MLflow run at the time of its last metric."""
        if self._client is not None and self._run:
            self._client.set_terminated(self._run, "FINISHED", self._newest_ms)

    def _begin(self, client: MlflowClient, run_id: str, time_ms: int) -> str:
        """Return MLflow's id of the run, which goes on if there is one."""
        experiment = client.get_experiment_by_name(self._experiment)
        known = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        for run in client.search_runs([known], f"tags.`{_RUN}` = '{run_id}'"):
            client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        made = client.create_run(known, time_ms, {_RUN: run_id}, run_name=run_id)
        return str(made.info.run_id)

"""Tell which data a run made of which, as OpenLineage events: the only module that imports ``openlineage``.

The job is named as the run's configuration is. Each part of a run, from its start or a resumption to its
end, is a run of OpenLineage, because these begin and end once. Its datasets are the topics of the log, the
model that training began with, and the checkpoints, named ``RUN/CHECKPOINT``. A fork has the parent's
checkpoint as its input, a resumed part the run's own newest one.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import (
    Checkpoint,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    checkpoint_uid,
    event_id,
)
from unstable_stream.log.stores.address import is_address
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.trackers import Piece

try:
    from openlineage.client import facet_v2 as facets
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
        set_producer,
    )
    from openlineage.client.serde import Serde
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    from unstable_stream.services.tracking.http_session import session
except ModuleNotFoundError as error:
    raise ConfigError(
        f"the tracker openlineage needs {error.name}: pip install 'unstable_stream[openlineage]'"
    ) from error

set_producer("urn:unstable_stream")
_OURS: Final = "unstable_stream"
_ENDS: Final = {"completed": RunState.COMPLETE, "stopped": RunState.ABORT, "failed": RunState.FAIL}
_KILLED: Final = "killed: nothing was recorded of its end"


class OpenLineageTracker:
    """Sends events to an HTTP endpoint, or writes them to ``openlineage.jsonl`` in the run's directory."""

    topics: Sequence[str] = (Checkpoint.TOPIC,)
    batch = 1
    unit = "lineage events"

    def __init__(
        self,
        directory: str,
        url: str | None = None,
        namespace: str = "unstable_stream",
        api_key: str | None = None,
    ) -> None:
        """Store the arguments; nothing is sent before the first event.

        Args:
            directory: where the file is written.
            url: ``http://HOST:PORT`` of what collects lineage, e.g. Marquez; ``None``: write the file.
            namespace: namespace of the job.
            api_key: sent to ``url``; ``None``: the environment's ``OPENLINEAGE_API_KEY``, if there is one.
        """
        self._path = Path(directory) / "openlineage.jsonl"
        self._url = url
        self._namespace = namespace
        key = api_key or os.environ.get("OPENLINEAGE_API_KEY")
        auth = {"type": "api_key", "api_key": key} if key else {}
        self._http = None
        if url is not None:
            config = HttpConfig.from_dict({"url": url, "auth": auth})
            config.session = session()
            self._http = HttpTransport(config)
        self._began: RunStarted | None = None
        self._part = 0
        self._running = False
        self._newest: dict[str | None, Checkpoint] = {}
        """By trained model, the newest checkpoint that the run made; a fork names those of its parent too."""

    def handle(self, event: Event) -> list[Piece]:
        """Return the lineage events that follow from an event of the run."""
        if isinstance(event, RunStarted):
            self._began, self._running = event, True
            return [self._piece(event, RunState.START, inputs=self._origins(event), outputs=self._topics())]
        if self._began is None:
            return []
        if isinstance(event, RunResumed):
            killed = [self._piece(event, RunState.FAIL, error=_KILLED)] if self._running else []
            self._part, self._running = event.resumption, True
            newest = [InputDataset(**self._checkpoint(each)) for each in self._newest.values()]
            inputs = newest or self._origins(self._began)
            return [*killed, self._piece(event, RunState.START, inputs=inputs, outputs=self._topics())]
        if (
            isinstance(event, Checkpoint)
            and event.path
            and event.iteration > (self._began.parent_update or 0)
        ):
            self._newest[event.model] = event
            return [self._piece(event, RunState.RUNNING, outputs=[self._made(event)])]
        if isinstance(event, RunFinished):
            self._running = False
            made = [*self._topics(), *map(self._made, self._newest.values())]
            error = event.reason or event.outcome if event.outcome == "failed" else ""
            return [self._piece(event, _ENDS.get(event.outcome, RunState.FAIL), outputs=made, error=error)]
        return []

    def rest(self) -> list[Piece]:
        """Return nothing: no event waits for another."""
        return []

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send the events, or append them to the file.

        Raises:
            RunError: the endpoint does not take them.
            OSError: the file cannot be written.
        """
        for piece in pieces:
            if self._http is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(Serde.to_json(piece.content) + "\n")
                continue
            try:
                self._http.emit(piece.content)
            except OSError as error:
                reason = without_logins(f"{self._url} does not take events: {error}")
                raise RunError(
                    f"openlineage: {reason}; name another url, or leave it out to write a file, and run it "
                    "again: it goes on where it was"
                ) from error

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()

    def _piece(
        self,
        event: Event,
        state: RunState,
        inputs: Sequence[InputDataset] = (),
        outputs: Sequence[OutputDataset] = (),
        error: str = "",
    ) -> Piece:
        began = self._began
        assert began is not None
        tags = {"run_id": began.run_id, "seed": str(began.seed), "resumption": str(self._part)}
        told = [facets.tags_run.TagsRunFacetFields(*tag, "INTEGRATION") for tag in tags.items()]
        about: dict[str, Any] = {
            "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
                began.package_version, "unstable_stream"
            ),
            "tags": facets.tags_run.TagsRunFacet(told),
        }
        if error:
            about["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(error, "PYTHON")
        kind = facets.job_type_job.JobTypeJobFacet("BATCH", "UNSTABLE_STREAM", "TRAINING")
        at = datetime.fromtimestamp(event.occurred_at_ms / 1000, UTC)
        lineage = RunEvent(
            eventType=state,
            eventTime=at.isoformat(timespec="milliseconds"),
            run=Run(event_id(began.run_id, "openlineage", self._part), about),
            job=Job(self._namespace, began.name, {"jobType": kind}),
            inputs=list(inputs),
            outputs=list(outputs),
        )
        return Piece(event_id(event.event_id, "openlineage", state.value), lineage)

    # -- datasets -------------------------------------------------------------------------------------

    def _log(self) -> str:
        """Return the namespace of the log: its address on Kafka, else its own id, wherever its file is."""
        assert self._began is not None
        log = str(self._began.config.get("log", "local"))
        return log if is_address(log) else f"unstable_stream://{self._began.log_id or 'log'}"

    def _topics(self) -> list[OutputDataset]:
        kind = {"datasetType": facets.dataset_type_dataset.DatasetTypeDatasetFacet("TOPIC")}
        return [OutputDataset(self._log(), topic, facets=kind) for topic in sorted(load_topics())]

    def _origins(self, began: RunStarted) -> list[InputDataset]:
        """Return the inputs of a run that starts."""
        if began.parent_run_id is None:
            model = str(began.config.get("model", ""))
            place = "file" if Path(model).is_absolute() else "huggingface" if "/" in model else _OURS
            return [InputDataset(place, model)] if model else []
        if began.parent_update is None:  # it trains on the parent's steps
            return [InputDataset(self._log(), Step.TOPIC)]
        models = [model["name"] for model in began.config.get("trained_models", ())] or [None]
        uids = [checkpoint_uid(began.parent_update, model) for model in models]
        return [InputDataset(self._log(), f"{began.parent_run_id}/{uid}") for uid in uids]

    def _checkpoint(self, checkpoint: Checkpoint) -> dict[str, Any]:
        path = checkpoint.path or ""
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        place = (f"{scheme}://{bucket}", key) if is_address(path) else ("file", path)
        symlink = facets.symlinks_dataset.Identifier(*place, "LOCATION")
        kind = facets.dataset_type_dataset.DatasetTypeDatasetFacet("MODEL", checkpoint.parameters)
        about: dict[str, Any] = {
            "datasetType": kind,
            "symlinks": facets.symlinks_dataset.SymlinksDatasetFacet([symlink]),
        }
        if checkpoint.sha256:
            about["version"] = facets.dataset_version_dataset.DatasetVersionDatasetFacet(checkpoint.sha256)
        name = f"{checkpoint.run_id}/{checkpoint.model_uid}"
        return {"namespace": self._log(), "name": name, "facets": about}

    def _made(self, checkpoint: Checkpoint) -> OutputDataset:
        size = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            size=checkpoint.size_bytes
        )
        return OutputDataset(**self._checkpoint(checkpoint), outputFacets={"outputStatistics": size})

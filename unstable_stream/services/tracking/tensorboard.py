"""Write metrics to TensorBoard: the only module that imports ``tensorboard``."""

from pathlib import Path

from unstable_stream.errors import ConfigError

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ModuleNotFoundError as error:
    raise ConfigError(
        f"the tracker tensorboard needs {error.name}: pip install 'unstable_stream[tensorboard]'"
    ) from error


class TensorBoardTracker:
    """Writes scalars to event files in the run's directory; ``tensorboard --logdir`` its parent.

    The step is the number of the learner update. A metric that belongs to none (the engines', the services')
    has that of the newest update so far; its time is exact.
    """

    def __init__(self, directory: str) -> None:
        """Open a new event file in ``directory``."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(directory)
        self._newest = 0

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Write each value as a scalar of its name."""
        self._newest = max(self._newest, step or 0)
        summary = Summary(value=[Summary.Value(tag=name, simple_value=x) for name, x in values.items()])
        at = self._newest if step is None else step
        self._writer.add_event(Event(wall_time=time_ms / 1000, step=at, summary=summary))
        # What was taken counts as received; it must not be lost with this process.
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

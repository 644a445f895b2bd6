"""An engine that notes in a file when it is started and when it is closed."""

from pathlib import Path

from unstable_stream.inference.transformers.engine import TransformersEngine


class Noting(TransformersEngine):
    """The transformers engine with a diary."""

    def __init__(self, model_path: str, notes: str) -> None:
        """``notes``: the file to write to."""
        self._notes = Path(notes)
        self._note("started")
        super().__init__(model_path, device="cpu", num_threads=1, dtype="float32")

    async def close(self) -> None:
        await super().close()
        self._note("closed")

    def _note(self, line: str) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

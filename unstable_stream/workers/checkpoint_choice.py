"""Choose the checkpoints of a run that are evaluated or measured."""

__all__ = ["CheckpointChoice"]


class CheckpointChoice:
    """Takes the first checkpoint, the last one, and each that reaches another multiple of ``every``.

    Not every update has a checkpoint, so a multiple may be passed over: the next checkpoint stands for it.
    """

    def __init__(self, every: int, last: int) -> None:
        """``last``: the iteration from which on a checkpoint is the last."""
        self._every = every
        self._last = last
        self.taken: int | None = None
        """The iteration of the last checkpoint that was chosen."""

    def takes(self, iteration: int) -> bool:
        """Tell whether this checkpoint is chosen; call it once for each, in order."""
        before = self.taken
        chosen = before is None or iteration >= self._last or iteration // self._every > before // self._every
        if chosen:
            self.taken = iteration
        return chosen

"""A tracker of your own: it is given every metric of the run as it is published.

trackers = [{ type = "examples/extensions/tracker.py:Printer", only = "learner/" }]
"""


class Printer:
    """Prints the metrics whose name begins with ``only``; a service's output is in its log file."""

    def __init__(self, only: str = "") -> None:
        self.only = only

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Take the metrics that ``source`` measured at ``time_ms``, at update ``step`` if it knows."""
        for name, value in sorted(values.items()):
            if name.startswith(self.only):
                print(f"{run_id} {step if step is not None else '-'} {name} {value:g}", flush=True)

    def close(self) -> None:
        """Be told that nothing more comes; a tracker without it is not told."""

"""``unstable-stream processors``: serve stream processors until they are stopped."""

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption


def command(
    run: str | None = None, runtime: str = "generic", allow_code: AllowCodeOption = None, *, place: Place
) -> None:
    """Shape rewards and rate models of all runs, until SIGTERM or Ctrl-C.

    Start as many as you like: they share the partitions. Runs that leave the work to them have
    external = ["processors"]. The records of a run that names code which is not allowed here are set aside.

    Example: unstable-stream processors --log kafka://127.0.0.1:9092

    Args:
        run: Only this run (id or prefix); by default all runs.
        runtime: 'generic', or 'faust' (faust-streaming) on a Kafka log.
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.serving import processors

    configure_output("processors")

    def say_ready(whose: str) -> None:
        print(f"processors ready: {whose}, {runtime} runtime, log {place.log}", flush=True)

    processors(place, run, runtime=runtime, allow_code=allow_code or [], on_ready=say_ready)

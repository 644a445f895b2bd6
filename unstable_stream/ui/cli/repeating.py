"""Something done or shown beside a call that blocks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` every so many seconds, on a thread, as long as the block lasts."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def records_read(*, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show on standard error, if it is a terminal, how many records are read; it goes away at the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from unstable_stream.api.output import plain_console

    console = plain_console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not shown or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("records read", total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)

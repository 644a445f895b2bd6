"""The live view of several runs in one terminal: a row for each."""

import time
from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from unstable_stream.log.port import EventLog
from unstable_stream.plain_text import plain_console
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.run_view import RunView
from unstable_stream.runs.starts import run_starts
from unstable_stream.tracking.terminal_interface import (
    PLAIN_EVERY_S,
    REFRESH_S,
    TOPICS,
    plain_line,
    read_events,
)

__all__ = ["render_runs", "watch_runs"]


async def watch_runs(log: EventLog, runs: Mapping[str, RunConfig]) -> None:
    """Show runs, by id with their configurations, until all have finished or the caller cancels.

    Without a terminal, print a line for each every ten seconds.
    """
    views = {run_id: RunView(run_id, config) for run_id, config in runs.items()}
    console = plain_console(stderr=True)
    consumer = await log.consumer(TOPICS)
    began = time.monotonic()
    try:
        starts = [await run_starts(log, run_id, TOPICS) for run_id in runs]
        # From where the first of them begins; a partition that one of them does not know, from its beginning.
        known = set.intersection(*(set(each) for each in starts))
        await consumer.seek({place: min(each[place] for each in starts) for place in known})
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                while _running(views):
                    await read_events(consumer, views.values(), REFRESH_S)
                    live.update(render_runs(views.values()), refresh=True)
            return
        printed = -PLAIN_EVERY_S
        while _running(views):
            await read_events(consumer, views.values(), REFRESH_S)
            elapsed_s = time.monotonic() - began
            if elapsed_s - printed >= PLAIN_EVERY_S:
                printed = elapsed_s
                for run_id, view in views.items():
                    line = f"{run_id} {plain_line(view, elapsed_s, '')}"
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
    finally:
        await consumer.close()


def _running(views: Mapping[str, RunView]) -> bool:
    return any(view.status.ended is None for view in views.values())


def render_runs(views: Iterable[RunView]) -> RenderableType:
    """Return a table with a row for each run; a narrow terminal leaves out what matters least."""
    columns = [
        Column("run", overflow="fold"),
        Column("update", no_wrap=True),
        Column("games/s", justify="right"),
        Column("won", overflow="fold"),
        Column("format", justify="right"),
        Column("entropy", justify="right"),
        Column("", overflow="fold"),
    ]
    table = Table(*columns, box=None, header_style="dim", padding=(0, 1), expand=True)
    for view in views:
        games_per_s, _ = view.rates(time.time_ns() // 1_000_000)
        entropies = [newest.metrics.get("entropy") for newest in view.last_updates.values()]
        state = view.status.state
        total = view.config.round_robin_games
        table.add_row(
            Text(view.run_id, style="bold" if state == "running" else "dim"),
            view.games_of_all if total else f"{view.update}/{view.config.learner.iterations}",
            f"{games_per_s:.1f}" if state == "running" else "",
            Text(_won(view)),
            _share([well for well, _ in view.recent_turns]),
            ", ".join(f"{entropy:.2f}" for entropy in entropies if entropy is not None),
            _state(view),
        )
    return Panel(table, title="[bold]runs[/]", title_align="left", border_style="blue")


def _won(view: RunView) -> str:
    """Return the newest results, without the environment where there is only one."""
    several = len({matchup.env_id for matchup in view.matchups()}) > 1
    found = []
    for matchup in view.matchups():
        _, score = view.curve(matchup)[-1]
        where = f" ({matchup.env_id})" if several else ""
        found.append(f"{score.win_rate:.0%} vs {matchup.label}{where}")
    return ", ".join(found)


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.0%}" if values else ""


def _state(view: RunView) -> Text:
    if view.status.ended is not None:
        return Text(view.status.state, style="dim")
    warnings = list(view.warnings.values())
    return Text(warnings[-1].rule, style="yellow") if warnings else Text("")

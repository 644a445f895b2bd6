"""The live view: a Rich dashboard that reads the log, so any terminal can open it at any time."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from unstable_stream.algorithms.collapse import advice
from unstable_stream.console import plain_console
from unstable_stream.errors import EventError
from unstable_stream.events import trained_model
from unstable_stream.log.port import Consumer, EventLog
from unstable_stream.log.records import event_from_record
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.run_view import RunView
from unstable_stream.runs.starts import run_starts
from unstable_stream.services.tracking.service_reports import Service

TOPICS = (
    "runs",
    "games",
    "game-outcomes",
    "trajectories",
    "checkpoints",
    "learner-updates",
    "ratings",
    "metrics",
)
REFRESH_S = 0.5
PLAIN_EVERY_S = 10.0
_LADDER_ROWS = 8
_WIDE = 96
"""Columns from which on numbers and ladder stand side by side."""
_GIB = 2**30
_WARNINGS = 3
_FEW_GAMES = 10
"""Games a second below which a tenth of one is shown."""
_ENOUGH_TURNS = 64
"""So many turns without one legal move are no chance: with one in ten they happen once in 800 times."""
_SPARKS = "▁▂▃▄▅▆▇█"


class Stage:
    """The present stage of a run without games. Call it with a few words; the live view shows them.

    Before the live view starts, and without a terminal, each stage is a line on stderr.
    """

    def __init__(self) -> None:
        self.text = ""
        self.shown = False
        """True while a live view shows the stage."""
        self._console = plain_console(stderr=True)

    def __call__(self, text: str) -> None:
        """Set the present stage."""
        self.text = text
        if not self.shown:
            self._console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


async def watch_run(
    log: EventLog,
    run_id: str,
    config: RunConfig,
    services: Mapping[str, Service] | None = None,
    *,
    stage: Stage | None = None,
    options: str = "",
) -> None:
    """Show a run until it finishes or the caller cancels; without a terminal, print a line every ten seconds.

    ``stage`` is shown until the first game. ``options`` lead the commands that are proposed to the run's log
    and data directory, each after a space.
    """
    view = RunView(run_id, config)
    stage = stage or Stage()
    stage.shown = plain_console(stderr=True).is_terminal
    await _watch(
        log,
        [view],
        lambda elapsed_s, width: render(view, elapsed_s, services, stage.text, options=options, width=width),
        lambda elapsed_s: [plain_line(view, elapsed_s, stage.text)],
        lambda: _troubles(view, services, options),
    )


async def watch_runs(log: EventLog, runs: Mapping[str, RunConfig]) -> None:
    """Show runs, by id with their configurations, until all have finished or the caller cancels.

    Without a terminal, print a line for each every ten seconds.
    """
    views = [RunView(run_id, config) for run_id, config in runs.items()]
    await _watch(
        log,
        views,
        lambda elapsed_s, width: render_runs(views),
        lambda elapsed_s: [f"{view.run_id} {plain_line(view, elapsed_s, '')}" for view in views],
        list,
    )


async def _watch(
    log: EventLog,
    views: Sequence[RunView],
    draw: Callable[[float, int], RenderableType],
    lines: Callable[[float], Sequence[str]],
    find_troubles: Callable[[], list[str]],
) -> None:
    """Show what ``draw`` makes of the seconds gone and the columns there are; else print the lines.

    Troubles are in the picture; without a terminal each is a line when it is new.
    """
    console = plain_console(stderr=True)
    consumer = await log.consumer(TOPICS)
    started = time.monotonic()
    printed = -PLAIN_EVERY_S
    told: list[str] = []
    try:
        starts = [await run_starts(log, view.run_id, TOPICS) for view in views]
        # From where the first of them begins; a partition that one of them does not know, from its beginning.
        known = set.intersection(*(set(each) for each in starts))
        await consumer.seek({place: min(each[place] for each in starts) for place in known})
        live = Live(console=console, auto_refresh=False)
        with live if console.is_terminal else contextlib.nullcontext():
            while any(view.status.ended is None for view in views):
                await read_events(consumer, views, REFRESH_S)
                elapsed_s = time.monotonic() - started
                if console.is_terminal:
                    # The width is asked each time: the terminal may have been resized.
                    live.update(draw(elapsed_s, console.width), refresh=True)
                    continue
                troubles = find_troubles()
                for trouble in troubles:
                    if trouble not in told:
                        console.print(trouble, style="yellow", highlight=False, markup=False, soft_wrap=True)
                told = troubles
                if elapsed_s - printed >= PLAIN_EVERY_S:
                    printed = elapsed_s
                    for line in lines(elapsed_s):
                        console.print(line, highlight=False, markup=False, soft_wrap=True)
    finally:
        await consumer.close()


async def read_events(consumer: Consumer, views: Iterable[RunView], seconds: float) -> None:
    """Fold into the views what arrives within some seconds; each takes what is of its run."""
    folds = list(views)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for record in await consumer.poll(max_records=2000, timeout_s=left):
            try:
                event = event_from_record(record)
            except EventError:
                continue  # the processors set a bad record aside; the live view does not report it again
            for view in folds:
                view.apply(event)


def render(
    view: RunView,
    elapsed_s: float,
    services: Mapping[str, Service] | None = None,
    stage: str = "",
    *,
    options: str = "",
    width: int = _WIDE,
) -> RenderableType:
    """Return the dashboard of the present state; for ``stage`` and ``options`` see :func:`watch_run`.

    In fewer columns than :data:`_WIDE` the ladder stands below the numbers.
    """
    iterations = view.config.learner.iterations
    games_per_s, steps_per_s = view.latest.rates(time.time_ns() // 1_000_000)
    head = Table.grid(padding=(0, 2))
    if total := view.config.round_robin_games:
        progress, bar = view.games_of_all, ProgressBar(total=total, completed=view.games["eval"], width=40)
    else:
        progress = f"update {view.update}/{iterations}"
        length = 40 if view.games["train"] else 20
        bar = ProgressBar(total=iterations, completed=view.update, width=length)
    head.add_row(Text(progress, style="bold"), bar, Text(_remaining(view, elapsed_s, stage), style="dim"))
    body: list[RenderableType] = [_numbers(view, games_per_s, steps_per_s), _ladder(view)]
    if width >= _WIDE:
        beside = Table.grid(padding=(0, 3))
        beside.add_row(*body)
        body = [beside]
    parts: list[RenderableType] = [head, Text(), *body]
    if machines := _machines(view):
        parts += [Text(), *(Text(line, style="dim") for line in machines)]
    if view.evaluations:
        parts += [Text(), _evaluations(view)]
    if troubles := _troubles(view, services, options):
        parts += [Text(), *(Text(trouble, style="yellow") for trouble in troubles)]
    return Panel(
        Group(*parts), title=Text(view.run_id, style="bold"), title_align="left", border_style="blue"
    )


def _numbers(view: RunView, games_per_s: float, steps_per_s: float) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("games played", f"{view.games['train']:,} train, {view.games['eval']:,} eval")
    table.add_row("in flight", f"{len(view.in_flight):,}")
    table.add_row("games/s", f"{games_per_s:.1f}")
    table.add_row("steps/s", f"{steps_per_s:.0f}")
    tokens = sum(value for name, value in view.reported.engine.items() if name.endswith("/tok_s"))
    table.add_row("tokens/s", f"{tokens:,.0f}")
    if view.latest.games:
        won = sum(won for won, _ in view.latest.games) / len(view.latest.games)
        invalid = sum(invalid for _, invalid in view.latest.games) / len(view.latest.games)
        table.add_row(f"last {len(view.latest.games)} vs others", f"won {won:.0%}, invalid {invalid:.0%}")
    if view.latest.turns:
        well, legal = (sum(each) / len(view.latest.turns) for each in zip(*view.latest.turns, strict=True))
        table.add_row(f"last {len(view.latest.turns)} turns", f"format {well:.0%}, legal {legal:.0%}")
    if coverage := view.reported.coverage():
        table.add_row("exploration", f"{coverage:,} sequences of moves")
    for game, (update, nash_conv) in sorted(view.reported.nash_conv.items()):
        table.add_row(f"NashConv, {game.removeprefix('openspiel:')}", f"{nash_conv:.3f} at update {update}")
    for model in view.config.model_names:
        newest = view.last_updates.get(model)
        if newest is None:
            continue
        of_model = "" if model is None else f" {model}"
        if model is not None:
            table.add_row(f"update{of_model}", f"{newest.update}/{view.config.learner.iterations}")
        table.add_row(f"loss{of_model}", f"{newest.loss:.4f}")
        for name in ("entropy", "grad_norm"):
            if name in newest.metrics:
                table.add_row(name.replace("_", " ") + of_model, f"{newest.metrics[name]:.3f}")
    if view.in_flight.abandoned:
        table.add_row("abandoned games", str(view.in_flight.abandoned))
    return table


def _machines(view: RunView) -> list[str]:
    """Return a line for each engine, and for each GPU of the collector's machine."""
    lines = [
        f"{name}  {values.get('tok_s', 0):,.0f} tokens/s, {values.get('running', 0):,.0f} running, "
        f"{values.get('queued', 0):,.0f} queued, {values.get('completions', 0):,.0f} completions"
        for name, values in view.reported.by_part("inference/").items()
    ]
    for number, values in view.reported.by_part("gpu/").items():
        told = []
        if "utilization" in values:
            told.append(f"{values['utilization']:.0%} busy")
        if "memory-used" in values and "memory-total" in values:
            told.append(f"{values['memory-used'] / _GIB:.1f} of {values['memory-total'] / _GIB:.0f} GiB")
        lines.append(f"GPU {number}  {', '.join(told)}")
    return lines


def _ladder(view: RunView) -> Table:
    models = Column("rating ladder", overflow="fold")  # the end of a name says which checkpoint it is
    # How often the model was met in training, and how many of the sequences of moves were new then.
    of_pool = ("met", "new") if view.reported.pool else ()
    table = Table(models, "mu", "sigma", "games", *of_pool, box=None, header_style="dim", padding=(0, 1))
    for rating in view.ladder()[:_LADDER_ROWS]:
        iteration = view.iteration_of(rating.model_uid)
        newest = iteration is not None and iteration == view.updates.get(trained_model(rating.model_uid))
        met = ("", "")
        if (novelty := view.reported.novelty(rating.model_uid)) is not None:
            met = (f"{view.reported.matches(rating.model_uid):,}", f"{novelty:.0%}")
        table.add_row(
            Text(rating.model_uid, style="bold" if newest else ""),
            f"{rating.mu:.1f}",
            f"{rating.sigma:.1f}",
            f"{rating.games:,}",
            *(met if of_pool else ()),
        )
    if not view.ratings:
        table.add_row(Text("no rated game yet", style="dim"))
    return table


def _evaluations(view: RunView) -> Table:
    table = Table(
        "evaluation against", "games", "first", "latest", "95 %", "curve", box=None, header_style="dim"
    )
    for matchup in view.matchups():
        curve = view.curve(matchup)
        iteration, latest = curve[-1]
        low, high = latest.interval()
        sparks = "".join(_SPARKS[min(7, int(score.win_rate * 8))] for _, score in curve)
        table.add_row(
            Text(f"{matchup.label} ({matchup.env_id})"),
            str(latest.games),
            f"{curve[0][1].win_rate:.0%}",
            f"[bold]{latest.win_rate:.0%}[/] at update {iteration}",
            f"{low:.0%} to {high:.0%}",
            sparks,
        )
    return table


def _remaining(view: RunView, elapsed_s: float, stage: str) -> str:
    elapsed, left = _minutes(elapsed_s), view.seconds_left()
    begins = view.update == view.status.updates_before
    if total := view.config.round_robin_games:
        games_per_s, _ = view.latest.rates(time.time_ns() // 1_000_000)
        left = (total - view.games["eval"]) / games_per_s if games_per_s else None
        begins = left is None
    elif view.update >= view.config.learner.iterations:
        return f"{elapsed}, last evaluation"
    if begins and not view.in_flight:
        return f"{elapsed}, {stage or 'starting'}"
    if begins and not total:
        return f"{elapsed}, playing the first games{_until_first_update(view)}"
    return elapsed if left is None else f"{elapsed}, about {_minutes(left)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def _until_first_update(view: RunView) -> str:
    """Return how many of its turns are played, with a comma; nothing if that cannot be known from one count.

    A language model on a CPU may need half an hour for them, in which nothing else moves.
    """
    learner = view.config.learner
    needed = int(learner.batch_size * learner.batch_delay_buffer)
    if len(view.config.model_names) > 1 or not 0 < view.turns < needed:
        return ""
    return f", {view.turns:,} of {needed:,} turns for the first update"


def _troubles(view: RunView, services: Mapping[str, Service] | None, options: str) -> list[str]:
    """Return a line for each dead service, wait for a store, sign of collapse, and for illegal moves."""
    lines = [service.trouble for service in (services or {}).values() if service.trouble]
    store, learning_rate = view.config.learner.ckpt_root, view.config.learner.learning_rate
    lines += [
        f"{service} waits for {store or 'a store with checkpoints'}, which does not answer; its log says why"
        for service in sorted(view.reported.waits_for_store)
    ]
    if len(view.latest.turns) >= _ENOUGH_TURNS and not any(legal for _, legal in view.latest.turns):
        lines.append(
            f"none of {_ENOUGH_TURNS} turns and more was a legal move: all answers are punished alike, so "
            "little is learned. Read some (unstable-stream games show GAME), then change the template, "
            "sampling.max_tokens or the model: docs/evidence/language-model.md"
        )
    warnings = list(view.warnings.values())[-_WARNINGS:]
    return lines + [advice(warning, learning_rate, options) for warning in warnings]


def plain_line(view: RunView, elapsed_s: float, stage: str) -> str:
    if stage and not view.in_flight and not sum(view.games.values()):
        return f"[{int(elapsed_s):>4} s] {stage}"
    games_per_s, _ = view.latest.rates(time.time_ns() // 1_000_000)
    if view.config.round_robin_games:
        return f"[{int(elapsed_s):>4} s] {view.games_of_all} ({games_per_s:.0f}/s)"
    pace = f"{games_per_s:.{1 if games_per_s < _FEW_GAMES else 0}f}/s"
    parts = [
        f"[{int(elapsed_s):>4} s] update {view.update}/{view.config.learner.iterations}",
        f"games {view.games['train']} train {view.games['eval']} eval ({pace})",
    ]
    if view.update == view.status.updates_before and (turns := _until_first_update(view)):
        parts.append(turns.removeprefix(", "))
    if view.evaluations:
        parts.append(f"won {_results(view)}")
    return "  ".join(parts)


def _results(view: RunView) -> str:
    """Return the newest result against each opponent, always in the same order."""
    several = len({matchup.env_id for matchup in view.matchups()}) > 1
    newest = {matchup: view.curve(matchup)[-1] for matchup in view.matchups()}
    one_update = len({iteration for iteration, _ in newest.values()}) == 1
    results = [
        f"{score.win_rate:.0%} of {score.games} vs {matchup.label}"
        + (f" ({matchup.env_id})" if several else "")
        + ("" if one_update else f" at update {iteration}")
        for matchup, (iteration, score) in newest.items()
    ]
    when = f"at update {next(iter(newest.values()))[0]}: " if one_update else ""
    return f"{when}{', '.join(results)}"


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
        games_per_s, _ = view.latest.rates(time.time_ns() // 1_000_000)
        entropies = [newest.metrics.get("entropy") for newest in view.last_updates.values()]
        formed = [well for well, _ in view.latest.turns]
        state = view.status.state
        total = view.config.round_robin_games
        table.add_row(
            Text(view.run_id, style="bold" if state == "running" else "dim"),
            view.games_of_all if total else f"{view.update}/{view.config.learner.iterations}",
            f"{games_per_s:.1f}" if state == "running" else "",
            Text(_results(view) if view.evaluations else ""),
            f"{sum(formed) / len(formed):.0%}" if formed else "",
            ", ".join(f"{entropy:.2f}" for entropy in entropies if entropy is not None),
            _state(view),
        )
    return Panel(table, title="[bold]runs[/]", title_align="left", border_style="blue")


def _state(view: RunView) -> Text:
    if view.status.ended is not None:
        return Text(view.status.state, style="dim")
    warnings = list(view.warnings.values())
    return Text(warnings[-1].rule, style="yellow") if warnings else Text("")

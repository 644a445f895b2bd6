"""The results of a run before and after, and the commands that ask it further."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unstable_stream.api.loops import wait_for
from unstable_stream.api.run import Run
from unstable_stream.api.standings import ladder_table, payoff_table
from unstable_stream.runs.run_view import RunView
from unstable_stream.runs.starts import run_events

if TYPE_CHECKING:
    from rich.table import Table

_TOPICS: Final = ("runs", "game-outcomes", "checkpoints", "learner-updates", "ratings")
_BEST_SHOWN: Final = 5
_BEFORE_AND_AFTER: Final = (
    "Before and after",
    "evaluation games, the same for both, seats taken in turn; met: in training",
)
_TWO_SEATS: Final = "each pair on the same seeds, in both seat orders"
_MANY_SEATS: Final = (
    "each pair on the same seeds, one seat or team against all others, then changed; a game counts once for "
    "each of the others"
)
_EVALUATION: Final = ("Evaluation", "seats taken in turn; the same seed plays the same games")


_REPEATS_NAMED: Final = 4


@dataclass(frozen=True)
class Summary:
    """The results of a run; the tables are for Rich."""

    work: str
    """Updates, games and time, in one line."""
    evaluations_title: tuple[str, str]
    """The name of ``evaluations``, in short, and what it shows."""
    evaluations: "Table | None"
    """Evaluation games of the first and the last checkpoint, the same for both; ``None`` without any."""
    standings_title: str
    """The name of ``standings``, which says what they count."""
    standings: "Table | None"
    """The ladder of a tournament; ``None`` for other runs."""
    payoffs: "Table | None"
    """Each player's score against each other one, in a tournament."""
    repeats: str
    """The players whose evaluation games were one and the same, so that no interval holds; may be empty."""
    ladder: "Table | None"
    """Ratings over all rated games: the best, the fixed opponents, the first and the last checkpoint."""
    place: str
    """The directory of its data."""
    next_commands: tuple[tuple[str, str], ...]
    """Each with what it is for."""


def summarise(run: Run) -> Summary:
    """Read a run's log and return its results."""

    async def read() -> RunView:
        view = RunView(run.id, run.config)
        async with run.place.opened_history() as log:
            async for _, event in run_events(log, _TOPICS, run.id):
                view.apply(event)
        return view

    view = wait_for(read())
    standings = run.standings() if view.config.evaluation.round_robin else []
    many = any(env.num_players > 2 for env in view.config.eval_envs or view.config.train_envs)
    return Summary(
        work=_work(view),
        evaluations_title=_BEFORE_AND_AFTER if _trains(view) else _EVALUATION,
        evaluations=_evaluations(view) if view.evaluations else None,
        standings_title=_MANY_SEATS if many else _TWO_SEATS,
        standings=ladder_table(standings) if standings else None,
        payoffs=payoff_table(standings) if standings else None,
        repeats=_repeats(view),
        ladder=_ladder(view) if view.ratings and not standings else None,
        place=str(run.place.root),
        next_commands=_next_commands(run, view),
    )


def _work(view: RunView) -> str:
    update = f"update {view.update}" + (f" of {view.config.learner.iterations}" if _trains(view) else "")
    work = f"{update}, {view.games['train']:,} training games, {view.games['eval']:,} evaluation games"
    if view.config.evaluation.round_robin:
        work = f"{len(view.config.evaluation.opponents)} players, {view.games_of_all}"
    begun = view.status.resumed or view.status.began
    if begun is None or view.status.ended is None:
        return work
    seconds = (view.status.ended.occurred_at_ms - begun.occurred_at_ms) // 1000
    since = " since it was resumed" if view.status.resumed else ""
    return f"{work}, {seconds // 60}:{seconds % 60:02d} minutes{since}"


def _next_commands(run: Run, view: RunView) -> tuple[tuple[str, str], ...]:
    # Those that ask the archive do not take a log.
    archived, logged = run.place.data.options(), run.place.options
    results = "payoff_matrix" if view.config.evaluation.round_robin else "win_rates"
    every = (
        ("one page of curves, ratings and games", f"unstable-stream report {run.id}{archived}"),
        ("read games", f"unstable-stream games --run {run.id} --split eval --limit 5{archived}"),
        ("ask by SQL", f'unstable-stream sql "SELECT * FROM {results}"{archived}'),
        ("see the last state again", f"unstable-stream watch {run.id}{logged}"),
        ("prove that it adds up", f"unstable-stream verify {run.id}{logged}"),
    )
    if not _trains(view):
        return every
    middle = max(1, view.update // 2)
    model = view.config.model_names[0]
    update = f"--update {middle}" if model is None else f"update:{model}/{middle}"
    return (
        *every,
        ("what an update learned from", f"unstable-stream why --run {run.id} {update}{archived}"),
        (
            "try another way from there",
            f"unstable-stream fork {run.id} --at {middle} --set learner.learning_rate=1e-4{logged}",
        ),
    )


def _evaluations(view: RunView) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim")
    table.add_column("against", no_wrap=True)
    trained = _trains(view)
    if trained:
        table.add_column("met", no_wrap=True)
    table.add_column("update", justify="right", no_wrap=True)
    for name in ("games", "won", "95 % interval", "drawn", "lost", "invalid, theirs/own"):
        table.add_column(name, justify="right", no_wrap=True)
    trained_against = _trained_against(view)
    for matchup in view.matchups():
        curve = view.curve(matchup)
        for iteration, score in curve[:1] + curve[1:][-1:]:
            low, high = score.interval()
            met = "yes" if matchup.opponent in trained_against else "never"
            first = iteration == curve[0][0]
            table.add_row(
                Text(matchup.label if first else ""),
                *([met if first else ""] if trained else []),
                str(iteration),
                str(score.games),
                f"[bold]{score.win_rate:.1%}[/]",
                f"{low:.1%} to {high:.1%}",
                f"{score.draws / score.games:.1%}",
                f"{score.losses / score.games:.1%}",
                f"{score.won_by_invalid / score.games:.0%}/{score.lost_by_invalid / score.games:.0%}",
            )
    return table


def _repeats(view: RunView) -> str:
    found = view.repeated_games()
    if not found:
        return ""
    named = [f"{players} ({games:,} times)" for players, games in found[:_REPEATS_NAMED]]
    more = f", and {len(found) - len(named):,} more" if len(found) > len(named) else ""
    return (
        f"All games of {', '.join(named)}{more}, by seat, were one and the same, move by move. Such games "
        "tell what one of them tells; intervals take games as independent, and are too narrow here"
    )


def _trains(view: RunView) -> bool:
    return view.config.learner.iterations > view.status.updates_before


def _trained_against(view: RunView) -> set[str]:
    """Return the fixed opponents of training: to beat them is not to beat others."""
    pool = view.config.model_pool
    return set() if pool.sample_mode in ("mirror", "lagged") else {opponent.name for opponent in pool.fixed}


def _ladder(view: RunView) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim")
    for name in ("rank", "model", "mu", "sigma", "games"):
        table.add_column(name, justify="left" if name == "model" else "right")
    iterations = {rating.model_uid: view.iteration_of(rating.model_uid) for rating in view.ratings.values()}
    newest = max((i for i in iterations.values() if i is not None), default=0)
    for rank, rating in enumerate(view.ladder(), start=1):
        # The best, and those a reader looks for: fixed opponents, the start and the end.
        if rank <= _BEST_SHOWN or iterations[rating.model_uid] in (None, 0, newest):
            table.add_row(
                str(rank),
                Text(rating.model_uid),
                f"{rating.mu:.1f}",
                f"{rating.sigma:.1f}",
                f"{rating.games:,}",
            )
    return table

"""The results of a run before and after, and the commands that ask it further."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from unstable_stream.api.disguising import DisguiseEffect, disguise_effects
from unstable_stream.api.run import Run
from unstable_stream.history.views.best import who_is_best
from unstable_stream.history.views.curve import Curve
from unstable_stream.history.views.results import Point
from unstable_stream.model_pool.standings import Standing, Standings
from unstable_stream.runs.run_view import RunView

_TOPICS: Final = ("runs", "game-outcomes", "checkpoints", "learner-updates", "ratings")
_BEST_SHOWN: Final = 5
_BEFORE_AND_AFTER: Final = "evaluation games, the same for both, seats taken in turn; met: in training"
_GIVEN_SEATS: Final = "in the seats that were given"
_TWO_SEATS: Final = "each pair on the same seeds, in both seat orders"
_MANY_SEATS: Final = (
    "each pair on the same seeds, one seat or team against all others, then changed; a game counts once for "
    "each of the others"
)
_EVALUATION: Final = "seats taken in turn; the same seed plays the same games"
_DISGUISES: Final = "mean rewards in the same games, by their own names and told otherwise"
_REPEATS_NAMED: Final = 4


@dataclass(frozen=True)
class Summary:
    """The results of a run; the parts are for Rich."""

    work: str
    """Updates, games and time, in one line."""
    parts: list[tuple[str, str, RenderableType]]
    """Each with its title and what it shows: evaluation games of the first and the last checkpoint, and their
    curve; the ladder and the payoffs of a tournament; or the ratings over all rated games."""
    repeats: str
    """The players whose evaluation games were one and the same; may be empty."""
    place: str
    """The directory of its data."""
    next_commands: tuple[tuple[str, str], ...]
    """Each with what it is for."""


def summarise(run: Run) -> Summary:
    """Read a run's log and return its results."""
    view = RunView(run.id, run.config)
    run.place.each_event(run.id, _TOPICS, view.apply)
    fold = Standings()
    if view.config.evaluation.round_robin:
        run.place.each_event(run.id, ("game-outcomes", "ratings"), fold.apply)
    standings = fold.ladder()
    many = any(env.num_players > 2 for env in view.config.eval_envs or view.config.train_envs)
    parts: list[tuple[str, str, RenderableType]] = []
    if view.evaluations:
        named = ("Before and after", _BEFORE_AND_AFTER) if _trains(view) else ("Evaluation", _EVALUATION)
        parts.append((*named, _evaluations(view)))
    if effects := disguise_effects(run):
        parts.append(("Disguises", _DISGUISES, _disguises(effects)))
    if curve := _curve(view):
        parts.append(("Curve", curve.says, curve))
    if standings:
        seated = _GIVEN_SEATS if view.config.evaluation.seatings else _MANY_SEATS if many else _TWO_SEATS
        parts.append(("Standings", seated, _standings(standings)))
        scores = "the row's mean score, 1 for a win and 1/2 for a draw"
        parts.append(("Payoff matrix", scores, _payoffs(standings)))
        players = [row.player for row in standings]
        told = who_is_best(players, standings[0].ahead_of_next, fold.meetings())
        parts.append(("Who is best", "games that repeat others count once", Text("\n".join(told))))
    elif view.ratings:
        parts.append(("Rating ladder", *rating_ladder(view)))
    return Summary(_work(view), parts, _repeats(view), str(run.place.root), _next_commands(run, view))


def _work(view: RunView) -> str:
    update = f"update {view.update}" + (f" of {view.config.learner.iterations}" if _trains(view) else "")
    work = f"{update}, {view.games['train']:,} training games, {view.games['eval']:,} evaluation games"
    if view.config.evaluation.round_robin:
        players = len(view.config.evaluation.opponents)
        work = f"{players} player{'' if players == 1 else 's'}, {view.games_of_all}"
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
    # Each tenth and the newest checkpoints keep their optimizer states.
    forked = middle // 10 * 10 or max(1, view.update - 1)
    model = view.config.model_names[0]
    update = f"--update {middle}" if model is None else f"update:{model}/{middle}"
    return (
        *every,
        ("what an update learned from", f"unstable-stream why --run {run.id} {update}{archived}"),
        (
            "try another way from there",
            f"unstable-stream fork {run.id} --at {forked} --set learner.learning_rate=1e-4{logged}",
        ),
    )


def numbers_table(*columns: str, names: Sequence[str] = ()) -> Table:
    """Return a table of numbers and of names, which give way to numbers where the terminal is narrow."""
    table = Table(box=None, header_style="dim")
    for column in columns:
        if column in names:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _standings(standings: Sequence[Standing]) -> Table:
    """Return who is strongest."""
    numbers = (
        "games",
        "score",
        "won/drawn/lost",
        "invalid",
        "Elo",
        "95 % interval",
        "alpha-rank",
        "mu",
        "sigma",
    )
    table = numbers_table("", "player", *numbers, names=["player"])
    for row in standings:
        table.add_row(
            str(row.rank),
            Text(row.player),
            f"{row.games:,}",
            f"{row.score:.1%}",
            f"{row.wins}/{row.draws}/{row.losses}",
            f"{row.wins_by_invalid}/{row.losses_by_invalid}",
            f"[bold]{round(row.elo):+}[/]",
            f"{round(row.elo_low):+} to {round(row.elo_high):+}",
            "–" if row.alpha_rank is None else f"{row.alpha_rank:.1%}",
            *("–" if number is None else f"{number:.1f}" for number in (row.mu, row.sigma)),
        )
    return table


def _payoffs(standings: Sequence[Standing]) -> Table:
    """Return the mean score of each row's player against each column's; players by rank."""
    table = numbers_table("", "score against", *(str(row.rank) for row in standings), names=["score against"])
    for row in standings:
        scores = (row.against.get(other.player) for other in standings)
        shown = ("–" if score is None else f"{score:.1%}" for score in scores)
        table.add_row(str(row.rank), Text(row.player), *shown)
    return table


def _evaluations(view: RunView) -> Table:
    trained = _trains(view)
    numbers = ("update", "games", "won", "95 % interval", "drawn", "lost", "invalid, theirs/own")
    table = numbers_table("against", *(["met"] if trained else []), *numbers, names=["against", "met"])
    trained_against = _trained_against(view)
    several = len({matchup.env_id for matchup in view.matchups()}) > 1
    for matchup in view.matchups():
        curve = view.curve(matchup)
        for iteration, score in curve[:1] + curve[1:][-1:]:
            low, high = score.interval()
            met = "yes" if matchup.opponent in trained_against else "never"
            first = iteration == curve[0][0]
            label = f"{matchup.label} in {matchup.env_id}" if several else matchup.label
            table.add_row(
                Text(label if first else ""),
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


def _disguises(effects: Sequence[DisguiseEffect]) -> Table:
    numbers = ("pairs", "named", "disguised", "difference", "95 % interval")
    table = numbers_table("policy", "in", "against", *numbers, names=["policy", "in", "against"])
    for effect in effects:
        table.add_row(
            *(Text(name) for name in (effect.policy, effect.env_id, effect.opponent)),
            f"{effect.games:,}",
            f"{effect.named:+.3f}",
            f"{effect.disguised:+.3f}",
            f"[bold]{effect.difference:+.3f}[/]",
            f"{effect.low:+.3f} to {effect.high:+.3f}",
        )
    return table


def _repeats(view: RunView) -> str:
    found = view.same_games.repeated()
    if not found:
        return ""
    named = [f"{players} ({games:,} times)" for players, games in found[:_REPEATS_NAMED]]
    more = f", and {len(found) - len(named):,} more" if len(found) > len(named) else ""
    return (
        f"All games of {', '.join(named)}{more}, by seat, were one and the same, move by move. They tell "
        "what one of them tells, and count once in intervals and Elo"
    )


def _trains(view: RunView) -> bool:
    return view.config.learner.iterations > view.status.updates_before


def _trained_against(view: RunView) -> set[str]:
    """Return the fixed opponents of training: to beat them is not to beat others."""
    pool = view.config.model_pool
    if view.config.imitates:
        return set()
    return set() if pool.sample_mode in ("mirror", "lagged") else {opponent.name for opponent in pool.fixed}


def _curve(view: RunView) -> Curve | None:
    return Curve.of(
        {
            matchup: [
                Point(iteration, score.win_rate, *score.interval(), score.games)
                for iteration, score in view.curve(matchup)
            ]
            for matchup in view.matchups()
        }
    )


def rating_ladder(view: RunView) -> tuple[str, Table]:
    """Return the ratings of the best, the fixed opponents, the first and the last checkpoint.

    Checkpoints that played less than a quarter as much as the last one are left out, and counted: of many
    with few games the luckiest would stand above it.
    """
    table = numbers_table("rank", "model", "at least", "mu", "sigma", "games", names=["model"])
    iterations = {rating.model_uid: view.iteration_of(rating.model_uid) for rating in view.ratings.values()}
    newest = max((i for i in iterations.values() if i is not None), default=0)
    sought = (None, 0, newest)
    enough = max((r.games for r in view.ratings.values() if iterations[r.model_uid] == newest), default=0) / 4
    ladder = view.ladder()
    shown = [r for r in ladder if r.games >= enough or iterations[r.model_uid] in sought]
    for rank, rating in enumerate(shown, start=1):
        # The best, and those a reader looks for: fixed opponents, the start and the end.
        if rank <= _BEST_SHOWN or iterations[rating.model_uid] in sought:
            table.add_row(
                str(rank),
                Text(rating.model_uid),
                f"[bold]{rating.mu - 3 * rating.sigma:.1f}[/]",
                f"{rating.mu:.1f}",
                f"{rating.sigma:.1f}",
                f"{rating.games:,}",
            )
    few = len(ladder) - len(shown)
    checkpoints = "checkpoint" + "s" * (few > 1)
    left_out = f"; {few:,} {checkpoints} of fewer than {math.ceil(enough):,} games left out" if few else ""
    return f"by mu - 3 sigma{left_out}", table

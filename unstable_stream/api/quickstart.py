"""The quickstart: a tiny player learns SimpleTak, and a summary says how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unstable_stream.api.build import load
from unstable_stream.api.loops import wait_for
from unstable_stream.api.run import Run
from unstable_stream.log.reading import events_to_end
from unstable_stream.runs.run_view import RunView

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["QUICKSTART", "Summary", "quickstart", "summarise"]

QUICKSTART: Final = Path(__file__).with_name("quickstart.toml")
"""The configuration, to copy and change."""

_BEST_SHOWN: Final = 5
# A general model reads the whole observation in its own chat format and needs room to think.
_FOR_OTHER_MODELS: Final = (
    'train_envs=[{ env_id = "SimpleTak-v0-train", num_players = 2, template = "chat" }]',
    "sampling.max_tokens=64",
    "learner.learning_rate=1e-4",
    "learner.mini_batch_size=8",
    "algorithm.entropy_coef=0.0",
)


def quickstart(
    model: str = "tiny-player",
    *,
    data: Path | str | None = None,
    overrides: Sequence[str] = (),
) -> Run:
    """Return the quickstart's run, checked and not started.

    Args:
        model: base model: directory or Hugging Face id.
        data: data directory.
        overrides: ``key.path=value``.
    """
    changes = [f"model={_toml_string(model)}", *(() if model == "tiny-player" else _FOR_OTHER_MODELS)]
    return load(QUICKSTART, data=data, overrides=[*changes, *overrides])


def _toml_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Summary:
    """The results of a run, as tables for Rich."""

    before_and_after: "Table"
    """Evaluation games of the first and the last checkpoint, the same games for both."""
    ladder: "Table"
    """TrueSkill over all rated games: the best, the fixed opponents, the first and the last checkpoint."""


def summarise(run: Run) -> Summary:
    """Read a run's log and return its results."""

    async def read() -> RunView:
        view = RunView(run.id, run.config)
        async with run.place.opened_log() as log:
            topics = ("game-outcomes", "checkpoints", "learner-updates", "ratings")
            async for _, event in events_to_end(log, topics, run_id=run.id):
                view.apply(event)
        return view

    view = wait_for(read())
    return Summary(_before_and_after(view), _ladder(view))


def _before_and_after(view: RunView) -> "Table":
    from rich.table import Table

    table = Table(box=None, header_style="dim")
    table.add_column("against", no_wrap=True)
    table.add_column("update", justify="right")
    for name in ("games", "won", "95 % interval", "drawn", "lost", "invalid"):
        table.add_column(name, justify="right", no_wrap=True)
    for env_id, opponent in dict.fromkeys((env, name) for _, env, name in view.evaluations):
        iterations = sorted(i for i, env, name in view.evaluations if (env, name) == (env_id, opponent))
        for iteration in dict.fromkeys((iterations[0], iterations[-1])):
            key = (iteration, env_id, opponent)
            score = view.evaluations[key]
            low, high = score.interval()
            table.add_row(
                opponent if iteration == iterations[0] else "",
                str(iteration),
                str(score.games),
                f"[bold]{score.win_rate:.1%}[/]",
                f"{low:.1%} to {high:.1%}",
                f"{score.draws / score.games:.1%}",
                f"{score.losses / score.games:.1%}",
                f"{view.eval_invalid[key] / score.games:.1%}",
            )
    return table


def _ladder(view: RunView) -> "Table":
    from rich.table import Table

    table = Table(box=None, header_style="dim")
    for name in ("rank", "model", "mu", "sigma", "games"):
        table.add_column(name, justify="left" if name == "model" else "right")
    iterations = {rating.model_uid: view.iteration_of(rating.model_uid) for rating in view.ratings.values()}
    newest = max((i for i in iterations.values() if i is not None), default=0)
    for rank, rating in enumerate(view.ladder(), start=1):
        # The best, and those a reader looks for: fixed opponents, the start and the end.
        if rank <= _BEST_SHOWN or iterations[rating.model_uid] in (None, 0, newest):
            table.add_row(
                str(rank), rating.model_uid, f"{rating.mu:.1f}", f"{rating.sigma:.1f}", f"{rating.games:,}"
            )
    return table

"""``unstable-stream quickstart``: the whole loop with one command, and a summary of what was learned."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unstable_stream.cli.options import DataOption, MetricsPortOption, OptionalLogOption, SetOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from rich.table import Table

    from unstable_stream.runs.config import RunConfig
    from unstable_stream.runs.run_view import RunView

__all__ = ["register"]

_BEST_SHOWN = 5
_CONFIG = Path(__file__).with_name("quickstart.toml")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quickstart", help=_quickstart.__doc__)(_quickstart)


def _quickstart(
    model: str = typer.Option("tiny-player", "--model", help="Base model: directory or Hugging Face id."),
    updates: int | None = typer.Option(None, "--updates", min=1, help="Learner updates."),
    seed: int = typer.Option(
        0, "--seed", help="Seed of the run; the same seed plays the same evaluation games."
    ),
    engine: str | None = typer.Option(None, "--engine", help="Inference engine: transformers or vllm."),
    overrides: SetOption = None,
    print_config: bool = typer.Option(False, "--print-config", help="Print the configuration file and exit."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
) -> None:
    """Train a tiny player on SimpleTak, live, and show how much it learned.

    Example: unstable-stream quickstart --seed 1
    """
    if print_config:
        typer.echo(_CONFIG.read_text(encoding="utf-8"), nl=False)
        return
    from unstable_stream.cli.running import run_config
    from unstable_stream.runs.config import load_config

    changes = [f"seed={seed}", f"model={_toml_string(model)}"]
    if model != "tiny-player":
        changes += _FOR_OTHER_MODELS
    if updates is not None:
        changes.append(f"learner.iterations={updates}")
    if engine is not None:
        changes.append(f"engine.type={engine}")
    if log is not None:
        changes.append(f"log={log}")
    if metrics_port is not None:
        changes.append(f"metrics_port={metrics_port}")
    config = load_config(_CONFIG, [*changes, *(overrides or [])])
    run_id = run_config(config, data, quiet=quiet)
    asyncio.run(_summarise(config, run_id, data))


# A general model reads the whole observation in its own chat format and needs room to think.
_FOR_OTHER_MODELS = [
    'train_envs=[{ env_id = "SimpleTak-v0-train", num_players = 2, template = "chat" }]',
    "sampling.max_tokens=64",
    "learner.learning_rate=1e-4",
    "learner.mini_batch_size=8",
    "algorithm.entropy_coef=0.0",
]


def _toml_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _summarise(config: "RunConfig", run_id: str, data: Path) -> None:
    from unstable_stream.log.open import opened_log
    from unstable_stream.log.reading import events_to_end
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.run_view import RunView

    view = RunView(run_id, config)
    async with opened_log(config.log, DataDir(data).log, synchronous=config.synchronous) as log:
        topics = ("game-outcomes", "checkpoints", "learner-updates", "ratings")
        async for _, event in events_to_end(log, topics, run_id=run_id):
            view.apply(event)
    _print_summary(view, data)


def _print_summary(view: "RunView", data: Path) -> None:
    from rich.console import Console

    console = Console()
    console.print("\n[bold]Before and after[/]: evaluation games, the same for both, seats taken in turn")
    console.print(_before_and_after(view))
    console.print("\n[bold]Rating ladder[/]: TrueSkill over all rated games, by mu - 3 sigma")
    console.print(_ladder(view))
    where = "" if data == DEFAULT_DATA_DIR else f" --data {data}"
    console.print(f"\nEverything that happened is in [bold]{data}[/]: run {view.run_id}. Ask it:\n")
    for command in (
        "unstable-stream games --split eval --limit 5",
        'unstable-stream sql "SELECT * FROM win_rates"',
        'unstable-stream sql "SELECT * FROM completion_lengths"',
        'unstable-stream sql "SELECT * FROM longest_games LIMIT 10"',
        'unstable-stream sql "SELECT * FROM update_provenance WHERE update = 5 LIMIT 10"',
    ):
        console.print(f"  {command}{where}", highlight=False, soft_wrap=True)


def _before_and_after(view: "RunView") -> "Table":
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


def _ladder(view: "RunView") -> "Table":
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

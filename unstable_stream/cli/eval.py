"""``unstable-stream eval``: play a checkpoint or a model against chosen opponents."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption, SetOption, environment

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", help=_eval.__doc__)(_eval)


def _eval(
    policy: str = typer.Argument(
        ..., help="RUN@UPDATE, or RUN for its newest checkpoint; or a model: directory or Hugging Face id."
    ),
    against: list[str] = typer.Option(
        ...,
        "--against",
        metavar="OPPONENT",
        help="A scripted opponent, a model of an endpoint, or RUN@UPDATE; repeat it for several.",
    ),
    games: int = typer.Option(100, "--games", min=1, help="Games for each opponent and environment."),
    envs: list[str] | None = typer.Option(
        None,
        "--env",
        metavar="ENV[:TEMPLATE]",
        help="Environment; repeat it for several. Default: those of the run's evaluation.",
    ),
    seed: int = typer.Option(0, "--seed", help="The same seed plays the same games, whatever the policy."),
    votes: int = typer.Option(
        1, "--votes", min=1, help="Answers of the policy to each turn; it plays the action of most of them."
    ),
    best_of: int = typer.Option(
        1,
        "--best-of",
        min=1,
        help="Answers of the policy to each turn; it plays the most probable per token.",
    ),
    backend: str = typer.Option("inline", "--backend", help="ray, or inline: in this process."),
    overrides: SetOption = None,
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
) -> None:
    """Play a checkpoint or a model against opponents on fixed seeds, and show the results.

    It is a run that trains nothing: its games are recorded, rated and archived like all others.

    Example: unstable-stream eval quickstart-2026@120 --against random-legal --against quickstart-2026@0
    """
    from unstable_stream.api.evaluation import evaluation
    from unstable_stream.cli.running import run_to_end

    run = evaluation(
        policy,
        against,
        games=games,
        envs=[environment(env) for env in envs] if envs else None,
        seed=seed,
        votes=votes,
        best_of=best_of,
        data=data,
        log=log,
        overrides=[f"backend={backend}", *(overrides or [])],
        allow_code=allow_code or [],
    )
    run_to_end(run, quiet=quiet)

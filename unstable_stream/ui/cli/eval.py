"""``unstable-stream eval``: play a checkpoint or a model against chosen opponents."""

from typing import Annotated

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption, QuietOption, SetOption


def command(
    context: typer.Context,
    policy: str,
    against: Annotated[list[str], typer.Option(metavar="OPPONENT")],
    games: Annotated[int, typer.Option(min=1)] = 100,
    envs: Annotated[list[str] | None, typer.Option("--env", metavar="ENV[:TEMPLATE]")] = None,
    seed: int = 0,
    votes: Annotated[int, typer.Option(min=1)] = 1,
    best_of: Annotated[int, typer.Option(min=1)] = 1,
    backend: str = "inline",
    overrides: SetOption = None,
    quiet: QuietOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Play a checkpoint or a model against opponents on fixed seeds, and show the results.

    It is a run that trains nothing: its games are recorded, rated and archived like all others.

    Example: unstable-stream eval quickstart-2026@120 --against random-legal --against quickstart-2026@0

    Args:
        policy: RUN@UPDATE, or RUN for its newest checkpoint; or a model: directory or Hugging Face id.
        against: A scripted opponent, a model of an endpoint, or RUN@UPDATE; repeat it for several.
        games: Games for each opponent and environment.
        envs: Environment; repeat it for several. Default: those of the run's evaluation.
        seed: The same seed plays the same games, whatever the policy.
        votes: Answers of the policy to each turn; it plays the action of most of them.
        best_of: Answers of the policy to each turn; it plays the most probable per token.
        backend: ray, or inline: in this process.
    """
    from unstable_stream.api.evaluation import evaluation
    from unstable_stream.ui.cli.running import evaluation_options, run_to_end

    run = evaluation(policy, against, **evaluation_options(context))
    run_to_end(run, quiet=quiet)

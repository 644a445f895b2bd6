"""Commands that measure: a policy against others, and against optimal play."""

from typing import Annotated, Literal

import typer

import unstable_stream as us
from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import (
    AllowCodeOption,
    EnvsOption,
    PolicyArgument,
    QuietOption,
    SetOption,
    complete_run,
    environment,
)
from unstable_stream.ui.cli.output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_objects,
)
from unstable_stream.ui.cli.running import evaluation_options, print_summary, run_to_end


def eval_command(
    context: typer.Context,
    policy: PolicyArgument,
    against: Annotated[list[str], typer.Option(metavar="OPPONENT")],
    games: Annotated[int, typer.Option("--games", "-k", min=1)] = 100,
    envs: EnvsOption = None,
    seed: int = 0,
    votes: Annotated[int, typer.Option(min=1)] = 1,
    best_of: Annotated[int, typer.Option(min=1)] = 1,
    disguises: Annotated[int, typer.Option(min=0)] = 0,
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

    Example: unstable-stream eval quickstart-2026@120 --against random-legal --disguises 8

    Args:
        against: A scripted opponent, a model of an endpoint, or RUN@UPDATE; repeat it for several.
        games: Games for each opponent and environment.
        envs: Environment; repeat it for several. Default: those of the run's evaluation.
        seed: The same seed plays the same games, whatever the policy.
        votes: Answers of the policy to each turn; it plays the action of most of them.
        best_of: Answers of the policy to each turn; it plays the most probable per token.
        disguises: Play the same games in so many disguises too, and show what these cost.
        backend: ray, or inline: in this process.
    """
    run = us.evaluation(policy, against, disguises=disguises, **evaluation_options(context))
    run_to_end(run, quiet=quiet)


def tournament_command(
    context: typer.Context,
    players: Annotated[list[str] | None, typer.Argument(metavar="PLAYER...")] = None,
    games: Annotated[int, typer.Option("--games", "-k", min=2)] = 100,
    envs: EnvsOption = None,
    model: str | None = None,
    seed: int = 0,
    show: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    votes: Annotated[int, typer.Option(min=1)] = 1,
    best_of: Annotated[int, typer.Option(min=1)] = 1,
    backend: str = "inline",
    overrides: SetOption = None,
    quiet: QuietOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Let every player meet every other one on fixed seeds, and show who is strongest.

    Each pair plays every seed in both seat orders. It is a run that trains nothing: its games are recorded,
    rated and archived like all others. Ctrl-C stops it, and unstable-stream train --resume RUN goes on with
    the games that are left.

    Example: unstable-stream tournament demo-2026@20 demo-2026@120 base random-legal --games 100

    Args:
        players: RUN@UPDATE, RUN@best, RUN@-1, or RUN for its newest checkpoint; base, the base model; or an
            opponent of eval.
        games: Games of each pair in each environment, even.
        envs: Environment of two seats or more; repeat it for several. Default: those of the evaluation of
            the first checkpoint's run.
        model: The base model, where no checkpoint plays; needed only where it plays itself.
        seed: The same seed plays the same positions, whoever plays.
        show: Play nothing: show this tournament again, also while it plays.
        votes: Answers of every policy to each turn; it plays the action of most of them.
        best_of: Answers of every policy to each turn; it plays the most probable per token.
        backend: ray, or inline: in this process.
    """
    # The tables are for people; into a pipe too, unless rows are asked for.
    form = pick_format(as_csv, as_json, as_table or not (as_csv or as_json))
    if show is not None:
        if players:
            raise typer.BadParameter(f"--show {show} plays nothing: leave {' '.join(players)} out")
        run = us.open_run(show, **place.named)
    else:
        run = us.tournament(players or [], model=model, **evaluation_options(context))
        run_to_end(run, quiet=quiet, summary=form is Format.TABLE)
    if form is not Format.TABLE:
        print_objects(run.standings(), form)
    elif show is not None:
        print_summary(run)


def play_command(
    context: typer.Context,
    seats: Annotated[list[str], typer.Option(metavar="PLAYER")],
    games: Annotated[int, typer.Option("--games", "-k", min=1)] = 100,
    envs: EnvsOption = None,
    mirrored: bool = False,
    model: str | None = None,
    seed: int = 0,
    backend: str = "inline",
    overrides: SetOption = None,
    quiet: QuietOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Record games between any players, in the seats that you give them: teachers' games, to be imitated.

    It is a run that trains nothing: its games are recorded, rated and archived like all others.

    Example: unstable-stream play --seats minimax-4 --seats random-legal --env SimpleTak-v0-train -k 2000

    Args:
        seats: The player of the next seat, as for tournament; once for each seat.
        games: Games in each environment.
        envs: Environment; repeat it for several. Default: those of the evaluation of the first checkpoint's
            run.
        mirrored: Play every seed with each player in each seat.
        model: The base model, where no checkpoint plays; needed only where it plays itself.
        seed: The same seed plays the same positions, whoever plays.
        backend: ray, or inline: in this process.
    """
    options = evaluation_options(context)
    run_to_end(us.play(seats, mirrored=mirrored, model=model, **options), quiet=quiet)


def branch_command(
    context: typer.Context,
    game: str,
    turn: Annotated[int, typer.Option(min=0)],
    seats: Annotated[list[str], typer.Option(metavar="PLAYER")],
    games: Annotated[int, typer.Option("--games", "-k", min=2)] = 32,
    then: Annotated[list[str] | None, typer.Option(metavar="ACTION")] = None,
    model: str | None = None,
    seed: int = 0,
    backend: str = "inline",
    overrides: SetOption = None,
    quiet: QuietOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Play on from any position of a recorded game, and show what it is worth to each seat.

    The position is made again from the game's seed and moves, and compared with what was recorded. It is a
    run that trains nothing: its games are recorded, rated and archived like all others.

    Example: unstable-stream branch 3f2a9c1e --turn 5 --seats demo-2026@20 --seats random-legal -k 100

    Example: unstable-stream branch 3f2a9c1e --turn 5 --then '[4]' --seats random-legal --seats random-legal

    Args:
        game: Id of a game, or its beginning; unstable-stream games lists them.
        turn: Moves before the position.
        seats: The player of the next seat, as for tournament; once for each seat.
        games: How often it is played on.
        then: An action that is played first, by whoever's turn it is: the value of another move; repeat it.
        model: The base model, where no checkpoint plays; needed only where it plays itself.
        seed: Decides on the decisions after the position.
        backend: ray, or inline: in this process.
    """
    from unstable_stream.api.branching import branch_values

    form = pick_format(as_csv, as_json, as_table or not (as_csv or as_json))
    run = us.branch(game, turn, seats, then=then or (), model=model, **evaluation_options(context))
    run_to_end(run, quiet=quiet, summary=False)
    print_objects(branch_values(run), form)


def exploitability_command(
    policy: PolicyArgument,
    env: Annotated[str, typer.Option(metavar="ENV[:TEMPLATE]")] = "openspiel:kuhn_poker",
    engine: Literal["transformers", "vllm"] = "transformers",
    states: bool = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Measure exactly how far a policy is from optimal play in a game of OpenSpiel.

    Example: unstable-stream exploitability RUN@20 --env openspiel:kuhn_poker

    Args:
        env: A game of OpenSpiel.
        engine: What computes.
        states: Print the policy at each information state too.
        as_json: Print all of it, states included, as one JSON object.
    """
    named = environment(env)
    found = us.exploitability(
        policy,
        named["env_id"],
        template=named.get("template"),
        engine=engine,
        allow_code=allow_code or [],
        **place.named,
    )
    if as_json:
        print(found.to_json().decode())
        return
    for name, value in found.summary():
        print(f"{name:<24}{value}")
    if states:
        for state in found.states:
            chances = "  ".join(f"{move} {chance:.3f}" for move, chance in state.probabilities.items())
            print(f"player {state.player}  {state.state}  {chances}  illegal {state.illegal_mass:.3f}")


def exploit_command(
    context: typer.Context,
    policy: Annotated[str | None, typer.Argument(metavar="RUN@UPDATE", autocompletion=complete_run)] = None,
    updates: Annotated[int, typer.Option(min=1)] = 40,
    from_victim: bool = False,
    games: Annotated[int, typer.Option("--games", "-k", min=4)] = 1000,
    envs: EnvsOption = None,
    seed: int = 0,
    show: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    votes: Annotated[int, typer.Option(min=1)] = 1,
    best_of: Annotated[int, typer.Option(min=1)] = 1,
    backend: str | None = None,
    overrides: SetOption = None,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Train against one checkpoint alone, and bound from below how far that is from optimal play.

    For games of two players in which one wins what the other loses. It is a run with the settings of the
    checkpoint's run: Ctrl-C stops it, and unstable-stream train --resume RUN goes on with it.

    Example: unstable-stream exploit kuhn-2026@40 --updates 60

    Args:
        policy: The checkpoint: RUN@30, RUN@best, RUN@-1, or RUN for the newest one.
        updates: Updates of the exploiter.
        from_victim: Begin with the weights of the checkpoint. Default: as its run began.
        games: Games after the last update, and before the first, even; seats are taken in turn.
        envs: Environment. Default: the one that the run trains on.
        seed: The same seed plays the same games.
        show: Train nothing: show what this exploiter has come to.
        votes: Answers of the exploiter to each turn of those games; it plays the action of most of them.
        best_of: Answers of the exploiter to each turn of those; it plays the most probable per token.
        backend: ray, or inline: in this process. Default: that of the run.
        as_json: Print the result as one JSON object.
    """
    if (policy is None) == (show is None):
        raise typer.BadParameter("name a checkpoint to exploit, RUN@UPDATE, or an exploiter to --show")
    if show is not None:
        run = us.open_run(show, **place.named)
    else:
        how = evaluation_options(context)
        run = us.exploit(policy or "", updates=updates, from_victim=from_victim, **how)
        run_to_end(run, quiet=quiet, summary=False)
    found = us.exploiter_bound(run)
    if as_json:
        print(found.to_json().decode())
        return
    for name, value in found.summary():
        print(f"{name:<28}{value}")

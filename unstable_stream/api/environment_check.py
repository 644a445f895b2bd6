"""Judge an environment before anybody trains on it, and keep the verdict where runs find it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import absolute, reference_to
from unstable_stream.extensions.reference import Reference

if TYPE_CHECKING:
    from unstable_stream.games.court.verdict import Verdict as Verdict


def check_env(
    env: object,
    *,
    players: int | None = None,
    games: int = 40,
    seconds: float = 60.0,
    seed: int = 0,
    model: str = "",
    template: str = "",
    data: Path | str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> "Verdict":
    """Play an environment in a process of its own and return what is wrong with it.

    The verdict is kept in the data directory: a run of this environment records it, and tells if it failed.

    Args:
        env: id of an environment of TextArena, ``openspiel:NAME``, an extension, or a class.
        players: number of seats; ``None``: two, or the fewest that it takes.
        games: games by random legal players, from which most checks begin.
        seconds: time for all checks together, of which most environments need a tenth.
        seed: of the whole trial.
        model: the model whose tokenizer counts the texts; without one their length in tokens is estimated.
        template: the prompt template that words them for this model.
        data: the data directory.
        progress: called with what is done, how much of it, and of how much.

    Raises:
        EnvironmentUnavailableError: it cannot run on this machine.
        ConfigError: an extension that cannot be loaded, or a data directory that cannot be written.
        UnstableStreamError: the process that played it ended without a verdict.
    """
    from unstable_stream.runs.data_dir import check_writable
    from unstable_stream.runs.verdicts import keep_verdict  # loads the games
    from unstable_stream.services.launch.environment_trial import Task, try_environment

    env_id, kept = _named(env), Place.at(data).data
    check_writable(kept.root)  # before a minute of playing
    if template and not model:
        raise ConfigError(f"template={template!r}: name the model that reads its prompts too")
    task = Task(env_id, players or 0, seed, games, seconds, model, template)
    verdict = try_environment(task, progress)
    keep_verdict(verdict, kept)
    return verdict


def played_text(env: str, told: str, *, players: int | None = None) -> Iterator[str]:
    """Yield a game in words, turn by turn: what was shown, what was done, and the answer.

    ``told`` is an example of a verdict as JSON.

    Raises:
        ConfigError: it is none.
    """
    from unstable_stream.games.court.playing import TrialGame
    from unstable_stream.games.court.verdict import GameExample
    from unstable_stream.services.launch.environment_trial import seats_of

    try:
        example = msgspec.json.decode(told, type=GameExample)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{told!r} is no game: {error}; expected one as a verdict tells it") from error
    env_id, allowance = _named(env), example.invalid_moves_allowed
    seats = seats_of(env_id, players or 0)
    game = TrialGame(env_id, seats, example.seed, moves=example.moves, allowance=allowance)
    while game.advance():
        moment = game.moments[-1]
        yield f"-- turn {len(game.moments) - 1}, seat {moment.seat} is shown:\n{moment.text.strip()}"
        answer = "" if moment.valid else f" (invalid: {moment.refusal})"
        yield f"-- seat {moment.seat} plays {moment.action!r}{answer}"
    if not (game.failure or game.env.done):
        seen = game.env.observe()
        yield f"-- turn {len(game.moments)}, seat {seen.seat} is shown:\n{seen.text.strip()}"
    play = game.close()
    if play.failure:
        yield f"-- it fails: {play.failure}"
    elif play.ended:
        yield f"-- over: rewards {play.given}, {play.reason or 'no reason given'}"


def _named(env: object) -> str:
    spec = absolute(env) if isinstance(env, str) else reference_to("environment", env)
    return Reference.parse(spec, "env").text

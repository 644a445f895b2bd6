"""A tournament: every player meets every other one, on the same seeds in both seat orders.

It is one run that trains nothing, of the players' base model if any has one. So all its games are on one log,
rated together, and can be audited, verified and asked for by SQL.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unstable_stream.api.build import build, check
from unstable_stream.api.checkpoints import as_opponent, find_checkpoint, split_name
from unstable_stream.api.place import Place
from unstable_stream.api.run import Run
from unstable_stream.api.settings import make_config
from unstable_stream.api.shorthand import TINY_PLAYER, environments, opponents
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.extensions import KINDS, Reference, confined, entry_points_of
from unstable_stream.runs.base_model import ModelIdentity
from unstable_stream.runs.config import RunConfig

if TYPE_CHECKING:
    from unstable_stream.launch.launcher import Backend

__all__ = ["BASE", "tournament"]

BASE: Final = "base"
"""The name of the base model as a player."""

_IN_FLIGHT: Final = 64


def tournament(
    players: "Sequence[object] | object",
    *,
    games: int = 100,
    envs: object = None,
    model: str | None = None,
    seed: int = 0,
    votes: int = 1,
    best_of: int = 1,
    data: Path | str | None = None,
    log: str | None = None,
    backend: "Backend | None" = "inline",
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] | None = None,
) -> Run:
    """Return a run in which all players meet, not started: :meth:`Run.start` it, then :meth:`Run.standings`.

    Args:
        players: two or more of: ``RUN@UPDATE``, a checkpoint of any run of the place; ``RUN`` or a run, the
            newest one; ``base``, the base model; or an opponent as in :func:`build`.
        games: games of each pair in each environment, an even number: every seed is played in both seat
            orders. Of more than two seats, one of the pair has one seat or team and the other all others.
        envs: environments of two seats or more, as in :func:`build`; ``None``: those of the evaluation of the
            first checkpoint's run.
        model: the base model, where no checkpoint plays; needed only where it plays itself.
        seed: the same seed plays the same positions, whoever the players are.
        votes: every policy answers each turn so often, and plays the action of most answers.
        best_of: the same, but it plays the answer that is the most probable per token; not with ``votes``.
        data: the data directory.
        log: the event log; ``None``: ``local``.
        backend: as in :func:`build`.
        overrides: ``key.path=value`` as on a command line.
        allow_code: as in :meth:`Run.resume`.

    Raises:
        RunError: no such run or checkpoint.
        ConfigError: fewer than two players, one named twice, different base models, or an unknown opponent.
    """
    named = list(players) if isinstance(players, Sequence) and not isinstance(players, str) else [players]
    place = next((each.place for each in named if isinstance(each, Run)), Place.at(data, log))
    if len(named) < 2:
        raise ConfigError(f"a tournament of {len(named)}: expected at least two players, e.g. RUN@20 base")
    if games < 2 or games % 2:
        raise ConfigError(f"games={games}: expected an even number: every seed is played in both seat orders")
    met: dict[str, dict[str, Any]] = {}
    runs: dict[str, RunConfig] = {}
    for given in named:
        player, config = _player(place, given, model)
        name = player["name"]
        if name in met:
            raise ConfigError(f"{name} is named twice: name each player once")
        met[name] = player
        if config is not None:
            runs[name] = config
    _check_one_model(runs, model)
    settings: dict[str, Any] = {
        "name": "tournament",
        "evaluation": {
            "opponents": list(met.values()),
            "round_robin": True,
            "max_eval_games_per_ckpt": games,
            "first_last_games": games,
        },
        "evaluation.seed": seed,
        "evaluation.votes": votes,
        "evaluation.best_of": best_of,
        "collector.num_eval_workers": _IN_FLIGHT,
        "learner.iterations": 0,
        "learner.num_learners": 1,
        "model_pool.rating_system": "trueskill",
        "log": place.log,
    } | ({} if backend is None else {"backend": backend})
    if not runs:
        adapters = [name for name, player in met.items() if player.get("kind") == "adapter"]
        if envs is None or (model is None and adapters):
            raise ConfigError(
                "no checkpoint of a run plays: name the environments, and the base model if it plays, envs=… "
                "and model=…, on the command line --env ENV --model MODEL"
            )
        if model is None:
            # None of the players is made of it: any model will do, with a template for any game.
            model, envs = TINY_PLAYER, environments(envs, "")
        return build(model=model, train_envs=envs, data=place.root, overrides=overrides, **settings)
    first, recorded = next(iter(runs.items()))
    settings |= {"consumers": (), "trackers": (), "external": (), "metrics_port": None}
    settings |= {"model_pool.fixed": (), "model_pool.sample_mode": "mirror"}
    settings |= {"curriculum.mode": "fixed", "learner.initial_lora_path": None, "trained_models": ()}
    settings["evaluation.exploitability.games"] = ()  # the run has no policy of its own to measure
    settings["lora.lora_rank"] = max(config.lora.lora_rank for config in runs.values())
    if envs is not None:
        settings["eval_envs"] = envs
    if model is not None:
        settings["model"] = model  # the same one, perhaps at another place
    changed = make_config(settings, recorded, overrides)
    allowed = place.allowed_code(split_name(first)[0], allow_code, changed, recorded)
    with confined(allowed):
        check(changed)
    return Run(changed, place, allowed=allowed)


def _player(place: Place, given: object, model: str | None) -> tuple[dict[str, Any], RunConfig | None]:
    """Return a player as an opponent, and the configuration of its run if it is a checkpoint."""
    if isinstance(given, Run):
        return _checkpoint(given.place, given.id)
    if given == BASE or (model is not None and given == model):
        return {"name": BASE, "kind": "adapter"}, None  # an adapter without a path: the base model itself
    if not isinstance(given, str) or _is_opponent(given):
        return opponents([given])[0], None
    try:
        return _checkpoint(place, given)
    except RunError as error:
        if "@" in given:
            raise
        from unstable_stream.games.opponents.scripted import SCRIPTED_NAMES

        raise RunError(
            f"player {given!r}: {error}. Other players are {BASE!r}, the base model, and scripted opponents: "
            f"{', '.join(SCRIPTED_NAMES)}"
        ) from error


def _is_opponent(name: str) -> bool:
    """Tell an opponent from a run: a scripted one, an extension, or a model of an endpoint."""
    from unstable_stream.games.opponents.scripted import SCRIPTED_NAMES

    if "@" in name:
        return False
    own = Reference.parse(name, "players")
    known = (*SCRIPTED_NAMES, *entry_points_of(KINDS["opponent"]))
    return "/" in name or own.names_code or own.target in known


def _checkpoint(place: Place, name: str) -> tuple[dict[str, Any], RunConfig]:
    fork, config = find_checkpoint(place, *split_name(name))
    return as_opponent(fork), config


def _check_one_model(runs: dict[str, RunConfig], model: str | None) -> None:
    if not runs:
        return
    first = next(iter(runs))
    own = ModelIdentity.of_run
    expected, whose = (
        (own(runs[first]), first) if model is None else (ModelIdentity.of_model(model), f"model={model}")
    )
    for player, config in runs.items():
        if not own(config).matches(expected):
            raise ConfigError(
                f"different base models: that of {player} is {own(config)}, that of {whose} is {expected}. "
                "One engine plays the checkpoints of one base model: leave one out, or evaluate each against "
                "the same scripted opponents, unstable-stream eval RUN@UPDATE --against random-legal"
            )

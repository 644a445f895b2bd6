"""A tournament: every player meets every other one, on the same seeds in both seat orders; or games between
players in seats that somebody has chosen.

It is one run that trains nothing, of the players' base model if any has one. So all its games are on one log,
rated together, and can be audited, verified and asked for by SQL.
"""

from collections.abc import Sequence
from typing import Any, Final, Unpack

from unstable_stream.api.build import build
from unstable_stream.api.checkpoints import as_opponent, find_checkpoint, split_name
from unstable_stream.api.evaluation import EvaluationOptions, checked_run, match_settings
from unstable_stream.api.place import Place
from unstable_stream.api.run import Run
from unstable_stream.api.shorthand import TINY_PLAYER, environments, opponents
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.extensions import KINDS, Reference, entry_points_of
from unstable_stream.runs.base_model import ModelIdentity
from unstable_stream.runs.config import RunConfig

BASE: Final = "base"
"""The name of the base model as a player."""


def tournament(
    players: "Sequence[object] | object", *, model: str | None = None, **options: Unpack[EvaluationOptions]
) -> Run:
    """Return a run in which all players meet, not started: :meth:`Run.start` it, then :meth:`Run.standings`.

    Args:
        players: two or more of: ``RUN@UPDATE``, a checkpoint of any run of the place; ``RUN`` or a run, the
            newest one; ``base``, the base model; or an opponent as in :func:`build`.
        model: the base model, where no checkpoint plays; needed only where it plays itself.
        options: any of these, by name.
        games: games of each pair in each environment, by default 100, an even number: every seed is played in
            both seat orders. Of more than two seats, one of the pair has one seat or team and the other all
            others.
        envs: environments of two seats or more, as in :func:`build`; ``None``: those of the evaluation of the
            first checkpoint's run.
        seed: 0 by default; the same seed plays the same positions, whoever the players are.
        votes: every policy answers each turn so often, and plays the action of most answers; 1 by default.
        best_of: the same, but it plays the answer that is the most probable per token; not with ``votes``.
        data: the data directory.
        log: the event log; ``None``: ``local``.
        backend: as in :func:`build`, by default ``inline``.
        overrides: ``key.path=value`` as on a command line.
        allow_code: as in :meth:`Run.resume`.

    Raises:
        RunError: no such run or checkpoint.
        ConfigError: fewer than two players, one named twice, different base models, or an unknown opponent.
    """
    named = list(players) if isinstance(players, Sequence) and not isinstance(players, str) else [players]
    place = next(
        (each.place for each in named if isinstance(each, Run)),
        Place.at(options.get("data"), options.get("log")),
    )
    if len(named) < 2:
        raise ConfigError(f"a tournament of {len(named)}: expected at least two players, e.g. RUN@20 base")
    games = options.get("games", 100)
    if games < 2 or games % 2:
        raise ConfigError(f"games={games}: expected an even number: every seed is played in both seat orders")
    players = [player_of(place, given, model) for given in named]
    names = [player["name"] for player, _ in players]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{twice} is named twice: name each player once")
    return _among(place, players, model, {"name": "tournament"}, options)


def play(
    seats: Sequence[object],
    *,
    mirrored: bool = False,
    model: str | None = None,
    **options: Unpack[EvaluationOptions],
) -> Run:
    """Return a run in which players play each other in given seats, not started: :meth:`Run.start` it.

    Every game is recorded like all others, whoever plays: what teachers do is there to be asked for, searched
    and imitated.

    Args:
        seats: a player for each seat, as for :func:`tournament`; one may have several.
        mirrored: every seed is played with each player in each seat; by default the seats stay as given.
        model: as for :func:`tournament`.
        options: those of :func:`tournament`, by name. ``games``: games in each environment, by default 100.

    Raises:
        RunError: no such run or checkpoint.
        ConfigError: an environment has another number of seats, different base models, or an unknown
            opponent.
    """
    place = next(
        (each.place for each in seats if isinstance(each, Run)),
        Place.at(options.get("data"), options.get("log")),
    )
    players = [player_of(place, given, model) for given in seats]
    names = [player["name"] for player, _ in players]
    turned = [names[first:] + names[:first] for first in range(len(names) if mirrored else 1)]
    seatings = list(dict.fromkeys(map(tuple, turned)))
    return _among(place, players, model, {"name": "play", "evaluation.seatings": seatings}, options)


def _among(
    place: Place,
    players: Sequence[tuple[dict[str, Any], RunConfig | None]],
    model: str | None,
    own: dict[str, Any],
    options: EvaluationOptions,
) -> Run:
    """Return a run that trains nothing, in which players meet; ``own``: the settings that are its own."""
    met = {player["name"]: player for player, _ in players}
    runs = {player["name"]: config for player, config in players if config is not None}
    check_one_model(runs, model)
    settings = match_settings(place, list(met.values()), options) | {
        **own,
        "evaluation.round_robin": True,
        "learner.iterations": 0,
        "model_pool.rating_system": "trueskill",
    }
    envs = options.get("envs")
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
        overrides = options.get("overrides", ())
        return build(model=model, train_envs=envs, data=place.root, overrides=overrides, **settings)
    first, recorded = next(iter(runs.items()))
    settings |= {"curriculum.mode": "fixed", "learner.initial_lora_path": None, "trained_models": ()}
    settings["evaluation.exploitability.games"] = ()  # the run has no policy of its own to measure
    settings["lora.lora_rank"] = max(config.lora.lora_rank for config in runs.values())
    if model is not None:
        settings["model"] = model  # the same one, perhaps at another place
    return checked_run(place, split_name(first)[0], recorded, settings, options)


def player_of(place: Place, given: object, model: str | None) -> tuple[dict[str, Any], RunConfig | None]:
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


def check_one_model(runs: dict[str, RunConfig], model: str | None) -> None:
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

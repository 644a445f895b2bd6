"""Branches: stand in any position of a recorded game again, and play on from there with whom you like."""

from collections.abc import Sequence
from typing import Any, Final, Unpack

from unstable_stream.api.evaluation import EvaluationOptions, checked_run, match_settings
from unstable_stream.api.games import Game, load_transcript
from unstable_stream.api.place import Place
from unstable_stream.api.run import Run, open_run
from unstable_stream.api.tournament import check_one_model, player_of
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.history.views.branches import SeatValue, branches_of
from unstable_stream.history.views.transcript import Transcript
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.recording import derived_name

_BEGAN: Final = "SELECT CAST(position->>'$.seed' AS BIGINT) FROM game_outcomes WHERE game_id = ?"
_SEEN: Final = "SELECT game_turn, observation FROM turns WHERE game_id = ? AND game_turn <= ?"


def branch(
    game: "Game | str",
    turn: int,
    seats: Sequence[object],
    *,
    then: Sequence[str] = (),
    model: str | None = None,
    **options: Unpack[EvaluationOptions],
) -> Run:
    """Return a run that plays on from a position of a recorded game, not started: then :func:`branch_values`.

    The position is made again from the game's seed and moves. What the players saw on the way is compared
    with what is recorded. Chance in the environment goes on as in that game; the players decide anew.

    Args:
        game: a game, its id, or the beginning of it.
        turn: the number of moves before the position: 0 is the game's beginning.
        seats: a player for each seat, as for :func:`tournament`; one may have several.
        then: actions that are played first, by whoever's turn it is: the value of other moves.
        model: as for :func:`tournament`.
        options: those of :func:`tournament`, by name. ``games``: how often it is played on, by default 32;
            ``envs`` is the game's.

    Raises:
        ArchiveError: no such game.
        ConfigError: no such turn, another number of seats, or an unknown player.
        RunError: the position made again is another one than was recorded; says both texts.
    """
    place = Place.at(options.get("data"), options.get("log"))
    played = load_transcript(place.archive, game.id if isinstance(game, Game) else game)
    recorded = open_run(played.run_id, **place.named).config
    position, _ = position_again(place, played, recorded, turn, then)
    if len(seats) != len(played.seats):
        raise ConfigError(
            f"game {played.game_id} has {len(played.seats)} seats, and {len(seats)} players are named: name "
            "one for each"
        )
    named = [player_of(place, given, model) for given in seats]
    players = {player["name"]: player for player, _ in named}
    runs = {player["name"]: config for player, config in named if config is not None}
    check_one_model(runs, model)
    base = next(iter(runs.values()), recorded)
    envs = (*recorded.train_envs, *recorded.evaluated_envs)
    met = (played.env_id, len(played.seats))
    known = [env.model_dump() for env in envs if (env.env_id, env.num_players) == met]
    # A run that was resumed may have other environments now.
    env = next(iter(known), {"env_id": played.env_id, "num_players": len(played.seats)})
    given: EvaluationOptions = {"games": 32, **options, "envs": [env]}
    settings = match_settings(place, list(players.values()), given) | {
        "name": derived_name("branch", recorded.name),
        "evaluation.round_robin": True,
        "evaluation.seatings": [[player["name"] for player, _ in named]],
        "evaluation.branch": position,
        "evaluation.exploitability.games": (),
        "collector.max_turns": recorded.collector.max_turns,
        "collector.invalid_moves_allowed": recorded.collector.invalid_moves_allowed,
        "learner.iterations": 0,
        "learner.initial_lora_path": None,
        "trained_models": (),
        "curriculum.mode": "fixed",
        "model_pool.rating_system": "trueskill",
    }
    return checked_run(place, played.run_id, base, settings, given)


def branch_values(run: Run) -> list[SeatValue]:
    """Return the value of a branch's position for each seat.

    Raises:
        RunError: the run is no branch, or has not played two games.
    """
    if run.config.evaluation.branch is None:
        raise RunError(f"run {run.id} is no branch: make one with unstable-stream branch GAME --turn N")
    found = branches_of(run.place.archive, run.id)
    if not found:
        raise RunError(f"run {run.id} has not played on yet: at least two games are needed")
    return list(found[0].values)


def position_again(
    place: Place, played: Transcript, config: RunConfig, turn: int, then: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Make a position again and compare what was seen; return it, and what was seen at each turn.

    Args:
        place: where the game is.
        played: the game.
        config: of its run.
        turn: the number of moves before the position.
        then: as for :func:`branch`.

    Raises what :func:`branch` does.
    """
    from unstable_stream.games.environments import Environment  # loads the games

    if played.split == "imported":
        raise ConfigError(
            f"game {played.game_id} was imported, and imports have no seed by which it could be made again: "
            "branch a game that was played here"
        )
    if played.state != "finished" or played.env_id is None or played.seed is None:
        raise ConfigError(f"game {played.game_id} is {played.state}, expected a finished one")
    if not 0 <= turn < len(played.moves):
        raise ConfigError(f"turn={turn}: game {played.game_id} has turns 0 to {len(played.moves) - 1}")
    ((began,),) = query(place.archive, _BEGAN, [played.game_id]).rows
    seed = played.seed if began is None else began
    seen = dict(query(place.archive, _SEEN, [played.game_id, turn]).rows)
    where = f"game {played.game_id} of {played.env_id}"
    allowed = config.collector.invalid_moves_allowed
    environment = Environment(played.env_id, invalid_moves_allowed=allowed, label=where)
    environment.reset(len(played.seats), seed)
    actions: list[tuple[int, str]] = []
    texts: list[str] = []
    for action in [*(move.action for move in played.moves[:turn]), *then, None]:
        if environment.done or len(actions) == config.collector.max_turns:
            last = ", ".join(then) or f"{len(actions)} moves"
            raise ConfigError(f"{where} is over after {last}: nothing is left to play")
        observed = environment.observe()
        text = observed.text
        texts.append(text)
        if seen.get(len(actions), text) != text:
            raise RunError(
                f"{where} cannot be made again: the environment does not follow its seed, or has changed. "
                f"Before move {len(actions)} it showed\n{seen[len(actions)]}\nand now it shows\n{text}"
            )
        if action is not None:
            environment.step(action)
            actions.append((observed.seat, action))
    return {"game_id": played.game_id, "turn": turn, "seed": seed, "actions": actions}, texts

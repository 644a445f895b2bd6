"""Evaluate in disguise too, to tell reasoning from memory."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from unstable_stream.algorithms.intervals import interval_of_sum
from unstable_stream.api.run import Run
from unstable_stream.events import Event, GameOutcome
from unstable_stream.games.board_templates import BOARD_TEMPLATES
from unstable_stream.games.disguises.naming import DisguiseNumbers, plain_id


@dataclass(frozen=True, slots=True)
class DisguiseEffect:
    """The loss of a policy in an environment, if the game is told otherwise."""

    env_id: str
    """In disguise."""
    policy: str
    opponent: str
    games: int
    """Pairs of games with the same seed and seat, one of them in disguise."""
    named: float
    """The mean reward in the games as they are."""
    disguised: float
    """The mean reward in disguise."""
    difference: float
    """Named minus disguised."""
    low: float
    """The beginning of the difference's 95 % interval by Student's t, over the pairs."""
    high: float
    """The end of that interval."""


def disguise_effects(run: Run) -> list[DisguiseEffect]:
    """Return what disguises cost the policies of a run that was evaluated in both.

    The opponents that know a game play the same moves in both, and every draw has the same seed: so each pair
    is one observation, whose difference counts.
    """
    played: dict[tuple[str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)

    def add(event: Event) -> None:
        if not isinstance(event, GameOutcome) or event.evaluated_uid is None:
            return
        own = [seat for seat in event.seats if seat.model_uid == event.evaluated_uid]
        others = [seat.model_uid for seat in event.seats if seat.model_uid != event.evaluated_uid]
        if len(own) == 1 and others:
            games = played[event.env_id, event.evaluated_uid, ", ".join(others)]
            games[event.seed, own[0].seat] = own[0].reward

    if all(plain_id(env.env_id) == env.env_id for env in run.config.evaluated_envs):
        return []
    run.place.each_event(run.id, ("game-outcomes",), add)
    effects = []
    for (env_id, policy, opponent), games in sorted(played.items()):
        plain = plain_id(env_id)
        named = played.get((plain, policy, opponent), {}) if plain != env_id else {}
        pairs = [(named[game], reward) for game, reward in games.items() if game in named]
        if len(pairs) < 2:
            continue
        before, after = (fmean(values) for values in zip(*pairs, strict=True))
        largest = 2 * max(1.0, *(abs(reward) for pair in pairs for reward in pair))
        interval = interval_of_sum([[one - other for one, other in pairs]], largest)
        effects.append(DisguiseEffect(env_id, policy, opponent, len(pairs), before, after, *interval))
    return effects


def with_disguises(envs: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return environments, each followed by itself in ``number`` disguises that its template can read."""
    both: list[dict[str, Any]] = []
    for env in envs:
        worn = DisguiseNumbers(1, number, board=env.get("template") in BOARD_TEMPLATES)
        both += [dict(env), {**env, "env_id": worn.id_of(env["env_id"])}]
    return both

"""Try every check on one environment."""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from unstable_stream.events import now_ms
from unstable_stream.games.court import repeats, results, rules, texts
from unstable_stream.games.court.trial import Check, Elsewhere, Reader, Trial, answer
from unstable_stream.games.court.verdict import Finding, Verdict, version_of
from unstable_stream.version import __version__

CHECKS: Final[Mapping[str, Check]] = {
    "plays without errors": repeats.plays_on,
    "same seed, same game": repeats.same_seed,
    "the seed decides": repeats.own_seed,
    "ends": rules.ends,
    "hidden stays hidden": texts.hidden,
    "shows no seed": texts.seed_shown,
    "reset begins anew": repeats.reset_again,
    "games in turn": repeats.interleaved,
    "copies": repeats.copies,
    "looking changes nothing": repeats.looks,
    "offered moves are taken": rules.offered_moves,
    "other moves are refused": rules.other_moves,
    "illegal moves are answered": rules.illegal_moves,
    "rewards": results.rewards_given,
    "sums of rewards": results.reward_sums,
    "winners": results.winners,
    "moves matter": results.moves_matter,
    "bets move chips": results.stakes,
    "seats": results.seats,
    "cheats": results.cheats,
    "texts": texts.texts,
    "speed": texts.speed,
    "another process": repeats.other_process,
    "same seed, later": repeats.late,
}
"""The checks by their names, in the order in which they are tried."""

_OF_REPEATABLE: Final = (
    repeats.own_seed,
    repeats.reset_again,
    repeats.interleaved,
    repeats.copies,
    repeats.looks,
    repeats.other_process,
    repeats.late,
)

_OF_PLAYED_GAMES: Final = (
    repeats.plays_on,
    rules.ends,
    texts.seed_shown,
    texts.texts,
    results.rewards_given,
    results.reward_sums,
    results.winners,
    results.seats,
)
"""The checks that play no further game."""
_MOST_TIMES: Final = 3.0
"""Other checks begin until so many times the time was computed, for each plays at least one game; or twice
that time has passed, of which the machine may have spent a part on something else."""

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much."""


def judge(
    env_id: str,
    num_players: int,
    *,
    seed: int = 0,
    games: int = 40,
    seconds: float = 60.0,
    elsewhere: Elsewhere | None = None,
    reader: Reader | None = None,
    progress: Progress = lambda what, done, of: None,
) -> Verdict:
    """Play an environment and say what is wrong with it.

    Args:
        env_id: the environment.
        num_players: its seats.
        seed: of the whole trial.
        games: games by random legal players that the checks look at.
        seconds: time for all checks; they play less when it is over.
        elsewhere: plays games in another process.
        reader: a model and a template that are to read the texts.
        progress: is told how far it is.

    Raises:
        ConfigError: an extension that cannot be loaded.
        EnvironmentUnavailableError: no such environment.
    """
    begin = time.monotonic()
    over = (begin + 2 * _MOST_TIMES * seconds, time.process_time() + _MOST_TIMES * seconds)
    version = version_of(env_id)
    trial = Trial(env_id, num_players, seed, games, seconds, elsewhere, reader)
    trial.prepare(lambda done, of: progress("games", done, of))
    findings: list[Finding] = []
    late: list[str] = []
    judged = any(play.ended for play in trial.plays)  # else there is nothing that the other checks could play
    for number, (name, check) in enumerate(CHECKS.items()):
        if not judged and check not in (repeats.plays_on, rules.ends):
            continue
        progress(name, number, len(CHECKS))
        is_late = time.monotonic() > over[0] or time.process_time() > over[1]
        if is_late and check not in _OF_PLAYED_GAMES:
            late.append(name)
            continue
        if check in _OF_REPEATABLE and not trial.repeatable:
            found: Finding | None = answer("not judged", "games do not repeat")
        else:
            found = next(check(trial), None)
        findings += [msgspec.structs.replace(found, check=name)] if found else []
    if late:
        says = (
            f"{trial.played} games took so long that nothing was tried of: {', '.join(late)}; give more time"
        )
        findings.append(Finding("time", "warned", says))
    return Verdict(
        env_id=env_id,
        num_players=num_players,
        seed=seed,
        version=version,
        games=trial.played,
        seconds=round(time.monotonic() - begin, 1),
        findings=tuple(findings),
        judged_at_ms=now_ms(),
        package_version=__version__,
    )

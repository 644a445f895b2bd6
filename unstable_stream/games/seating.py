"""Tell who plays with whom: the roles that an environment deals, and the teams that win together.

Roles are dealt when a game is reset, from its seed alone, so that whoever decides on a game can look first:
the environment is reset once more than it is played. An environment of the user's own names roles as
TextArena does, in the game info of ``close`` (``{seat: {"role": …}}``) or the ``role_mapping`` of its state,
and its teams in an attribute ``teams``: groups of seat numbers or of roles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from unstable_stream.errors import ConfigError
from unstable_stream.games.environments import Environment, is_own_environment

Group: TypeAlias = tuple[int | str, ...]
"""The members of a team: numbers of seats, and roles."""


@dataclass(frozen=True, slots=True)
class Seating:
    """One game's seats."""

    roles: Mapping[int, str]
    """By seat; empty if nobody had to look."""
    teams: tuple[int | None, ...]
    """By seat; ``None``: it plays for itself."""

    def side(self, seat: int) -> int:
        """Return a number that partners share and nobody else has."""
        team = self.teams[seat]
        return team if team is not None else -1 - seat


def seat_players(
    env_id: str, num_players: int, teams: Sequence[Group] | None, seed: int, *, with_roles: bool
) -> Seating:
    """Return the seating of a game.

    Args:
        env_id: the environment.
        num_players: its seats.
        teams: groups of seats or roles; ``None``: as the environment declares.
        seed: of the game.
        with_roles: whether roles are wanted though no team is named by one.

    Raises:
        EnvironmentUnavailableError: the environment cannot run here.
        ConfigError: a seat is in two teams.
    """
    groups = declared_teams(env_id, num_players) if teams is None else tuple(teams)
    by_role = any(isinstance(member, str) for group in groups for member in group)
    roles = dealt_roles(env_id, num_players, seed) if by_role or with_roles else {}
    return Seating(
        roles, tuple(_team_of(groups, seat, roles.get(seat), env_id) for seat in range(num_players))
    )


def _team_of(groups: Sequence[Group], seat: int, role: str | None, env_id: str) -> int | None:
    found = [number for number, group in enumerate(groups) if seat in group or (role and role in group)]
    if len(found) > 1:
        raise ConfigError(f"teams of {env_id}: seat {seat}, role {role}, is in {len(found)} of them")
    return found[0] if found else None


@lru_cache(maxsize=4096)
def dealt_roles(env_id: str, num_players: int, seed: int) -> Mapping[int, str]:
    """Return the role of each seat that has one, in the game of this seed.

    Raises:
        EnvironmentUnavailableError: the environment cannot run here.
    """
    environment = Environment(env_id)
    environment.reset(num_players, seed)
    return environment.close().roles


@lru_cache(maxsize=256)
def declared_teams(env_id: str, num_players: int) -> tuple[Group, ...]:
    """Return the teams that an environment declares, none if everybody plays for itself.

    Raises:
        EnvironmentUnavailableError: an environment of the user's own cannot run here.
    """
    if is_own_environment(env_id):
        environment = Environment(env_id)
        environment.reset(num_players, seed=0)
        return environment.teams
    declared = _TEXTARENA.get(env_id.partition("-")[0])
    return declared(num_players) if declared else ()


def _halves(num_players: int) -> tuple[Group, ...]:
    half = num_players // 2
    return tuple(range(half)), tuple(range(half, num_players))


def _mafia(_: int) -> tuple[Group, ...]:
    return ("Mafia",), ("Villager", "Doctor", "Detective")


_TEXTARENA: Final[Mapping[str, Callable[[int], tuple[Group, ...]]]] = {
    "Codenames": _halves,
    "SecretMafia": _mafia,
    "Taboo": _halves,
}
"""TextArena's games in which several seats win together, by the first part of their ids."""

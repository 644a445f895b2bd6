"""The standings of a tournament, as tables for people and as rows for programs."""

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from unstable_stream.model_pool.standings import Standing

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = tuple(field.name for field in fields(Standing))
"""The columns of :func:`standing_rows`; the last, ``against``, is the row of the payoff matrix."""


def standing_rows(standings: Sequence[Standing]) -> list[tuple[Any, ...]]:
    """Return rows of :data:`COLUMNS`. ``Any``: names, numbers, and the scores by opponent."""
    return [astuple(standing) for standing in standings]


def ladder_table(standings: Sequence[Standing]) -> "Table":
    """Return who is strongest, for Rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("player", overflow="fold")  # where the terminal is narrow, names give way to numbers
    for name in ("games", "score", "won/drawn/lost", "invalid", "Elo", "95 % interval", "mu", "sigma"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in standings:
        table.add_row(
            str(row.rank),
            Text(row.player),
            f"{row.games:,}",
            f"{row.score:.1%}",
            f"{row.wins}/{row.draws}/{row.losses}",
            f"{row.wins_by_invalid}/{row.losses_by_invalid}",
            f"[bold]{round(row.elo):+}[/]",
            f"{round(row.elo_low):+} to {round(row.elo_high):+}",
            "–" if row.mu is None else f"{row.mu:.1f}",
            "–" if row.sigma is None else f"{row.sigma:.1f}",
        )
    return table


def payoff_table(standings: Sequence[Standing]) -> "Table":
    """Return the mean score of each row's player against each column's, for Rich; players by rank."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("score against", overflow="fold")
    for row in standings:
        table.add_column(str(row.rank), justify="right", no_wrap=True)
    for row in standings:
        scores = (row.against.get(other.player) for other in standings)
        table.add_row(
            str(row.rank), Text(row.player), *("–" if score is None else f"{score:.1%}" for score in scores)
        )
    return table

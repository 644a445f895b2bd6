"""Load the views: each file in ``views/`` holds one commented query, and one file the macros they share."""

import functools
from importlib import resources
from typing import Final, NamedTuple

_VIEW_ORDER: Final = (
    "runs",
    "games",
    "win_rates",
    "learning_curve",
    "sweep_results",
    "branches",
    "moves",
    "exploitability",
    "payoff_matrix",
    "rating_ladder",
    "rating_ladder_history",
    "completion_lengths",
    "game_lengths",
    "longest_games",
    "invalid_move_rates",
    "truncation_rates",
    "staleness",
    "importance_ratios",
    "update_provenance",
    "training_batches",
    "throughput",
    "ledger",
    "costs",
    "faults",
    "run_costs",
    "where_it_ran",
    "dead_letter_counts",
    "run_lineage",
    "missing_of_runs",
)


class View(NamedTuple):
    """A view, from ``views/<name>.sql``.

    The file begins with comments: ``-- text``, then ``-- column: meaning``, then ``-- Example: SQL``, in some
    after ``-- Question: words`` that it answers. The query follows.
    """

    name: str
    doc: str
    columns: dict[str, str]
    """Column name to meaning and unit."""
    question: str
    """Asked by people, answered by the example; may be empty."""
    example: str
    """A query of it."""
    query: str

    def create_sql(self) -> str:
        """Return the statement that creates or replaces the view."""
        return f'CREATE OR REPLACE VIEW "{self.name}" AS {self.query}'


@functools.cache
def load_views() -> tuple[View, ...]:
    """Return all views; each may use those before it."""
    return tuple(_parse_view(name, _text(name)) for name in _VIEW_ORDER)


@functools.cache
def _text(name: str) -> str:
    return resources.files("unstable_stream.archive").joinpath("views", f"{name}.sql").read_text("utf-8")


def _parse_view(name: str, text: str) -> View:
    lines = text.splitlines()
    comments = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    head, _, example = "\n".join(comments).partition("Example: ")
    head, _, question = head.partition("Question: ")
    query = "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
    doc: list[str] = []
    columns: dict[str, str] = {}
    for line in head.splitlines():
        column, colon, meaning = line.partition(": ")
        if colon and column.isidentifier() and column.islower():
            columns[column] = meaning
        elif columns:
            last = next(reversed(columns))
            columns[last] += " " + line
        else:
            doc.append(line)
    return View(name, " ".join(doc), columns, question.strip(), example, query)


def macros() -> str:
    """Return the statements that create or replace the macros."""
    return _text("macros")

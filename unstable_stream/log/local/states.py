"""Keep saved states in a local log: one row for each scope and name."""

import sqlite3
from collections.abc import Collection, Mapping

__all__ = ["save", "saved", "saved_names"]


def save(connection: sqlite3.Connection, scope: str, states: Mapping[str, bytes]) -> None:
    """Replace states by name; forget those that are empty."""
    connection.executemany(
        """INSERT INTO states (scope, name, state) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET state = excluded.state""",
        [(scope, name, state) for name, state in states.items() if state],
    )
    connection.executemany(
        "DELETE FROM states WHERE scope = ? AND name = ?",
        [(scope, name) for name, state in states.items() if not state],
    )


def saved(connection: sqlite3.Connection, scope: str, names: Collection[str] | None) -> dict[str, bytes]:
    """Return the states of a scope, or only those of these names."""
    connection.execute("BEGIN")  # one snapshot: all states are of one moment
    try:
        if names is None:
            return dict(connection.execute("SELECT name, state FROM states WHERE scope = ?", (scope,)))
        query = "SELECT name, state FROM states WHERE scope = ? AND name = ?"
        return {
            str(name): state for wanted in names for name, state in connection.execute(query, (scope, wanted))
        }
    finally:
        connection.execute("COMMIT")


def saved_names(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the names of all states by scope."""
    found: dict[str, list[str]] = {}
    for scope, name in connection.execute("SELECT scope, name FROM states ORDER BY scope, name"):
        found.setdefault(str(scope), []).append(str(name))
    return found

"""An archive of two made-up runs, one of whose models tries to write itself into the page."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from tests.builders import made
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import (
    CollapseWarning,
    Event,
    GameOutcome,
    PartChanged,
    RecordRejected,
    Trajectory,
    event_id,
    game_id,
)

ATTACK = (
    "</script></pre><img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
)

CONTROLS = "\x1b[31mred\x1b[2J\x1b]0;hacked\x07\x9b1m back\x08space return\rover nothing\x00\x7f"
"""A terminal would change colour, clear itself, take another title and write over what it has."""


def _with_attack(event: Event) -> Event:
    """Let the player write an attack in an evaluation game that is shown, as the last checkpoint's win."""
    if getattr(event, "game_id", None) != game_id("run-a", "eval", 12):
        return event
    if isinstance(event, Trajectory):
        text = ATTACK + CONTROLS
        turn = msgspec.structs.replace(
            event.turns[0], completion=text, action=text, observation=text, prompt=text, valid=False
        )
        return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))
    if isinstance(event, GameOutcome):
        return msgspec.structs.replace(event, reason_text=ATTACK + CONTROLS)
    return event


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "archive.duckdb"
    events = [_with_attack(event) for event in made_up_run()]
    of_run: dict[str, Any] = {"run_id": "run-a", "occurred_at_ms": 1_700_000_000_000}
    reason = "EventDecodeError: malformed <b>JSON</b>"
    rejected = made(RecordRejected, partition=1, offset=5, reason=reason, **of_run)
    warning = CollapseWarning(
        event_id=event_id("run-a", "collapse-warning", "5", "legal_fraction"),
        update=5,
        began=3,
        fork_at=2,
        rule="illegal",
        signal="legal_fraction",
        value=0.6,
        reference=0.97,
        text="60% of the answers are legal moves, down from 97%",
        **of_run,
    )
    lost = PartChanged(
        event_id="lost", part="rollout-1", change="lost", host="gpu-3", reason="preempted", **of_run
    )
    unfinished = made_up_run("run-b", updates=2, finished=False)
    with ArchiveWriter(path) as writer:
        writer.write(stored([*events, rejected, warning, lost, *unfinished]))
    return path

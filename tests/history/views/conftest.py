"""An archive of two made-up runs, one of whose models tries to write itself into the page."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.events import (
    CollapseWarning,
    Event,
    GameOutcome,
    PartChanged,
    RecordRejected,
    Trajectory,
    game_id,
)
from unstable_stream.history.views.report.reading import RunFacts, read_run

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
    events = [_with_attack(event) for event in made_up_run()]
    of_run: dict[str, Any] = {"run_id": "run-a", "occurred_at_ms": 1_700_000_000_000}
    reason = "EventDecodeError: malformed <b>JSON</b>"
    rejected = made(RecordRejected, partition=1, offset=5, reason=reason, **of_run)
    signal = {"rule": "illegal", "signal": "legal_fraction", "value": 0.6, "reference": 0.97}
    says = {"text": "60% of the answers are legal moves, down from 97%", **signal}
    warning = made(CollapseWarning, event_id="collapse", update=5, began=3, fork_at=2, **says, **of_run)
    part = {"part": "rollout-1", "change": "lost", "host": "gpu-3", "reason": "preempted"}
    lost = made(PartChanged, event_id="lost", **part, **of_run)
    unfinished = made_up_run("run-b", updates=2, finished=False)
    return archived(tmp_path_factory.mktemp("report"), [*events, rejected, warning, lost, *unfinished])


@pytest.fixture(scope="session")
def facts(archive: Path) -> RunFacts:
    return read_run(archive, "run-a", "A")

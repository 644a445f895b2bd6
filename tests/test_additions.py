"""Add an algorithm, and an event with its table, to a copy of the package: all else follows."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import ROOT, completed

Edit = Callable[[str, str, str], None]

TOY_ALGORITHM = """
from unstable_stream.algorithms.reinforce import Reinforce
from unstable_stream.algorithms.settings import ToyConfig

class Toy(Reinforce):
    settings_type = ToyConfig
"""
TOY_SETTINGS = '''class ToyConfig(PolicyGradientConfig):
    """A toy."""

    implementation = "unstable_stream.algorithms.toy:Toy"
    type: Literal["toy"] = "toy"
    pace: PositiveInt = 1
    """Pace of the toy."""


BUILT_IN: Final'''
ALGORITHM_FOLLOWS = """
import pytest
import unstable_stream as us
from tools.pages import configuration
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import parse_config
from unstable_stream.services.workers.learner_core import build_training_algorithm

base = {"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0"}]}
config = parse_config({**base, "algorithm": {"type": "toy", "pace": 3}})
algorithm = build_training_algorithm(config)
assert type(algorithm) is us.algorithms.Toy and algorithm.settings.pace == 3
assert parse_config(base, ["algorithm.type=toy"]).algorithm.pace == 1
for wrong, message in (({"pase": 2}, "known here: .*pace"), ({"pace": 0}, "algorithm.pace: .* found 0")):
    with pytest.raises(ConfigError, match=message):
        parse_config({**base, "algorithm": {"type": "toy", **wrong}})
with pytest.raises(ConfigError, match="known: reinforce, dpo, ppo, a2c, toy"):
    us.algorithms.build_algorithm("toi")
assert "| `pace` | integer above 0 | `1` | Pace of the toy. |" in configuration.render()
"""

TOY_EVENT = '''
from unstable_stream.events.envelope import Event

class ToyMoved(Event, frozen=True, kw_only=True, tag="toy-moved"):
    """A toy moved."""

    TOPIC = "toys"

    metres: float
    """Way of the toy."""
'''
TOY_TOPIC = """
name = "toys"
description = "Toys."
key = "run"
order = 11
partitions = 1
writers = ["toy"]
readers = ["archive"]
"""
EVENT_FOLLOWS = """
from tools.generated import GENERATED, made
from tools.pages.asyncapi import document
from unstable_stream.archive.tables import TABLES
from unstable_stream.events import decode_event, encode_event
from unstable_stream.events.toys import ToyMoved
from unstable_stream.log.topics import load_topics

moved = ToyMoved(event_id="a", run_id="r", occurred_at_ms=1, metres=2.5)
assert decode_event(encode_event(moved)) == moved
assert load_topics()["toys"].events == ("toy-moved",)
assert document()["channels"]["toys"]["messages"].keys() == {"toy-moved"}
(table,) = (table for table in TABLES if ToyMoved in table.events)
columns = {column.name: column.sql_type for column in table.columns}
assert (columns["run_id"], columns["metres"]) == ("VARCHAR", "DOUBLE")
assert "topics/schemas/toy-moved.v1.json" in GENERATED
assert "Way of the toy." in made("docs/reference/archive.md")[1]
"""


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """Change a file of a copy of the package and its topics; an empty ``old`` makes a file."""
    for name in ("unstable_stream", "topics"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def change(name: str, old: str, new: str) -> None:
        file = tmp_path / name
        text = file.read_text(encoding="utf-8") if old else ""
        assert text.count(old) == 1 or not old, name
        file.write_text(text.replace(old, new) if old else new, encoding="utf-8")

    return change


def check(tmp_path: Path, script: str) -> None:
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = completed(sys.executable, "-c", script, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_an_algorithm_is_its_class_and_its_settings(edit: Edit, tmp_path: Path) -> None:
    edit("unstable_stream/algorithms/toy.py", "", TOY_ALGORITHM)
    edit("unstable_stream/algorithms/settings.py", "BUILT_IN: Final", TOY_SETTINGS)
    edit(
        "unstable_stream/algorithms/settings.py", "PPOConfig, A2CConfig)", "PPOConfig, A2CConfig, ToyConfig)"
    )
    check(tmp_path, ALGORITHM_FOLLOWS)


def test_an_event_is_its_struct_its_topic_and_its_table(edit: Edit, tmp_path: Path) -> None:
    edit("unstable_stream/events/toys.py", "", TOY_EVENT)
    first = "from unstable_stream.events.storable import storable_text"
    edit("unstable_stream/events/__init__.py", first, f"from unstable_stream.events import toys\n{first}")
    edit("topics/toys.toml", "", TOY_TOPIC)
    tables = "unstable_stream/archive/tables/typed.py"
    edit(tables, "\nOPERATIONS = (", "from unstable_stream.events.toys import ToyMoved\n\nOPERATIONS = (")
    edit(
        tables,
        '    table_of(\n        "part_changes",',
        '    table_of("toys", "Moves.", ToyMoved),\n    table_of(\n        "part_changes",',
    )
    check(tmp_path, EVENT_FOLLOWS)

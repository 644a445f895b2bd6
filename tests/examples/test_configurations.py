"""Every configuration among the examples can run; those of the tiny player play and make an update."""

from pathlib import Path

import pytest

import unstable_stream as us
from tests.tiers import chosen
from unstable_stream.runs.config import parse_config, read_toml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGURATIONS = [path for path in sorted(EXAMPLES.rglob("*.toml")) if path.parent.name != "mappings"]


@pytest.fixture(autouse=True)
def _above_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_configuration_is_one(path: Path) -> None:
    assert parse_config(read_toml(path)).train_envs


@pytest.mark.slow
@pytest.mark.timeout(300)
@chosen("name", ["hour/simpletak", "leduc", "several_models"], ["connectfour", "exploitability", "kuhnpoker"])
def test_a_game_of_the_tiny_player_makes_an_update(name: str, tmp_path: Path) -> None:
    few = (
        'backend="inline"',
        "learner.iterations=1",
        "learner.batch_size=32",
        "collector.num_workers=8",
        "evaluation.first_last_games=2",
    )
    run = us.load(EXAMPLES / f"{name}.toml", data=tmp_path, overrides=few)
    run.start(live=False)
    assert run.state == "completed"

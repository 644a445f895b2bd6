"""Another model than the run's is a fixed opponent with its own words, wherever opponents are met."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.api.conftest import train
from tests.inference.byte_model import build_byte_model
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Machine, place

pytestmark = pytest.mark.longer

TICTACTOE = "TicTacToe-v0-train"
TWIN: dict[str, Any] = {"name": "twin", "kind": "model", "path": "tiny-player", "max_tokens": 4}
TWIN["template"] = "tictactoe-board"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that reads and writes bytes; the tiny player has other tokens."""
    return build_byte_model(tmp_path_factory.mktemp("models") / "bytes")


def seats(run: us.Run) -> list[dict[str, Any]]:
    return run.sql(
        "SELECT model_uid, kind, count(*) AS games, sum(turns)::BIGINT AS turns, "
        "count(*) FILTER (ended_invalid) AS invalid FROM seats GROUP BY ALL ORDER BY model_uid"
    ).dicts()


def test_a_run_trains_and_is_evaluated_against_other_models(other: Path, tmp_path: Path) -> None:
    few_tokens = {"name": "bytes", "kind": "model", "path": str(other), "max_tokens": 4}
    met = {"opponents": [few_tokens], "sample_mode": "fixed", "evaluation_opponents": [TWIN]}
    run = train(
        tmp_path, train_envs=[TICTACTOE], **met, max_tokens=4, iterations=1, max_eval_games_per_ckpt=8
    )
    assert run.state == "completed"
    assert run.audit().ok
    assert run.verify().ok
    found = {row["model_uid"]: row for row in seats(run)}
    assert {found[name]["kind"] for name in ("twin", "bytes")} == {"model"}
    assert found["bytes"]["turns"] > 0
    assert found["bytes"]["invalid"] > 0, "random bytes are no moves"
    # It reads and answers in its own tokens: the same weights as the run's first policy, and so as legal.
    assert found["twin"]["games"] == 16
    assert found["twin"]["invalid"] <= 4
    assert {row["kind"] for row in found.values()} == {"checkpoint", "model"}
    assert not run.sql("SELECT 1 FROM trajectories WHERE model_uid IN ('twin', 'bytes')").dicts()


def test_a_directory_is_an_opponent_of_an_evaluation_and_a_player_of_a_tournament(
    other: Path, tmp_path: Path
) -> None:
    evaluated = us.evaluation("tiny-player", str(other), envs=[TICTACTOE], games=2, data=tmp_path)
    (opponent,) = evaluated.config.evaluation.opponents
    assert (opponent.name, opponent.kind, opponent.path) == ("bytes", "model", str(other))
    assert opponent.template == "chat", "its tokenizer has a chat template"
    evaluated.start(live=False)
    assert {row["model_uid"] for row in seats(evaluated)} == {"ckpt-000000", "bytes"}
    players = ["base", str(other), "random-legal"]
    settings: dict[str, Any] = {"model": "tiny-player", "envs": [TICTACTOE], "backend": "inline"}
    met = us.tournament(players, games=2, data=tmp_path, **settings).start(live=False)
    assert {standing.player for standing in met.standings()} == {"base", "bytes", "random-legal"}
    assert met.audit().ok


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"path": "models/that/is/not"}, "opponent 'twin': .*no such directory"),
        ({"path": None}, "needs a path"),
        ({"name": "ckpt-000001"}, "none of the run's checkpoints"),
        ({"sha256": "ab"}, 'sha256 belongs to opponents of kind "adapter"'),
        ({"template": "chat"}, "opponent 'twin': .*template 'chat'"),
        ({"template": "no-such-template"}, "no-such-template"),
        ({"kind": "scripted", "name": "random-legal", "path": None, "num_gpus": 1}, "num_gpus belongs to"),
    ],
)
def test_a_model_that_cannot_play_is_refused_before_the_run_starts(
    tmp_path: Path, changed: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tmp_path, train_envs=[TICTACTOE], evaluation_opponents=[{**TWIN, **changed}])


def test_its_engine_has_a_place_of_its_own() -> None:
    def config(**opponent: Any) -> Any:
        twins = [{**TWIN, **opponent}, {**TWIN, **opponent, "name": "cold", "temperature": 0.0}]
        return parse_config(
            {"model": "m", "train_envs": [{"env_id": TICTACTOE}], "evaluation": {"opponents": twins}}
        )

    (share,) = place(config(), [Machine(gpus=2)]).opponents
    assert (share.service, share.num_gpus) == ("opponent twin", 0.0)
    (share,) = place(config(num_gpus=1), [Machine()]).opponents
    assert share.num_gpus == 0.0
    planned = place(config(num_gpus=0.5), [Machine(gpus=2, gpu_bytes=2**34)])
    (share,) = planned.opponents
    assert (share.num_gpus, share.memory_fraction, len(share.gpus)) == (0.5, 0.45, 1)
    assert [each.service for each in planned.shares] == ["learner", "engine 0", "opponent twin"]
    learner = config().learner.model_copy(update={"num_gpus": 1.0})
    with pytest.raises(ConfigError, match="opponent twin"):
        place(config(num_gpus=1).model_copy(update={"learner": learner}), [Machine(gpus=1)])

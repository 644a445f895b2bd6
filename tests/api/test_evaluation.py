"""A policy is evaluated: a run that trains nothing, against scripted opponents and checkpoints of runs."""

import json
from pathlib import Path

import pytest

import unstable_stream as us
from tests.api.conftest import ENV, train
from tests.places import ask
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.runs.config import parse_config

pytestmark = pytest.mark.longer

GAMES = 8


def seeds(run: us.Run) -> list[tuple[object, ...]]:
    return run.sql(
        "SELECT seed, seat FROM game_outcomes JOIN seats USING (game_id) WHERE kind = 'checkpoint' "
        "AND game_id IN (SELECT game_id FROM seats WHERE model_uid = 'random-legal') ORDER BY seed"
    ).rows()


@pytest.fixture(scope="module")
def judged(trained: us.Run) -> us.Run:
    """The last checkpoint against a scripted opponent and the checkpoints before it."""
    against = ["random-legal", f"{trained.id}@0", f"{trained.id}@1"]
    run = us.evaluation(f"{trained.id}@2", against, games=GAMES, data=trained.place.root)
    assert run.state == "built"
    return run.start(live=False)


def test_a_checkpoint_plays_scripted_opponents_and_checkpoints(trained: us.Run, judged: us.Run) -> None:
    run = judged
    assert run.state == "completed"
    played = run.sql(
        "SELECT o.model_uid, o.kind, count(*), count(DISTINCT seed), list_sort(list(DISTINCT p.seat)) "
        "FROM game_outcomes AS g JOIN seats AS p USING (game_id) JOIN seats AS o "
        "USING (game_id) WHERE p.model_uid = 'ckpt-000002' AND p.seat <> o.seat GROUP BY ALL ORDER BY 1"
    ).rows()
    assert played == [
        ("random-legal", "scripted", GAMES, GAMES, [0, 1]),
        (f"{trained.id}@0", "adapter", GAMES, GAMES, [0, 1]),
        (f"{trained.id}@1", "adapter", GAMES, GAMES, [0, 1]),
    ]
    assert parse_config(json.loads(run.config.model_dump_json())) == run.config
    # The opponents' weights were loaded from the files that were recorded.
    loaded = dict(run.sql("SELECT model_uid, sha256 FROM adapter_proofs").rows())
    recorded = {row["model_uid"]: row["sha256"] for row in trained.checkpoints().dicts()}
    assert loaded == {"ckpt-000002": recorded["ckpt-000002"], f"{trained.id}@1": recorded["ckpt-000001"]}
    assert run.sql("SELECT count(*) FROM updates").rows() == [(0,)]
    assert run.audit().ok
    verified = run.verify()
    assert verified.ok
    assert {check.name: check.compared for check in verified.checks}["games"] == 3 * GAMES


def test_the_same_seed_plays_the_same_games(trained: us.Run, judged: us.Run) -> None:
    data, short = trained.place.root, ["sampling.max_tokens=2"]
    model = us.evaluation("tiny-player", "random-legal", games=GAMES, envs=[ENV], data=data, overrides=short)
    model.start(live=False)
    again = us.evaluation(trained, "random-legal", games=4, seed=1).start(live=False)
    assert len(seeds(judged)) == GAMES
    assert seeds(judged) == seeds(model)
    assert not set(seeds(judged)) & set(seeds(again))
    assert model.sql("SELECT model_uid, iteration, path FROM checkpoints").rows() == [
        ("ckpt-000000", 0, None)
    ]
    assert model.audit().ok
    assert us.list_runs(data)[0].name == "eval-trained"


@pytest.mark.parametrize("how", ["votes", "best_of"])
def test_several_answers_are_recorded_and_verified_like_one(trained: us.Run, how: str) -> None:
    run = us.evaluation(trained, "random-legal", games=4, **{how: 3}).start(live=False)  # type: ignore[arg-type]
    assert getattr(run.config.evaluation, how) == 3
    assert run.audit().ok
    assert run.verify().ok
    with pytest.raises(ConfigError, match=r"votes=2 and evaluation\.best_of=3"):
        us.evaluation(trained, "random-legal", games=4, best_of=3, votes=2)


def test_disguised_games_are_compared_with_the_same_games_as_they_are(trained: us.Run) -> None:
    run = us.evaluation(trained, ["random-legal", "first-legal"], games=GAMES, disguises=3).start(live=False)
    played = "SELECT g.env_id, list_sort(list((seed, model_uid))) FROM game_outcomes AS g JOIN seats"
    games = dict(run.sql(f"{played} USING (game_id) GROUP BY g.env_id").rows())
    assert games["TicTacToe-v0-train"] == games["disguise:board-1-3:TicTacToe-v0-train"]
    effects = us.disguise_effects(run)
    assert [(effect.opponent, effect.games) for effect in effects] == [
        ("first-legal", GAMES),
        ("random-legal", GAMES),
    ]
    for effect in effects:
        assert effect.difference == pytest.approx(effect.named - effect.disguised)
        assert effect.low < effect.difference < effect.high
    assert us.disguise_effects(trained) == []
    assert run.audit().ok
    assert run.verify().ok
    words = [{**ENV, "env_id": "disguise:1-3:TicTacToe-v0-train"}]
    with pytest.raises(
        ConfigError, match=r"or for disguises of its board alone, disguise:board-1-8:TicTacToe"
    ):
        us.evaluation(trained, "random-legal", envs=words)


def test_a_checkpoint_of_another_run_is_trained_against(trained: us.Run, tmp_path: Path) -> None:
    checkpoint = trained.checkpoints().dicts()[-1]
    old = {"name": "old", "kind": "adapter", "path": checkpoint["path"]}
    met = {"opponents": [old], "sample_mode": "fixed", "evaluation_opponents": []}
    run = train(tmp_path, iterations=1, **met)
    kinds = run.sql("SELECT DISTINCT model_uid, kind, trained FROM seats ORDER BY 1").rows()
    assert kinds == [("ckpt-000000", "checkpoint", True), ("old", "adapter", False)]
    assert run.audit().ok
    assert run.verify().ok


@pytest.mark.parametrize(
    ("policy", "against", "error", "words"),
    [
        ("nothing@2", "random-legal", RunError, "no run 'nothing'"),
        ("trained@9", "random-legal", RunError, "no checkpoint of update 9; it has those of 0, 1, 2"),
        ("trained@1x", "random-legal", ConfigError, "expected RUN@UPDATE"),
        ("trained@x/2", "random-legal", RunError, "trains no model .x.; it trains one"),
        ("trained", "trained@5", RunError, "no checkpoint of update 5"),
        ("trained", "random-legl", ConfigError, "random-legal"),
        ("trained", [], ConfigError, "at least one opponent"),
        ("tiny-player", "random-legal", ConfigError, "is a model, which needs environments"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    trained: us.Run, policy: str, against: object, error: type[Exception], words: str
) -> None:
    before = len(us.list_runs(trained.place.root))
    with pytest.raises(error, match=words):
        us.evaluation(policy, against, data=trained.place.root)
    assert len(us.list_runs(trained.place.root)) == before


def test_an_adapter_that_cannot_play_is_refused(trained: us.Run, tmp_path: Path) -> None:
    def opponent(**changes: object) -> dict[str, object]:
        return {"name": "old", "kind": "adapter", "path": str(tmp_path), **changes}

    for against, says in (
        (opponent(), r"no adapter_model\.safetensors or model\.safetensors at"),
        (opponent(name="ckpt-000001"), "that of a checkpoint of the run itself"),
        (opponent(kind="scripted", name="random-legal"), 'path belongs to opponents of kind "adapter"'),
    ):
        with pytest.raises(ConfigError, match=says):
            us.evaluation(trained, [against])
    begun_from = [f"learner.initial_lora_path={tmp_path}"]
    with pytest.raises(ConfigError, match=r"learner\.initial_lora_path: no adapter_model\.safetensors"):
        us.evaluation("tiny-player", "random-legal", envs=[ENV], overrides=begun_from)
    says = r"its base model is tiny-player \(.*\), that of the policy is other/model;"
    with pytest.raises(ConfigError, match=says):
        us.evaluation("other/model", f"{trained.id}@1", envs=[ENV], data=trained.place.root)


def test_the_command_shows_results_and_leaves_a_run(trained: us.Run) -> None:
    against = ["--against", f"{trained.id}@0", "--games", "4", "-q"]
    done = ask(trained.place.root, "eval", trained.id, *against)
    assert done.exit_code == 0, done.output
    assert "Evaluation" in done.output
    assert "unstable-stream fork" not in done.output
    assert us.list_runs(trained.place.root)[0].name == "eval-trained"

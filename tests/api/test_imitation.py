"""Imitation: a run that learns from turns that are played already, by whomever, and is proven like others."""

import asyncio
import json
import math
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.api.conftest import ENV
from tests.forks import assert_killed
from tests.places import ask
from unstable_stream.api.place import Place
from unstable_stream.errors import ArchiveError, ConfigError, GameError, LearnerError
from unstable_stream.events import LearnerUpdate, Step, unpack_tokens
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.services.workers import learner, learner_recovery
from unstable_stream.services.workers.imitation import Choice, StepMaker

pytestmark = pytest.mark.longer

UPDATES = 6
SETTINGS: dict[str, Any] = {
    "model": "tiny-player",
    "train_envs": [ENV],
    "backend": "inline",
    "sampling": {"max_tokens": 1},
    "learner": {"batch_size": 16, "iterations": UPDATES, "learning_rate": 0.002, "parameters": "all"},
}
PERFECT = "model_uid = 'perfect' AND split = 'eval' AND opponent = 'random-legal'"
DIES_AT = 3
SCORE = r"[a-z-]+ [+-]?1 – [a-z-]+ [+-]?1"


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with games of a teacher."""
    data = tmp_path_factory.mktemp("games")
    made = us.play(["perfect", "random-legal"], envs=[ENV], games=8, mirrored=True, data=data)
    us.Run(made.config, Place.at(data), run_id="taught").start(live=False)  # ids decide on the batches
    return data


@pytest.fixture(scope="module")
def imitated(games: Path) -> us.Run:
    made = us.imitate(SETTINGS, PERFECT, weight="2 + reward", data=games)
    run = us.Run(made.config, Place.at(games), run_id="imitated").start(live=False)
    return us.open_run(run.id, games)  # with what it has recorded


def test_a_teachers_turns_are_learned_from_and_each_update_names_them(imitated: us.Run, games: Path) -> None:
    assert imitated.state == "completed"
    ((moves,),) = us.sql(f"SELECT count(*) FROM moves WHERE {PERFECT}", data=games).rows()
    found = imitated.config.imitation
    assert (found.turns, found.made_anew) == (moves, moves)
    assert found.steps == -(-UPDATES * 16 // moves) * moves
    named = us.sql(
        "SELECT DISTINCT m.model_uid, m.run_id = s.run_id, s.reward - m.reward, s.model_uid "
        "FROM update_steps AS u JOIN steps AS s USING (step_id) "
        "JOIN moves AS m ON (m.game_id, m.seat, m.turn_index) = (s.game_id, s.seat, s.turn_index) "
        "WHERE u.run_id = ? AND u.fate = 'trained'",
        [imitated.id],
        data=games,
    ).rows()
    assert named == [("perfect", False, 2.0, "perfect")]
    losses = [loss for (loss,) in imitated.sql("SELECT loss FROM updates ORDER BY update").rows()]
    assert sum(losses[-2:]) < sum(losses[:2])
    assert imitated.games(split="train") == []


def test_it_is_proven_like_others(imitated: us.Run) -> None:
    assert imitated.audit().ok
    verified = imitated.verify(train=True, updates="all")
    assert verified.ok, verified.problems
    compared = {check.name: check.compared for check in verified.checks}
    assert compared["steps"] == imitated.config.imitation.steps
    assert compared["training"] == compared["trained weights"] == UPDATES
    shown = ask(imitated.place.root, "why", "--run", imitated.id, "--update", "2").stdout
    assert "was a move in game" in shown
    assert {"perfect +1 – random-legal -1", "random-legal -1 – perfect +1"} & set(re.findall(SCORE, shown))


def test_a_tampered_token_is_found_by_the_proof(imitated: us.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepMaker, "_answer", lambda *_: [1])
    verified = imitated.verify(games=False)
    assert not verified.ok
    assert "completion_token_ids" in str(verified.problems[0])


def test_a_step_that_cannot_be_made_again_is_a_difference(
    imitated: us.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise GameError("the environment has changed")

    monkeypatch.setattr(StepMaker, "_observed", refuse)
    verified = imitated.verify(games=False)
    assert "it cannot be made again: the environment has changed" in str(verified.problems[0])


def test_its_steps_are_as_old_as_the_run_whenever_their_games_were_played(
    imitated: us.Run, games: Path
) -> None:
    ages = "SELECT DISTINCT s.occurred_at = r.started_at, s.occurred_at > o.finished_at FROM steps AS s "
    joined = "JOIN runs AS r USING (run_id) JOIN game_outcomes AS o USING (game_id) WHERE s.run_id = ?"
    assert us.sql(ages + joined, [imitated.id], data=games).rows() == [(True, True)]


def test_with_the_games_gone_its_policy_plays_and_what_is_left_is_proven(
    imitated: us.Run, games: Path, tmp_path: Path
) -> None:
    shutil.copytree(games, tmp_path / "d")
    ((played,),) = us.sql(f"SELECT DISTINCT run_id FROM moves WHERE {PERFECT}", data=games).rows()
    ask(tmp_path / "d", "rm", played, "--force")
    run = us.open_run(imitated.id, tmp_path / "d")
    verified = run.verify()
    assert verified.ok, verified.problems
    assert {check.name: check.gone for check in verified.checks}["steps"] == run.config.imitation.steps
    evaluation = us.evaluation(run, "random-legal", games=2).start(live=False)
    assert (evaluation.state, evaluation.config.imitates) == ("completed", False)
    assert not us.exploit(f"{run.id}@last", updates=1, data=tmp_path / "d").config.imitates


def test_turns_of_the_own_model_keep_their_tokens(trained: us.Run) -> None:
    data, where = trained.place.root, f"run_id = '{trained.id}' AND policy_version = 2 AND split = 'eval'"
    settings = SETTINGS | {"learner": {**SETTINGS["learner"], "iterations": 1}}
    run = us.imitate(settings, where, data=data).start(live=False)
    assert us.open_run(run.id, data).config.imitation.made_anew == 0
    rows = us.sql(
        "SELECT s.prompt_tokens, t.prompt_tokens, s.completion_tokens, t.completion_tokens, s.model_uid "
        "FROM steps AS s JOIN turns AS t USING (trajectory_id, turn_index) WHERE s.run_id = ?",
        [run.id],
        data=data,
    ).rows()
    assert rows
    for prompt, same_prompt, completion, same_completion, player in rows:
        assert (prompt, completion, player) == (same_prompt, same_completion, f"{trained.id}@2")
    verified = run.verify()
    assert verified.ok, verified.problems


def test_what_was_seen_is_made_again_as_it_was_recorded(trained: us.Run) -> None:
    rows = us.sql(
        "SELECT game_id, seat, turn_index, observation FROM moves "
        "WHERE run_id = ? AND observation IS NOT NULL ORDER BY ALL LIMIT 40",
        [trained.id],
        data=trained.place.root,
    ).rows()
    choices = [Choice(game, seat, turn, 1.0) for game, seat, turn, _ in rows]

    async def seen() -> list[str]:
        async with trained.place.opened_log() as log:
            maker = await StepMaker.read(log, trained.config, str(tiny_player_path()), choices)
        turns = [
            [at for at, each in enumerate(maker.outcomes[game].actions) if each.seat == seat][turn]
            for game, seat, turn, _ in rows
        ]
        return [maker._observed(maker.outcomes[row[0]])[at] for row, at in zip(rows, turns, strict=True)]

    assert asyncio.run(seen()) == [row[3] for row in rows]


def test_of_a_game_that_is_known_in_part_each_turn_has_its_own_prompt(
    trained: us.Run, tmp_path: Path
) -> None:
    rows = us.sql(
        "SELECT m.game_id AS game, m.seat, m.action, m.reward, m.observation, t.prompt_token_ids AS tokens "
        "FROM moves AS m LEFT JOIN turns AS t USING (game_id, game_turn) WHERE m.run_id = ? AND m.seat = 0 "
        "AND m.kind = 'checkpoint' AND m.split = 'eval' AND m.valid ORDER BY m.game_id, m.game_turn",
        [trained.id],
        data=trained.place.root,
    ).dicts()
    longest, _ = Counter(row["game"] for row in rows).most_common(1)[0]
    rows = [row for row in rows if row["game"] == longest]
    tokens = [row.pop("tokens") for row in rows]
    rows[0]["observation"] = None
    (tmp_path / "one.json").write_text(json.dumps(rows))
    names = ("game", "seat", "action", "reward", "observation")
    # Its name is that of a checkpoint, as also the learner's own are called.
    constants = {"env_id": ENV["env_id"], "model": "ckpt-red-000003"}
    mapping = {"columns": {name: name for name in names}, "constants": constants}
    imported = us.import_games(tmp_path / "one.json", mapping, data=tmp_path).run_id
    ((game,),) = us.sql("SELECT game_id FROM game_outcomes", data=tmp_path).rows()
    choices = [Choice(game, 0, turn, 1.0) for turn in range(1, len(rows))]

    async def steps() -> list[Step]:
        async with Place.at(tmp_path).opened_log() as log:
            maker = await StepMaker.read(log, trained.config, str(tiny_player_path()), choices)
        return [maker.step("r", choice) for choice in choices]

    made = asyncio.run(steps())
    assert [unpack_tokens(step.prompt_token_ids).tolist() for step in made] == tokens[1:]
    assert {step.model_uid for step in made} == {f"{imported}@ckpt-red-000003"}


@pytest.mark.parametrize(
    ("where", "weight", "changes", "words"),
    [
        ("model_uid = 'nobody'", "1", {}, "chooses no turn of .*: ask what is there with"),
        ("model_uid == ", "1", {}, "SQL of .imitation.: line 5, column 1: syntax error"),
        ("no_such = 1", "1", {}, "column .?no_such"),
        (PERFECT, "NULL", {}, "is None for turn 0 of seat . in game .*, expected a number"),
        (PERFECT, "1", {"train_envs": [("SimpleTak-v0-train", 2, "simpletak-board")]}, "none of train_envs"),
        (
            PERFECT,
            "1",
            {"max_staleness": 3},
            "whatever their age: leave out trained_models",
        ),
    ],
)
def test_what_cannot_be_imitated_is_refused_in_one_line_and_nothing_is_stored(
    games: Path, where: str, weight: str, changes: dict[str, Any], words: str
) -> None:
    before = [run.run_id for run in us.list_runs(games)]
    with pytest.raises((ArchiveError, ConfigError), match=words) as refused:
        us.imitate(SETTINGS, where, weight=weight, data=games, **changes).start(live=False)
    assert "\n" not in str(refused.value)
    assert [run.run_id for run in us.list_runs(games)] == before


def test_self_play_begins_with_what_was_imitated(imitated: us.Run, games: Path) -> None:
    settings = {**SETTINGS, "learner": {**SETTINGS["learner"], "iterations": 1, "batch_size": 8}}
    run = us.build(config=settings, data=games, init_from=f"{imitated.id}@last").start(live=False)
    last = imitated.checkpoints().dicts()[-1]
    assert run.config.model == last["path"]
    assert not run.config.imitates
    assert run.verify().ok
    with pytest.raises(ConfigError, match=r"trains all, this run .* and lora: set model and"):
        us.build(config=settings, data=games, init_from=f"{imitated.id}@last", parameters="lora")


def test_an_adapter_of_another_size_is_refused_before_a_run_is_recorded(trained: us.Run) -> None:
    other = trained.config.lora.lora_rank + 1
    with pytest.raises(ConfigError, match=f"lora.lora_rank = {other - 1} and lora.lora_alpha = .*: set them"):
        us.build(
            model="tiny-player",
            train_envs=[ENV],
            data=trained.place.root,
            init_from=f"{trained.id}@last",
            overrides=[f"lora.lora_rank={other}"],
        )


def test_a_fork_goes_on_imitating_and_a_resumption_finds_no_more_steps(imitated: us.Run, games: Path) -> None:
    fork = imitated.fork(at=4, learning_rate=0.001).start(live=False)
    assert [number for (number,) in fork.sql("SELECT update FROM updates ORDER BY update").rows()] == [5, 6]
    assert fork.verify().ok
    with pytest.raises(LearnerError, match="has trained on all steps that were published"):
        us.open_run(fork.id, games).resume(live=False, iterations=20)
    with pytest.raises(ConfigError, match=r"would change imitation.where from"):
        us.open_run(fork.id, games).resume(live=False, iterations=7, where="true")


PAIRS = """
SELECT c.game_id, c.game_turn, r.game_id, r.game_turn FROM moves AS c JOIN moves AS r
ON (c.env_id, c.seat, c.observation) = (r.env_id, r.seat, r.observation)
WHERE c.kind = 'checkpoint' AND r.kind = 'checkpoint' AND c.action <> r.action AND c.reward > r.reward
"""
ELSEWHERE = PAIRS.replace("c.observation)", "1)").replace("r.observation)", "1)")


def test_of_pairs_the_chosen_answer_becomes_the_likelier_one(trained: us.Run) -> None:
    run = us.imitate(SETTINGS, pairs=PAIRS, data=trained.place.root, iterations=3).start(live=False)
    asked = "SELECT metrics['pair_margin'], metrics['pair_loss'] FROM updates ORDER BY update"
    first, *_ = run.sql(asked).rows()
    assert first == pytest.approx((0.0, math.log(2)))
    verified = run.verify(train=True)
    assert verified.ok, verified.problems
    ((odd,),) = run.sql(
        "SELECT count(*) FROM (SELECT update, pair FROM update_steps JOIN steps AS s USING (step_id) "
        "WHERE s.run_id = ? GROUP BY ALL HAVING count(*) <> 2)",
        [run.id],
    ).rows()
    assert odd == 0
    assert not us.evaluation(run, "random-legal", games=2).config.imitates


@pytest.mark.parametrize(
    ("pairs", "changes", "words"),
    [
        (f"{PAIRS} AND false", {}, "imitation.pairs chooses no pair"),
        ("SELECT 1", {}, "has 1 columns available but 4 columns specified"),
        ("SELECT 'a', 0, 'b', 0", {}, "names a move that is not in the view moves: a, turn 0, and b, turn 0"),
        (ELSEWHERE, {}, "are not at one position: their prompts differ"),
        (PAIRS, {"batch_size": 15}, "an even learner.batch_size, found 15"),
        (PAIRS, {"algorithm": "cross-entropy"}, 'imitation.pairs and algorithm.type="dpo" belong together'),
    ],
    ids=["none", "columns", "no move", "positions", "odd", "algorithm"],
)
def test_pairs_that_cannot_be_learned_from_are_refused(
    trained: us.Run, pairs: str, changes: dict[str, Any], words: str
) -> None:
    data = trained.place.root
    before = [run.run_id for run in us.list_runs(data)]
    with pytest.raises((ArchiveError, ConfigError), match=words):
        us.imitate(SETTINGS, pairs=pairs, data=data, **changes).start(live=False)
    assert [run.run_id for run in us.list_runs(data)] == before


def _run(data: Path) -> us.Run:
    """A run of a fixed id, which decides on its batches."""
    made = us.imitate(SETTINGS, PERFECT, data=data, iterations=5, save_every=2)
    return us.Run(made.config, Place.at(data), run_id="imitation-to-compare")


def _die_in_an_update(data: str) -> None:
    publish = learner_recovery.publish

    async def dying(producer: Any, events: Any) -> None:
        if any(isinstance(event, LearnerUpdate) and event.update == DIES_AT for event in events):
            os.kill(os.getpid(), signal.SIGKILL)
        await publish(producer, events)

    vars(learner)["publish"] = dying
    _run(Path(data)).start(live=False)


def test_killed_in_an_update_and_resumed_it_has_the_weights_of_one_that_was_not(
    games: Path, tmp_path: Path
) -> None:
    for name in ("whole", "killed"):
        shutil.copytree(games, tmp_path / name)
    whole = _run(tmp_path / "whole").start(live=False)
    assert_killed(_die_in_an_update, str(tmp_path / "killed"))
    killed = us.open_run("imitation-to-compare", tmp_path / "killed")
    killed.resume(live=False)
    starts = killed.sql("SELECT update, resumption FROM updates ORDER BY update").rows()
    assert starts == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    digests = [[row["sha256"] for row in run.checkpoints().dicts()] for run in (whole, killed)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4
    verified = killed.verify(train=True)
    assert verified.ok, verified.problems


def test_by_command(games: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(
        'name = "mine"\nmodel = "tiny-player"\nbackend = "inline"\nsampling = { max_tokens = 1 }\n'
        f'train_envs = [{{ env_id = "{ENV["env_id"]}", template = "{ENV["template"]}" }}]\n'
        "learner = { iterations = 1, batch_size = 8 }\n"
    )
    shown = ask(games, "imitate", str(file), "--where", PERFECT, "-q")
    assert "update 1 of 1, 0 training games" in shown.stdout, shown.output
    assert us.open_run("imitate-mine", games).config.imitation.where == PERFECT

"""A model for each seat of Kuhn poker, killed and resumed: each has its own curve, and the books add up."""

import signal
from pathlib import Path

import pytest

import unstable_stream as us
from tests.whole_run.processes import LaunchedRun, rows
from unstable_stream.events import Checkpoint, GameStarted, LearnerUpdate, RunStarted, Step, trained_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

BOTH = {"opener", "replier"}
UPDATES = 3
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "several_models.toml"
SMALL = (
    "backend=inline",
    f"learner.iterations={UPDATES}",
    "learner.batch_size=48",
    "learner.mini_batch_size=48",
    "collector.num_workers=16",
    "collector.num_eval_workers=8",
    "evaluation.every=2",
    "evaluation.max_eval_games_per_ckpt=4",
)


@pytest.mark.long
async def test_two_models_of_unlike_roles_are_killed_and_go_on(tmp_path: Path) -> None:
    flags = [f"--set={override}" for override in SMALL]
    arguments = ["train", str(EXAMPLE), *flags, "--data", str(tmp_path)]
    async with LaunchedRun(tmp_path, arguments) as first:
        await first.until("an update of each", lambda seen: models_of(seen.of(LearnerUpdate)) == BOTH)
        run_id = first.history.of(RunStarted)[0].run_id
        first.popen.send_signal(signal.SIGKILL)
        assert await first.end() == -signal.SIGKILL
        report = await first.command("verify", run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout

        async with LaunchedRun.resume(first, run_id) as second:
            assert await second.end() == 0, second.told()

        seen = first.history
        made = {(update.model, update.update) for update in seen.of(LearnerUpdate)}
        assert made == {(model, number) for model in BOTH for number in range(1, UPDATES + 1)}
        seats = {
            (seat.seat, trained_model(seat.model_uid)) for game in seen.of(GameStarted) for seat in game.seats
        }
        assert seats == {(0, "opener"), (1, "replier"), (0, None), (1, None)}
        sampled = {step.event_id: trained_model(step.model_uid) for step in seen.of(Step)}
        for update in seen.of(LearnerUpdate):
            assert {sampled[step] for step in update.step_ids} == {update.model}
        parents = {event.model_uid: event.parent_uid for event in seen.of(Checkpoint)}
        assert parents["ckpt-replier-000002"] == "ckpt-replier-000001"
        await first.prove(run_id)
        answer = await first.command("why", "update:replier/2", "--run", run_id, "--json")
        assert answer.returncode == 0, answer.stderr
        assert "ckpt-replier-000001" in answer.stdout
        assert '"opener/' not in answer.stdout, "no update of the other model is behind it"
        query = "SELECT model, policy_version FROM learning_curve WHERE split = 'eval' ORDER BY ALL"
        curve = [(row["model"], row["policy_version"]) for row in rows(tmp_path, query)]
        assert curve == [(model, number) for model in sorted(BOTH) for number in (0, 2, UPDATES)]


@pytest.mark.long
def test_a_model_for_each_side_of_a_game_of_hidden_roles(tmp_path: Path) -> None:
    words = tmp_path / "words.py"  # the tiny player has no words for this game
    words.write_text(
        "class Words:\n"
        "    def format(self, observation):\n        return 'SimpleTak X move:'\n"
        "    def extract(self, completion):\n        return completion, {}\n"
    )
    run = us.build(
        model="tiny-player",
        train_envs=[{"env_id": "SecretMafia-v0-train", "num_players": 6, "template": f"{words}:Words"}],
        trained_models=[{"name": "mafia", "roles": ["Mafia"]}, {"name": "village"}],
        evaluation_opponents=["random-legal"],
        iterations=1,
        batch_size=16,
        mini_batch_size=16,
        max_tokens=4,
        num_workers=8,
        num_eval_workers=4,
        first_last_games=4,
        max_eval_games_per_ckpt=4,
        backend="inline",
        data=tmp_path / "data",
    ).start()
    assert run.state == "completed"
    seats = run.sql(
        "SELECT DISTINCT role = 'Mafia', team, trained_model(model_uid) FROM seats WHERE split = 'train' "
        "ORDER BY team"
    )
    assert seats.rows() == [(True, 0, "mafia"), (False, 1, "village")]
    planned = run.sql(
        "SELECT count(*) FROM planned_seats AS p JOIN seats AS s USING (game_id, seat) WHERE p.role <> s.role"
    )
    assert planned.rows() == [(0,)], "the game deals the roles that were looked at before"
    games = run.sql(
        "SELECT model, policy_version, games FROM learning_curve WHERE split = 'eval' ORDER BY ALL"
    )
    assert [row[:2] for row in games.rows()] == [("mafia", 0), ("mafia", 1), ("village", 0), ("village", 1)]
    assert all(row[2] <= 4 for row in games.rows()), "a team's game counts once"
    assert run.audit().ok
    assert run.verify().ok


@pytest.mark.long
def test_with_two_learners_and_then_against_each_other(tmp_path: Path) -> None:
    run = us.build(
        model="tiny-player",
        train_envs=["TicTacToe-v0-train"],
        trained_models=[{"name": "opener", "seats": [0]}, {"name": "replier", "seats": [1]}],
        num_learners=2,
        iterations=2,
        batch_size=16,
        mini_batch_size=16,
        max_tokens=4,
        num_workers=8,
        num_eval_workers=2,
        first_last_games=2,
        data=tmp_path,
    ).start(live=False)
    assert run.state == "completed"
    made = run.sql('SELECT model, max("update") FROM updates GROUP BY ALL ORDER BY ALL').rows()
    assert made == [("opener", 2), ("replier", 2)]
    assert run.audit().ok
    assert run.verify().ok
    players = [f"{run.id}@{name}/2" for name in ("opener", "replier")]
    meeting = us.tournament(players, games=2, data=tmp_path).start(live=False)
    met = meeting.sql("SELECT DISTINCT model_uid, seat FROM seats ORDER BY ALL").rows()
    assert met == [(player, seat) for player in players for seat in (0, 1)]
    evaluated = us.evaluation(players[1], "random-legal", games=2, data=tmp_path).start(live=False)
    won = evaluated.sql("SELECT model_uid, seat, games FROM win_rates WHERE split = 'eval'").rows()
    assert won == [("ckpt-replier-000002", 1, 2)]


def models_of(updates: list[LearnerUpdate]) -> set[str | None]:
    return {update.model for update in updates}

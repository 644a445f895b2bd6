"""Several trained models in one run: who plays which seat, what each learns from, and when each is done."""

from typing import Any

import pytest

from tests.services.workers.test_game_schedule import (
    RUN,
    begun,
    checkpoint,
    config,
    outcome,
    update,
    wins_all_of_tak,
)
from unstable_stream.errors import ConfigError
from unstable_stream.events import GameStarted, checkpoint_uid, is_checkpoint_uid, trained_model
from unstable_stream.services.launch.preflight import check_config
from unstable_stream.services.workers.game_schedule import GameSchedule

SEATS = [{"name": "first", "seats": [0]}, {"name": "second", "seats": [1]}]
BY_ENVIRONMENT: dict[str, Any] = {
    "train_envs": [{"env_id": "TicTacToe-v0-train"}, {"env_id": "ConnectFour-v0-train"}],
    "trained_models": [{"name": "four", "env_ids": ["ConnectFour-v0-train"]}, {"name": "rest"}],
}
FIXED = {"fixed": [{"name": "random-legal"}], "sample_mode": "fixed"}


def play(games: GameSchedule, split: str = "train") -> list[GameStarted]:
    """Start the next games and finish those of a split; return these."""
    started = games.next_games(0)
    for game in started:
        games.apply(game)
    chosen = [game for game in started if game.split == split]
    for game in chosen:
        games.apply(outcome(game))
    return chosen


def trained(game: GameStarted) -> dict[int, str]:
    return {seat.seat: seat.model_uid for seat in game.seats if seat.trained}


def test_the_name_of_a_checkpoint_tells_its_model() -> None:
    assert checkpoint_uid(12, "proposer") == "ckpt-proposer-000012"
    for model in (None, "proposer", "a1", "B_2_c"):
        uid = checkpoint_uid(12, model)
        assert (trained_model(uid), is_checkpoint_uid(uid)) == (model, True)
    for name in ("random-legal", "ckpt", "ckpt-", "ckpt-proposer", "ckpt-1x-000001", "ckpt-a-b-000001"):
        assert (trained_model(name), is_checkpoint_uid(name)) == (None, False)


@pytest.mark.parametrize(
    ("pool", "learn"),
    [
        ({}, [{0: "ckpt-first-000000", 1: "ckpt-second-000000"}] * 2),
        (FIXED, [{0: "ckpt-first-000000"}, {1: "ckpt-second-000000"}]),
    ],
    ids=["self-play", "fixed opponent"],
)
def test_each_learns_in_its_seat(pool: dict[str, Any], learn: list[dict[int, str]]) -> None:
    games = play(begun(config(trained_models=SEATS, model_pool=pool)))
    assert [trained(game) for game in games[:2]] == learn


def test_past_opponents_are_of_the_model_whose_seat_it_is() -> None:
    settings = config(
        trained_models=SEATS, model_pool={"sample_mode": "lagged", "lag_range": [1, 3], "max_active_lora": 4}
    )
    past = [checkpoint(number, model) for model in ("first", "second") for number in (1, 2, 3)]
    games = play(begun(settings, *past))
    for game in games:
        assert [trained_model(seat.model_uid) for seat in game.seats] == ["first", "second"]
        (mine,) = trained(game)
        assert game.seats[mine].policy_version == 3
        assert game.seats[1 - mine].policy_version in (0, 1, 2)


def test_a_model_for_each_environment() -> None:
    settings = config(**BY_ENVIRONMENT, collector={"num_workers": 32}, learner={"batch_size": 512})
    games = play(begun(settings))
    assert {game.env_id for game in games} == {"TicTacToe-v0-train", "ConnectFour-v0-train"}
    for game in games:
        model = "four" if game.env_id.startswith("Connect") else "rest"
        assert set(trained(game).values()) == {checkpoint_uid(0, model)}


def test_no_game_starts_before_every_model_has_a_policy() -> None:
    games = GameSchedule(RUN, config(trained_models=SEATS))
    games.apply(checkpoint(0, "first"))
    assert games.next_games(0) == []
    games.apply(checkpoint(0, "second"))
    assert games.next_games(0) != []


def test_games_wait_for_the_model_that_has_too_many_steps() -> None:
    games = begun(config(trained_models=SEATS))
    while play(games):
        pass  # until the bound of both
    waiting = games.pending.total()
    assert waiting >= 2 * 32
    games.apply(update(1, 16, model="first"))
    assert play(games) == [], "the second has no room"
    games.apply(update(1, 16, model="second"))
    assert play(games)
    assert games.pending.total() > waiting - 32


def finish(games: GameSchedule, model: str) -> None:
    """Let a model have all its updates."""
    for number in range(1, 6):
        games.apply(update(number, 1, model=model))
        games.apply(checkpoint(number, model))


def test_a_model_that_is_done_plays_on_and_learns_no_more() -> None:
    games = begun(config(trained_models=SEATS))
    finish(games, "first")
    assert not games.training_finished
    for game in play(games):
        assert game.seats[0].model_uid == "ckpt-first-000005"
        assert trained(game) == {1: "ckpt-second-000000"}


def test_where_nobody_learns_any_more_nothing_is_played() -> None:
    games = begun(config(**BY_ENVIRONMENT), *(update(number, 1, model="four") for number in range(1, 6)))
    assert {game.env_id for game in play(games)} == {"TicTacToe-v0-train"}


def test_the_run_is_over_when_every_model_is() -> None:
    games = begun(config(trained_models=SEATS))
    for model in ("first", "second"):
        assert not games.finished
        finish(games, model)
    assert games.training_finished
    while play(games, "eval"):
        pass
    assert games.finished


def test_a_checkpoint_is_evaluated_in_its_own_seats() -> None:
    games = begun(config(trained_models=SEATS))
    played = [game for _ in range(10) for game in play(games, "eval")]
    uids = [checkpoint_uid(0, model) for model in ("first", "second")]
    for game in played:
        (mine,) = [seat.seat for seat in game.seats if seat.model_uid == game.evaluated_uid]
        assert ("first", "second")[mine] == trained_model(game.seats[mine].model_uid)
        assert game.seats[1 - mine].model_uid == "random-legal"
    seeds = {uid: {game.seed for game in played if game.evaluated_uid == uid} for uid in uids}
    assert len(seeds[uids[0]]) == 6
    assert seeds[uids[0]] == seeds[uids[1]], "both play the same games"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trained_models": [{"name": "a", "seats": [0]}]}, "none of a plays seat 1 of TicTacToe-v0-train"),
        ({"trained_models": [{"name": "a"}, {"name": "a", "seats": [1]}]}, "a is there twice"),
        ({"trained_models": [{"name": "a"}, {"name": "b"}]}, "b plays no seat"),
        ({"trained_models": [{"name": "1a"}]}, "trained_models.0.name"),
        (
            {
                "trained_models": SEATS,
                "learner": {"iterations": 0},
                "evaluation": {"round_robin": True, "opponents": ["random-legal", "first-legal"]},
            },
            "nobody for trained_models to name",
        ),
        (
            {"trained_models": [{"name": "a", "roles": ["Mafia"]}]},
            "none of a plays seat 0 of TicTacToe-v0-train in any role",
        ),
        ({"train_envs": [{"env_id": "Taboo-v0-train", "teams": [[0], [0, 1]]}]}, "0 is there twice"),
        ({"train_envs": [{"env_id": "Taboo-v0-train", "teams": [[0, 2]]}]}, "there is no seat 2 of 2"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(**changes)


def test_each_has_settings_of_its_own() -> None:
    settings = config(trained_models=[{"name": "slow", "seats": [0], "learning_rate": 1e-6}, {"name": "b"}])
    assert settings.for_model("slow").learner.learning_rate == 1e-6
    assert settings.for_model("b") == settings
    assert config().for_model(None) == config()


def test_a_curriculum_that_wants_nothing_where_a_model_still_learns_does_not_starve_it() -> None:
    envs = [{"env_id": "TicTacToe-v0-train"}, {"env_id": "SimpleTak-v0-train"}]
    settings = config(
        train_envs=envs,
        trained_models=[
            {"name": "done", "env_ids": ["TicTacToe-v0-train"]},
            {"name": "learning", "env_ids": ["SimpleTak-v0-train"]},
        ],
        model_pool=FIXED,
        collector={"max_pending_steps": 100_000},
        curriculum={"mode": "win-rate", "floor": 0.0},
        learner={"iterations": 1},
    )
    games = begun(settings, update(1, 1, model="done"), checkpoint(1, "done"))
    wins_all_of_tak(games, tak="learning", tictactoe="done")
    assert games.environment_shares() == [0.0, 1.0]
    assert {game.env_id for game in games.next_games(0) if game.split == "train"} == {"SimpleTak-v0-train"}


def test_the_adapter_that_a_model_begins_from_is_looked_for_before_the_run() -> None:
    begun_from = [{"name": "first", "seats": [0], "initial_lora_path": "/not/there"}, {"name": "second"}]
    with pytest.raises(ConfigError, match=r"trained_models, first\.initial_lora_path: no .* at /not/there"):
        check_config(config(trained_models=begun_from))
    with pytest.raises(ConfigError, match="initial_lora_path is an adapter"):
        config(trained_models=begun_from, learner={"parameters": "all"})

"""Games of teams and of hidden roles: who plays together, against whom, and what counts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.inference.byte_model import build_byte_model
from tests.services.workers.test_game_schedule import RUN, begun, checkpoint, config, outcome
from tests.services.workers.test_several_models import play as play_some
from tests.services.workers.test_several_models import trained
from unstable_stream.errors import ConfigError
from unstable_stream.events import GameOutcome, GameStarted, checkpoint_uid, trained_model
from unstable_stream.games.play import play_game
from unstable_stream.games.players import Move, TurnContext
from unstable_stream.games.seating import dealt_roles, declared_teams, seat_players
from unstable_stream.history.proofs.play_again import replay
from unstable_stream.model_pool.ratings import RatingProcessor
from unstable_stream.model_pool.results import RecentResults
from unstable_stream.model_pool.standings import Standings
from unstable_stream.reward_transformations import expected_steps_of
from unstable_stream.runs.sections import CollectorConfig
from unstable_stream.services.launch.preflight import check_config
from unstable_stream.services.workers.game_schedule import GameSchedule

TABOO: dict[str, Any] = {"env_id": "Taboo-v0-train", "num_players": 4}
MAFIA: dict[str, Any] = {"env_id": "SecretMafia-v0-train", "num_players": 6}
BY_ROLE = [{"name": "mafia", "roles": ["Mafia"]}, {"name": "village"}]
CLUES = [{"name": "clues", "roles": ["Clue Giver"]}, {"name": "guesses"}]
FIXED = {"fixed": [{"name": "random-legal"}], "sample_mode": "fixed"}
LAGGED = {"sample_mode": "lagged", "lag_range": [1, 3], "max_active_lora": 4}


def play(games: GameSchedule) -> list[GameStarted]:
    played = play_some(games)
    assert len(played) > 2
    return played


def uids(game: GameStarted) -> list[str]:
    return [seat.model_uid for seat in game.seats]


def test_environments_declare_their_teams() -> None:
    assert declared_teams("Taboo-v0-train", 6) == ((0, 1, 2), (3, 4, 5))
    assert declared_teams("Codenames-v0-train", 4) == ((0, 1), (2, 3))
    assert declared_teams("TicTacToe-v0-train", 2) == ()
    own = declared_teams("tests/services/workers/test_teams.py:Pairs", 4)
    assert own == ((0, 2), ("guest",))


class Pairs:
    """An environment of one's own: it says which seats win together."""

    teams = ((0, 2), ("guest",))

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin."""

    def get_observation(self) -> tuple[int, str]:
        """Return the first seat's turn."""
        return 0, "Say something."

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """End."""
        return True, {}

    def close(self) -> None:
        """Nobody plays it to its end."""


def test_a_team_is_one_opponent_and_learns_as_one() -> None:
    games = play(begun(config(train_envs=[TABOO], model_pool=FIXED)))
    for index, game in enumerate(games):
        mine, theirs = ([0, 1], [2, 3]) if index % 2 == 0 else ([2, 3], [0, 1])
        assert list(trained(game)) == mine
        assert {game.seats[seat].model_uid for seat in theirs} == {"random-legal"}
        assert [seat.team for seat in game.seats] == [0, 0, 1, 1]


def test_a_past_checkpoint_plays_for_its_whole_team() -> None:
    games = play(begun(config(train_envs=[TABOO], model_pool=LAGGED), *map(checkpoint, (1, 2, 3))))
    met = [{seat.model_uid for seat in game.seats if not seat.trained} for game in games]
    assert {len(theirs) for theirs in met} == {1}
    assert 1 < len(set.union(*met) & {checkpoint_uid(number) for number in (0, 1, 2)}) == len(set.union(*met))


def test_what_the_configuration_says_goes_before_what_the_environment_declares() -> None:
    alone = play(begun(config(train_envs=[{**TABOO, "teams": []}], model_pool=FIXED)))
    assert [len(trained(game)) for game in alone[:2]] == [1, 1]
    crossed = play(begun(config(train_envs=[{**TABOO, "teams": [[0, 3], [1, 2]]}], model_pool=FIXED)))
    assert [list(trained(game)) for game in crossed[:2]] == [[0, 3], [1, 2]]


def test_evaluation_games_are_of_teams_too() -> None:
    started = begun(config(train_envs=[TABOO])).next_games(0)
    games = [game for game in started if game.evaluated_uid == checkpoint_uid(0)]
    assert uids(games[0]) == [checkpoint_uid(0)] * 2 + ["random-legal"] * 2
    assert uids(games[1]) == ["random-legal"] * 2 + [checkpoint_uid(0)] * 2


def test_a_model_for_each_role_of_a_game_that_is_won_together() -> None:
    """Clue givers and guessers are two models; a team of the past is of one update, as far as it goes."""
    settings = config(train_envs=[TABOO], trained_models=CLUES, model_pool=LAGGED)
    past = [checkpoint(number, "clues") for number in (1, 2, 3)]
    games = play(begun(settings, *past, checkpoint(1, "guesses")))
    for game in games:
        assert [trained_model(uid) for uid in uids(game)] == ["clues", "guesses"] * 2
        (mine,) = {seat.team for seat in game.seats if seat.trained}
        theirs = [seat.policy_version or 0 for seat in game.seats if seat.team != mine]
        assert theirs[1] == min(theirs[0], 1)
        assert [seat.policy_version for seat in game.seats if seat.team == mine] == [3, 1]


def test_evaluation_waits_for_the_partners_of_the_same_update() -> None:
    games = begun(config(train_envs=[TABOO], trained_models=CLUES, evaluation={"every": 1}))
    games.apply(checkpoint(1, "clues"))

    def evaluated() -> set[str | None]:
        return {uid for game in games._eval_games(0) for uid in uids(game) if game.evaluated_uid}

    assert checkpoint_uid(1, "clues") not in evaluated()
    games.apply(checkpoint(1, "guesses"))
    assert {checkpoint_uid(1, "clues"), checkpoint_uid(1, "guesses")} <= evaluated()


def test_evaluation_takes_the_partner_before_where_that_of_the_update_is_never_made() -> None:
    """With ``save_every = 3`` a run was stopped when clues had 4 updates and guesses 2, and goes on to 5."""
    settings = config(train_envs=[TABOO], trained_models=CLUES, evaluation={"every": 1})
    saved = [("clues", 3), ("clues", 4), ("guesses", 2), ("guesses", 3)]
    games = begun(settings, *(checkpoint(number, model) for model, number in saved))

    def played(until_none_is_left: GameSchedule) -> dict[str | None, set[str]]:
        found: dict[str | None, set[str]] = {}
        while (game := next(until_none_is_left._eval_games(0), None)) is not None:
            until_none_is_left.apply(game)
            beside = found.setdefault(game.evaluated_uid, set())
            beside |= {uid for uid in uids(game) if uid != game.evaluated_uid and trained_model(uid)}
        return found

    before = played(games)
    assert checkpoint_uid(4, "clues") not in before, "update 4 of guesses may still be saved"
    assert before[checkpoint_uid(2, "guesses")] == {checkpoint_uid(0, "clues")}
    assert before[checkpoint_uid(3, "clues")] == {checkpoint_uid(3, "guesses")}
    games.apply(checkpoint(5, "guesses"))
    assert played(games) == {checkpoint_uid(4, "clues"): {checkpoint_uid(3, "guesses")}}
    games.apply(checkpoint(5, "clues"))
    assert len(played(games)) == 2
    assert not games.evaluations.open


def test_evaluation_does_not_wait_for_a_model_that_has_had_its_last_update() -> None:
    """The run goes on with fewer updates than one model has had."""
    settings = config(train_envs=[TABOO], trained_models=CLUES, learner={"iterations": 5})
    games = begun(settings, checkpoint(7, "clues"), checkpoint(5, "guesses"))
    met = {tuple(uids(game)) for game in games._eval_games(0) if game.evaluated_uid == "ckpt-clues-000007"}
    assert met
    assert all("ckpt-guesses-000005" in players for players in met)


def test_the_dealt_role_decides_which_model_plays(tmp_path: Path) -> None:
    reader = str(build_byte_model(tmp_path / "model"))  # the tiny player reads boards only
    settings = config(train_envs=[MAFIA], trained_models=BY_ROLE, model=reader)
    check_config(settings)
    games = play(begun(settings))
    arrangements = set()
    for game in games:
        roles = dealt_roles("SecretMafia-v0-train", 6, game.seed)
        assert [seat.role for seat in game.seats] == [roles[seat] for seat in range(6)]
        for seat in game.seats:
            mafia = seat.role == "Mafia"
            assert trained_model(seat.model_uid) == ("mafia" if mafia else "village")
            assert seat.team == (0 if mafia else 1)
        assert all(seat.trained for seat in game.seats)
        arrangements.add(tuple(uids(game)))
    assert len(arrangements) > 1, "roles change from game to game"


def test_against_a_fixed_opponent_each_side_learns_in_turn() -> None:
    games = play(begun(config(train_envs=[MAFIA], trained_models=BY_ROLE, model_pool=FIXED)))
    learning = [{trained_model(uid) for uid in trained(game).values()} for game in games]
    assert {frozenset(models) for models in learning} == {frozenset(["mafia"]), frozenset(["village"])}


def test_a_role_that_is_never_dealt_is_refused_before_the_run() -> None:
    unknown = [{"name": "mafia", "roles": ["Wolf"]}, {"name": "village"}]
    with pytest.raises(ConfigError, match=r"mafia\.roles: SecretMafia-v0-train deals Detective, Doctor"):
        check_config(config(train_envs=[MAFIA], trained_models=unknown))
    with pytest.raises(ConfigError, match=r"teams of SecretMafia-v0-train: no Wolf; it deals Detective"):
        check_config(config(train_envs=[{**MAFIA, "teams": [["Wolf"], ["Villager"]]}]))
    with pytest.raises(ConfigError, match="deals no roles"):
        check_config(config(trained_models=unknown))


def finished(game: GameStarted, winner: int, **changes: Any) -> GameOutcome:
    """The game, won by a team."""
    won, lost = {"reward": 1.0, "rank": 0}, {"reward": -1.0, "rank": 2}
    seats = tuple(
        msgspec.structs.replace(result, team=seat.team, **(won if seat.team == winner else lost))
        for result, seat in zip(outcome(game).seats, game.seats, strict=True)
    )
    return msgspec.structs.replace(outcome(game), seats=seats, **changes)


def test_a_team_counts_once() -> None:
    games = play(begun(config(train_envs=[TABOO], model_pool=FIXED)))
    results = RecentResults()
    results.add(finished(games[0], winner=0))
    assert results.against("random-legal", "Taboo-v0-train") == (1.0, 1)
    assert results.in_env("Taboo-v0-train") == (1.0,)

    standings = Standings()
    standings.apply(finished(games[0], winner=1, split="eval"))
    (mine,) = (row for row in standings.ladder() if row.player != "random-legal")
    assert (mine.games, mine.losses) == (1, 1)

    ratings = RatingProcessor(RUN)
    rated = ratings.handle(finished(games[0], winner=0))
    assert {event.games for event in rated} == {1}  # type: ignore[attr-defined]
    assert ratings.skill(checkpoint_uid(0)).mu > ratings.skill("random-legal").mu
    mirror = play(begun(config(train_envs=[TABOO])))[0]
    assert RatingProcessor(RUN).handle(finished(mirror, winner=0)) == []


def test_an_invalid_move_of_a_partner_is_no_opponents() -> None:
    game = play(begun(config(train_envs=[TABOO], model_pool=FIXED)))[0]
    by_partner = finished(game, winner=1, invalid_seat=1, reason="invalid-move")
    by_opponent = finished(game, winner=0, invalid_seat=2, reason="invalid-move")
    assert expected_steps_of(by_partner, filter_opponent_invalid=True) == {None: 6}
    assert expected_steps_of(by_opponent, filter_opponent_invalid=True) == {}


class Talks:
    """Gives clues and guesses; seat 1 never knows the word."""

    async def move(self, turn: TurnContext) -> Move:
        """Guess a word, or hint at it."""
        return Move("[house]" if turn.seat % 2 else "You live in it")


async def test_a_game_of_teams_is_played_and_replayed() -> None:
    seating = seat_players("Taboo-v0-train", 4, None, 7, with_roles=True)
    assert seating.roles == {0: "Clue Giver", 1: "Guesser", 2: "Clue Giver", 3: "Guesser"}
    game = msgspec.structs.replace(
        play(begun(config(train_envs=[TABOO], model_pool=FIXED)))[0], seed=7, split="train"
    )
    played = await play_game(game, {seat: Talks() for seat in range(4)}, max_turns=200, now_ms=lambda: 0)
    assert [seat.team for seat in played.outcome.seats] == [0, 0, 1, 1]
    first, second, third, fourth = (seat.reward for seat in played.outcome.seats)
    assert (first, third) == (second, fourth)
    again = replay(played.outcome, CollectorConfig(max_turns=200))
    assert (again.problem, again.outcome) == (None, None)

"""One game: what it puts into the log, who wins, and that it can be played again."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textarena.envs.TicTacToe.env import TicTacToeEnv

from tests.games.builders import (
    GuessingPlayer,
    ListPlayer,
    OwnEnvironment,
    make_seat,
    make_started,
    play,
    players_of,
    shown_again,
    ticking_clock,
)
from unstable_stream.errors import EnvironmentUnavailableError, GameError
from unstable_stream.events import (
    Action,
    GameOutcome,
    Trajectory,
    decode_event,
    encode_event,
    event_id,
    trajectory_id,
    unpack_floats,
    unpack_tokens,
)
from unstable_stream.games.play import PlayedGame, play_game, turn_seed
from unstable_stream.games.players import Move, TurnContext
from unstable_stream.history.proofs.play_again import replay, trajectory_view
from unstable_stream.runs.sections import CollectorConfig

TICTACTOE = "TicTacToe-v0-train"


async def play_cells(
    cells: list[int], *, trained: tuple[int, ...] = (0, 1), max_turns: int = 50
) -> PlayedGame:
    """Play TicTacToe with the cells taken in turn by seats 0 and 1; trained seats record tokens."""
    seats = [make_seat(seat, trained=seat in trained) for seat in range(2)]
    players = {
        seat: ListPlayer([f"[{cell}]" for cell in cells[seat::2]], sampled=seat in trained)
        for seat in range(2)
    }
    return await play(make_started(TICTACTOE, seats), players, max_turns=max_turns)


async def test_a_won_game_by_hand() -> None:
    played = await play_cells([0, 3, 1, 4, 2])
    outcome = played.outcome
    started = make_started(TICTACTOE, 2)
    assert outcome.event_id == event_id("run-test", "game-outcome", started.game_id)
    assert (outcome.game_id, outcome.run_id, outcome.seed) == (started.game_id, "run-test", 7)
    assert (outcome.split, outcome.game_index, outcome.env_id) == ("train", 0, TICTACTOE)
    assert (outcome.reason, outcome.reason_text) == ("win", "Player 0 has won!")
    assert outcome.invalid_seat is None
    assert outcome.actions == tuple(Action(i % 2, f"[{cell}]") for i, cell in enumerate([0, 3, 1, 4, 2]))
    assert outcome.num_turns == 5
    # The clock is read once at the start, twice per move, once at the end.
    assert outcome.occurred_at_ms == 10_000 + 11 * 5
    assert outcome.duration_ms == 55.0
    assert [(s.seat, s.reward, s.rank, s.turns, s.invalid_moves, s.trained) for s in outcome.seats] == [
        (0, 1.0, 0, 3, 0, True),
        (1, -1.0, 1, 2, 0, True),
    ]
    assert outcome.seats[0].model_uid == "ckpt-000003"
    assert outcome.seats[0].policy_version == 3


async def test_trajectories_hold_what_training_needs() -> None:
    first, second = (await play_cells([0, 3, 1, 4, 2])).trajectories
    game = make_started(TICTACTOE, 2).game_id
    assert first.event_id == trajectory_id(game, 0)
    assert second.event_id == trajectory_id(game, 1)
    assert first.rewards == second.rewards == {0: 1.0, 1: -1.0}
    assert (first.reward, second.reward) == (1.0, -1.0)
    assert first.trained_seats == second.trained_seats == (0, 1)
    assert first.opponents == ("ckpt-000003",)
    assert first.occurred_at_ms == second.occurred_at_ms == 10_055
    assert (first.temperature, first.top_p) == (0.7, 0.9)
    assert (first.template, first.policy_version, first.role) == ("default", 3, None)
    assert [turn.turn_index for turn in first.turns] == [0, 1, 2]
    assert [turn.game_turn for turn in first.turns] == [0, 2, 4]
    assert [turn.game_turn for turn in second.turns] == [1, 3]
    turn = first.turns[1]
    assert "Player 1 placed their symbol (X) in cell 3." in turn.observation
    assert turn.prompt == f"prompt of {turn.observation}"
    assert turn.completion == r"I play \boxed{[1]}"
    assert turn.action == "[1]"
    assert turn.valid
    assert turn.finish_reason == "stop"
    assert unpack_tokens(turn.prompt_token_ids).tolist() == [1, 2, 3]
    assert unpack_tokens(turn.completion_token_ids).tolist() == [41, 2]
    assert np.array_equal(unpack_floats(turn.logprobs), np.array([-0.5, -0.25], dtype=np.float32))
    assert turn.format_feedback == {"correct_answer_format": True}
    assert turn.latency_ms == 5.0


async def test_a_draw_is_a_draw() -> None:
    # O X O / O X X / X O O
    outcome = (await play_cells([0, 1, 2, 4, 3, 5, 7, 6, 8])).outcome
    assert outcome.reason == "draw"
    assert [(seat.reward, seat.rank) for seat in outcome.seats] == [(0.0, 0), (0.0, 0)]


async def test_an_invalid_move_is_told_apart_for_both_seats() -> None:
    played = await play_cells([4, 4])
    outcome = played.outcome
    assert (outcome.reason, outcome.invalid_seat) == ("invalid-move", 1)
    assert outcome.reason_text == "cell 4 is already occupied."
    assert outcome.actions == (Action(0, "[4]"), Action(1, "[4]", False))
    assert [seat.invalid_moves for seat in outcome.seats] == [0, 1]
    first, second = played.trajectories
    assert (first.invalid_move, first.opponent_invalid) == (False, True)
    assert (second.invalid_move, second.opponent_invalid) == (True, False)
    assert [turn.valid for turn in second.turns] == [False]
    assert first.rewards == {0: 1.0, 1: -1.0}


async def test_an_allowed_invalid_move_is_recorded_and_play_goes_on() -> None:
    started = make_started(TICTACTOE, 2)
    players = players_of(["[0]", "[1]", "[2]"], ["[0]", "[3]", "[4]"])
    outcome = (await play(started, players, invalid_moves_allowed=1)).outcome
    assert (outcome.reason, outcome.invalid_seat) == ("win", None)
    assert [(a.seat, a.action) for a in outcome.actions if a.valid] == [
        *[(0, "[0]"), (1, "[3]"), (0, "[1]"), (1, "[4]"), (0, "[2]")]
    ]
    assert outcome.actions[1] == Action(1, "[0]", False)
    assert outcome.seats[1].invalid_moves == 1
    # Two turns of one seat have different seeds.
    assert len({turn.seed for player in players.values() for turn in player.turns}) == 6
    assert len(await shown_again(outcome, invalid_moves_allowed=1)) == 6


async def test_a_trained_seat_that_never_moved_is_not_waited_for() -> None:
    played = await play_cells([9])
    assert [trajectory.seat for trajectory in played.trajectories] == [0]
    assert played.trajectories[0].trained_seats == (0,)
    assert played.outcome.seats[1].turns == 0
    assert played.outcome.seats[1].trained


async def test_an_unfinished_game_rewards_nobody() -> None:
    played = await play_cells([0, 3, 1, 4, 2], max_turns=4)
    outcome = played.outcome
    assert (outcome.reason, outcome.reason_text) == ("truncated", "not finished after 4 moves")
    assert [(seat.reward, seat.rank) for seat in outcome.seats] == [(0.0, 0), (0.0, 0)]
    assert outcome.num_turns == 4
    assert [trajectory.reason for trajectory in played.trajectories] == ["truncated", "truncated"]
    assert len(await shown_again(outcome, max_turns=4)) == 4


async def test_seats_without_recorded_tokens_have_no_trajectory() -> None:
    played = await play_cells([0, 3, 1, 4, 2], trained=(1,))
    assert [trajectory.seat for trajectory in played.trajectories] == [1]
    assert played.trajectories[0].opponents == ("scripted-0",)
    assert played.trajectories[0].trained_seats == (1,)


async def test_one_player() -> None:
    started = make_started("GuessTheNumber-v0-train", [make_seat(0, trained=True)], seed=1)
    player = ListPlayer([f"[{number}]" for number in range(1, 21)], sampled=True)
    played = await play(started, {0: player})
    outcome = played.outcome
    (trajectory,) = played.trajectories
    assert outcome.reason in {"win", "draw"}
    assert outcome.seats[0].rank == 0
    assert trajectory.rewards == {0: outcome.seats[0].reward}
    assert trajectory.opponents == ()
    assert len(trajectory.turns) == outcome.num_turns <= 10


async def test_three_players_rank_by_reward() -> None:
    started = make_started("ThreePlayerTicTacToe-v0-train", 3)
    # Seat 1 fills the second row's first four cells (5 to 8) of the 5x5 board.
    players = players_of(
        ["[0]", "[10]", "[20]", "[24]"], ["[5]", "[6]", "[7]", "[8]"], ["[1]", "[12]", "[21]"]
    )
    outcome = (await play(started, players)).outcome
    assert [(seat.reward, seat.rank) for seat in outcome.seats] == [(-1.0, 1), (1.0, 0), (-1.0, 1)]
    assert outcome.reason == "win"
    assert [action.seat for action in outcome.actions] == [0, 1, 2] * 3 + [0, 1]
    assert [turn.num_players for turn in players[2].turns] == [3, 3, 3]


async def test_roles_reach_outcome_and_trajectory() -> None:
    started = make_started("Othello-v0-tiny-train", [make_seat(0, trained=True), make_seat(1)])
    played = await play(started, {0: ListPlayer(["[9, 9]"], sampled=True), 1: ListPlayer([])})
    assert [seat.role for seat in played.outcome.seats] == ["Black", "White"]
    assert played.trajectories[0].role == "Black"
    assert played.trajectories[0].roles == {0: "Black", 1: "White"}


async def test_replay_sees_what_the_players_saw() -> None:
    for env_id in ("KuhnPoker-v0-train", "LiarsDice-v0-train", "TicTacToe-v0"):
        player = GuessingPlayer()
        outcome = (await play(make_started(env_id, 2), {0: player, 1: player})).outcome
        assert await shown_again(outcome) == player.shown


async def test_errors_name_the_game() -> None:
    started = make_started("CharacterConclave-v0-train", 3)
    player = ListPlayer(["[x]"])
    says = f"game {started.game_id}: CharacterConclave-v0-train"
    with pytest.raises(GameError, match=f"{says}: failed at turn 0"):
        await play(started, {0: player, 1: player, 2: player})
    with pytest.raises(GameError, match=r"no player for seat\(s\) \[1\] of TicTacToe"):
        await play(make_started(TICTACTOE, 2), {0: player})
    with pytest.raises(EnvironmentUnavailableError, match=f"{says} cannot"):
        await play(make_started("CharacterConclave-v0-train", 2), {0: player, 1: player})
    with pytest.raises(EnvironmentUnavailableError, match="did you mean"):
        await play(make_started("TicTacTo-v0-train", 2), {0: player, 1: player})


async def test_the_context_names_seat_and_turn() -> None:
    players = players_of(["[0]", "[1]", "[2]"], ["[3]", "[4]"])
    await play(make_started(TICTACTOE, 2, seed=99), players)
    assert [(t.seat, t.turn_index, t.game_turn) for t in players[1].turns] == [(1, 0, 1), (1, 1, 3)]
    assert [t.seed for t in players[1].turns] == [turn_seed(99, 1, 0), turn_seed(99, 1, 1)]
    assert players[0].turns[0].env_id == TICTACTOE


async def test_every_call_that_may_hang_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves that are tried on a copy of the game, too: that is the environment's code all the same."""
    inside = False
    seen: Counter[str] = Counter()

    @contextmanager
    def watched() -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    for name in ("reset", "step"):
        call = getattr(TicTacToeEnv, name)

        def noted(*arguments: Any, name: str = name, call: Any = call, **named: Any) -> Any:
            assert inside, f"{name} is not watched"
            seen[name] += 1
            return call(*arguments, **named)

        monkeypatch.setattr(TicTacToeEnv, name, noted)

    class Trying(ListPlayer):
        async def move(self, turn: TurnContext) -> Move:
            assert turn.accepts is not None
            assert turn.accepts("[8]")
            return await super().move(turn)

    players = {0: Trying(["[0]", "[1]", "[2]"]), 1: Trying(["[3]", "[4]"])}
    await play_game(make_started(TICTACTOE, 2), players, max_turns=9, now_ms=ticking_clock(), watched=watched)
    assert seen == {"reset": 1, "step": 10}, "five moves were made, and five tried"


@given(st.integers(0, 2**31 - 1))
def test_turn_seeds_are_stable_and_distinct(game_seed: int) -> None:
    seeds = [turn_seed(game_seed, seat, turn) for seat in range(4) for turn in range(20)]
    assert seeds == [turn_seed(game_seed, seat, turn) for seat in range(4) for turn in range(20)]
    assert len(set(seeds)) > 75  # 80 draws from 2**31 hardly ever meet


class ForeignEnv(OwnEnvironment):
    """Says anything."""

    def get_observation(self) -> tuple[int, str]:
        return len(self.heard), f"\ud83d\x00 {self.heard}"

    def step(self, action: str) -> tuple[bool, dict[Any, Any]]:
        told: dict[Any, Any] = {"heard": [action, "\udc00"], "\ud800": float("nan"), 3: object()}
        told["itself"] = told
        return super().step(action)[0], told

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, str]]]:
        return {0: 1.0, 1: -1.0}, {seat: {"reason": "so \ud83d", "role": f"R{seat}\ud83d"} for seat in (0, 1)}


async def test_foreign_text_is_played_as_it_is_recorded() -> None:
    started = make_started(f"{__name__}:ForeignEnv", [make_seat(0, trained=True), make_seat(1)])
    players = {0: ListPlayer(["[a] \ud83d"], sampled=True), 1: ListPlayer(["\ud83d\ude00 \udc00"])}
    played = await play(started, players)
    outcome, (trajectory,) = played.outcome, played.trajectories
    assert [action.action for action in outcome.actions] == ["[a] \ufffd", "\U0001f600 \ufffd"]
    assert players[1].turns[0].observation == "\ufffd\x00 ['[a] \ufffd']"
    assert trajectory.turns[0].step_info == {"heard": ["[a] \ufffd", "\ufffd"], "\ufffd": None}
    assert (outcome.reason_text, outcome.seats[0].role) == ("so \ufffd", "R0\ufffd")
    recorded = decode_event(encode_event(outcome))
    assert recorded == outcome
    assert isinstance(recorded, GameOutcome)
    again = replay(recorded, CollectorConfig(max_turns=50))
    assert (again.outcome, again.problem) == (None, None)
    stored = decode_event(encode_event(trajectory))
    assert isinstance(stored, Trajectory)
    assert again.views == [(trajectory.event_id, trajectory_view(stored))]


class BadRewards(OwnEnvironment):
    """Ends with a reward that is no number."""

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, str]]]:
        return {0: float("nan"), 1: 0.0}, {}


async def test_a_reward_that_is_no_number_ends_the_game_with_its_reason() -> None:
    started = make_started(f"{__name__}:BadRewards", 2)
    with pytest.raises(GameError, match=rf"game {started.game_id}.*BadRewards.*the reward of seat 0 is nan"):
        await play(started, players_of(["a"], ["b"]))


@pytest.mark.parametrize("answer", [None, "[4]", Move(4), Move(None)])  # type: ignore[arg-type]
async def test_an_answer_that_is_no_move_ends_the_game_with_its_reason(answer: Any) -> None:
    class Strange:
        async def move(self, turn: TurnContext) -> Move:
            return answer  # type: ignore[no-any-return]

    started = make_started(TICTACTOE, 2)
    with pytest.raises(GameError, match=rf"{started.game_id}.*scripted-0 in seat 0 answered .* at turn 0"):
        await play(started, {0: Strange(), 1: ListPlayer([])})


async def test_the_end_of_every_answer_is_recorded() -> None:
    class Endpoint:
        async def move(self, turn: TurnContext) -> Move:
            cell = turn.turn_index + 3
            ended = ("length", "stop")[turn.turn_index]
            return Move(f"[{cell}]", finish_reason=ended, no_answers=turn.turn_index)

    played = await play(make_started(TICTACTOE, 2), {0: ListPlayer(["[0]", "[1]", "[2]"]), 1: Endpoint()})
    assert played.outcome.finish_reasons == (None, "length", None, "stop", None)
    assert played.outcome.no_answers == {1: 1}
    assert replay(played.outcome, CollectorConfig(max_turns=50)).outcome is None

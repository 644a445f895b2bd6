"""Which games are played: limits, seeds, seats, evaluation plans, and the same plan after a restart."""

import pickle
from collections import Counter, deque
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from unstable_stream.errors import ConfigError
from unstable_stream.events import (
    Action,
    Checkpoint,
    DroppedStep,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    SeatResult,
    StepsDropped,
    Trajectory,
    Turn,
    checkpoint_uid,
    decode_event,
    pack_floats,
    pack_tokens,
)
from unstable_stream.events.seeds import derive_seed, eval_game_seed, train_game_seed
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.workers.game_schedule import GameSchedule

RUN = "run-test"


def config(**sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "model": "tiny-player",
        "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}],
        "collector": {"num_workers": 8, "num_eval_workers": 4},
        "evaluation": {
            "opponents": [{"name": "random-legal"}],
            "every": 2,
            "max_eval_games_per_ckpt": 3,
            "first_last_games": 6,
        },
        "learner": {"iterations": 5, "batch_size": 16, "mini_batch_size": 4},
    }
    for name, keys in sections.items():
        values[name] = {**values.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return parse_config(values)


def checkpoint(iteration: int, model: str | None = None) -> Checkpoint:
    return made(
        Checkpoint,
        occurred_at_ms=iteration,
        iteration=iteration,
        path=f"/checkpoints/{iteration}" if iteration and model is None else None,
        parent_uid=checkpoint_uid(iteration - 1, model) if iteration else None,
        model=model,
    )


def outcome(game: GameStarted, turns: int = 3, invalid_seat: int | None = None) -> GameOutcome:
    seats = tuple(
        made(
            SeatResult,
            **{name: getattr(seat, name) for name in ("seat", "model_uid", "kind", "trained")},
            reward=0.0,
            turns=turns,
        )
        for seat in game.seats
    )
    facts = {"invalid_seat": invalid_seat, "evaluated_uid": game.evaluated_uid}
    return made(GameOutcome, game, seats=seats, reason="draw", **facts)


def update(number: int, trained: int, dropped: int = 0, model: str | None = None) -> LearnerUpdate:
    return made(
        LearnerUpdate,
        occurred_at_ms=number,
        update=number,
        step_ids=tuple(f"{model}-t{number}-{i}" for i in range(trained)),
        dropped=tuple(DroppedStep(f"{model}-d{number}-{i}", "stale") for i in range(dropped)),
        model=model,
    )


def begun(settings: RunConfig, *events: Event) -> GameSchedule:
    """Return a schedule that knows the initial policies and these events."""
    schedule = GameSchedule(RUN, settings)
    first = [checkpoint(0, model) for model in settings.model_names]
    for event in (*first, *events):
        schedule.apply(event)
    return schedule


def play_all(schedule: GameSchedule, split: str, history: list[Event]) -> list[GameStarted]:
    """Start and finish games of one split until the schedule has no more room for them."""
    played = []
    while games := [game for game in schedule.next_games(0) if game.split == split]:
        for game in games:
            for event in (game, outcome(game)):
                schedule.apply(event)
                history.append(event)
        played += games
    return played


def test_games_in_flight_stay_within_the_number_of_workers() -> None:
    schedule = begun(config(collector={"max_pending_steps": 10_000}))
    first = schedule.next_games(0)
    assert Counter(game.split for game in first) == {"train": 8, "eval": 4}
    for game in first:
        schedule.apply(game)
    assert schedule.next_games(0) == []
    schedule.apply(outcome(first[0]))
    assert [game.split for game in schedule.next_games(0)] == ["train"]


def test_collection_pauses_at_the_back_pressure_bound_and_goes_on_after_an_update() -> None:
    schedule = begun(config(collector={"max_pending_steps": 20, "num_eval_workers": 0}))
    played = play_all(schedule, "train", [])
    # Mirror self-play: both seats' three turns become steps.
    assert schedule.pending.total() == 6 * len(played)
    assert 20 <= schedule.pending.total() < 20 + 8 * 6
    before = schedule.pending.total()
    schedule.apply(update(1, trained=16, dropped=2))
    assert schedule.pending.total() == before - 18
    assert schedule.next_games(0)


def test_evaluation_plays_the_same_seeds_for_every_checkpoint_and_every_seat() -> None:
    schedule = GameSchedule(RUN, config(collector={"max_pending_steps": 16}))
    history: list[Event] = []
    games = []
    for iteration in range(6):
        if iteration:
            schedule.apply(update(iteration, trained=0))
        schedule.apply(checkpoint(iteration))
        games += play_all(schedule, "eval", history)
    seeds: dict[str | None, list[int]] = {}
    for game in games:
        seeds.setdefault(game.evaluated_uid, []).append(game.seed)
    first = seeds[checkpoint_uid(0)]
    assert len(set(first)) == 6
    # Every second one, the first and the last; the first and last with more games.
    assert seeds == {checkpoint_uid(n): first[: 3 if n in (2, 4) else 6] for n in (0, 2, 4, 5)}
    evaluated_seats = [next(s.seat for s in g.seats if s.model_uid == g.evaluated_uid) for g in games[:6]]
    assert evaluated_seats == [0, 1, 0, 1, 0, 1]
    assert len({game.game_id for game in games}) == len(games)
    assert schedule.finished


def round_robin(*names: str, games: int = 4, **evaluation: Any) -> RunConfig:
    return config(
        evaluation={
            "round_robin": True,
            "opponents": [{"name": name, "kind": "adapter"} for name in names],
            "max_eval_games_per_ckpt": games,
            "first_last_games": games,
            **evaluation,
        },
        learner={"iterations": 0},
    )


def test_in_a_round_robin_each_pair_plays_each_seed_in_both_seat_orders() -> None:
    settings = round_robin("a", "b", "c")
    schedule = begun(settings)
    games = play_all(schedule, "eval", [])
    assert schedule.finished
    assert len(games) == settings.round_robin_games == 12
    by_seed: dict[int, list[tuple[str, ...]]] = {}
    for game in games:
        assert game.evaluated_uid is None
        by_seed.setdefault(game.seed, []).append(tuple(seat.model_uid for seat in game.seats))
    assert list(by_seed) == [eval_game_seed(settings.seed, "TicTacToe-v0-train", number) for number in (0, 1)]
    orders = [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]
    assert all(sorted(played) == orders for played in by_seed.values())


def test_in_given_seatings_each_seed_is_played_once_in_each() -> None:
    settings = round_robin("a", "b", games=5, seatings=[["a", "b"], ["b", "a"]])
    schedule = begun(settings)
    games = play_all(schedule, "eval", [])
    assert schedule.finished
    assert len(games) == settings.round_robin_games == 5
    assert ["".join(seat.model_uid for seat in game.seats) for game in games] == [
        "ab",
        "ba",
        "ab",
        "ba",
        "ab",
    ]
    seeds = [eval_game_seed(settings.seed, "TicTacToe-v0-train", number) for number in (0, 0, 1, 1, 2)]
    assert [game.seed for game in games] == seeds


@pytest.mark.parametrize(
    ("env", "sides"),
    [
        ({"num_players": 3}, ["abb", "baa", "bab", "aba", "bba", "aab"]),
        ({"num_players": 4, "teams": [[0, 1], [2, 3]]}, ["aabb", "bbaa", "bbaa", "aabb", "aabb", "bbaa"]),
    ],
    ids=["each for itself", "teams"],
)
def test_in_a_round_robin_of_more_seats_each_player_has_each_side_against_the_other(
    env: dict[str, Any], sides: list[str]
) -> None:
    tree = round_robin("a", "b", games=6).model_dump(mode="json")
    settings = parse_config({**tree, "train_envs": [{"env_id": "LiarsDice-v0-train", **env}]})
    schedule = begun(settings)
    games = play_all(schedule, "eval", [])
    assert ["".join(seat.model_uid for seat in game.seats) for game in games] == sides
    assert [game.seed for game in games[::2]] == [game.seed for game in games[1::2]]
    assert len(games) == settings.round_robin_games


@pytest.mark.parametrize("ended", [0, 5])
def test_a_round_robin_goes_on_after_a_restart_with_the_games_that_are_left(ended: int) -> None:
    settings = round_robin("a", "b", "c")
    before: list[Event] = [checkpoint(0)]
    first = GameSchedule(RUN, settings)
    first.apply(before[0])
    whole = play_all(first, "eval", [])
    before += whole[:7]
    before += [outcome(game) for game in whole[:ended]]
    for events in (before, [*before[1:], before[0]]):  # topics are read in any order
        again = GameSchedule(RUN, settings)
        for event in events:
            again.apply(event)
        assert sorted(again.in_flight) == sorted(game.game_id for game in whole[ended:7])
        for game in whole[ended:7]:
            again.apply(outcome(game))
        assert play_all(again, "eval", []) == whole[7:]
        assert again.finished


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner": {"iterations": 5}}, "found learner.iterations=5"),
        ({"evaluation": {"opponents": ["random-legal"]}}, "found 1 in evaluation.opponents"),
        ({"evaluation": {"first_last_games": 5}}, "found 5 games of each pair, expected an even number"),
        ({"train_envs": [{"env_id": "X-v0", "num_players": 1}]}, "X-v0 has one seat, expected two or more"),
        ({"evaluation": {"seatings": [["a"]]}}, "has 2 seats, found 1, a: name one player for each"),
    ],
)
def test_a_round_robin_that_cannot_be_played_is_refused(changes: dict[str, Any], words: str) -> None:
    tree = round_robin("a", "b").model_dump(mode="json")
    for name, keys in changes.items():
        tree[name] = {**tree[name], **keys} if isinstance(keys, dict) else keys
    with pytest.raises(ConfigError, match=words):
        parse_config(tree)


def test_training_and_evaluation_seeds_never_meet() -> None:
    assert {train_game_seed(7, index) % 2 for index in range(500)} == {0}
    assert {eval_game_seed(7, "A", number) % 2 for number in range(500)} == {1}
    assert derive_seed("a", "b") != derive_seed("b", "a")


def test_a_restart_plans_the_same_games() -> None:
    settings = config(
        model_pool={"sample_mode": "random", "fixed": [{"name": "random-legal"}]},
        collector={"max_pending_steps": 100},
    )
    live = GameSchedule(RUN, settings)
    history: list[Event] = [checkpoint(0)]
    live.apply(checkpoint(0))
    started = live.next_games(0)
    for event in (*started, *(outcome(game) for game in started[:5]), checkpoint(1), update(1, trained=4)):
        live.apply(event)
        history.append(event)
    # Topics are read one after another on a restart: outcomes may come before the games they end.
    rebuilt = GameSchedule(RUN, settings)
    for event in sorted(history, key=lambda event: event.TOPIC, reverse=True):
        rebuilt.apply(event)
    assert rebuilt.in_flight == live.in_flight
    assert set(rebuilt.in_flight) == {game.game_id for game in started[5:]}
    assert rebuilt.pending.total() == live.pending.total()
    assert [game.game_id for game in rebuilt.next_games(0)] == [game.game_id for game in live.next_games(0)]


def ended_with(game: GameStarted, least_likely_turn: int | None = None) -> GameOutcome:
    """An outcome of six moves, the seats taking turns."""
    moves = tuple(Action(turn % 2, f"[{turn}]") for turn in range(6))
    return msgspec.structs.replace(outcome(game), actions=moves, least_likely_turn=least_likely_turn)


@pytest.mark.parametrize("where", ["random", "unsure"])
def test_games_play_on_from_a_turn_of_the_trained_seat(where: str) -> None:
    settings = config(
        model_pool={"sample_mode": "fixed", "fixed": [{"name": "random-legal"}]},
        collector={"branches": 3, "branch_at": where, "num_eval_workers": 0, "max_pending_steps": 10_000},
    )
    schedule = begun(settings)
    first = schedule.next_games(0)
    parent = first[0]
    mine = next(seat.seat for seat in parent.seats if seat.trained)
    for event in (*first, checkpoint(1), *(ended_with(game, 4 + mine) for game in first[:2])):
        schedule.apply(event)
    games = schedule.next_games(0)
    assert len(games) == 2  # as many as workers are idle
    for event in (*games, *(ended_with(game) for game in games)):
        schedule.apply(event)
    games += schedule.next_games(0)
    assert [game.position.game_id if game.position else None for game in games] == [parent.game_id] * 3 + [
        first[1].game_id
    ]  # a branch is not branched
    for game in games[:3]:
        assert game.position is not None
        turn = game.position.turn
        assert (game.position.moves, game.position.seed) == (turn, parent.seed)
        assert turn % 2 == mine
        assert where == "random" or turn == 4 + mine
        assert game.moves == ended_with(parent).actions[:turn]
        assert [seat.trained for seat in game.seats] == [seat.trained for seat in parent.seats]
        assert game.seats[mine].model_uid == checkpoint_uid(1)
        assert game.seats[1 - mine].model_uid == "random-legal"
    assert len({game.seed for game in games} | {parent.seed}) == 5


def test_a_position_of_an_environment_that_is_played_no_more_is_passed_over() -> None:
    asked = {"collector": {"branches": 3, "num_eval_workers": 0, "max_pending_steps": 10_000}}
    before = config(**asked)
    schedule = begun(before)
    first = schedule.next_games(0)
    ended = [ended_with(game) for game in first]
    resumed = begun(config(train_envs=[{"env_id": "SimpleTak-v0-train", "num_players": 2}], **asked))
    for event in (*first, *ended):
        resumed.apply(event)
    games = resumed.next_games(0)
    assert len(games) == len(first)
    assert {(game.env_id, game.position) for game in games} == {("SimpleTak-v0-train", None)}


def test_which_games_are_branched_does_not_depend_on_the_order_of_topics() -> None:
    settings = config(collector={"branches": 2, "branch_share": 0.5, "max_pending_steps": 10_000})
    live = begun(settings)
    history: list[Event] = [checkpoint(0)]
    for _ in range(6):
        games = [game for game in live.next_games(0) if game.split == "train"]
        ended = [ended_with(game) for game in games if game.game_index % 3]
        for event in (*games, *ended):
            live.apply(event)
        history += [*games, *ended]
    branched = {game.position.game_id for game in history if isinstance(game, GameStarted) and game.position}
    assert 0 < len(branched) < len(history) / 3
    rebuilt = GameSchedule(RUN, settings)
    for event in sorted(history, key=lambda event: event.TOPIC):
        rebuilt.apply(event)
    assert rebuilt.state().branches == live.state().branches
    loaded = GameSchedule(RUN, settings)
    loaded.load_state(live.state(), [checkpoint(0)])
    assert loaded.next_games(0) == live.next_games(0) == rebuilt.next_games(0)


def test_mirror_seats_are_trained_and_fixed_opponents_are_not() -> None:
    schedule = begun(config())
    mirror = schedule.next_games(0)[0]
    assert [(seat.model_uid, seat.trained) for seat in mirror.seats] == [(checkpoint_uid(0), True)] * 2
    fixed = begun(config(model_pool={"sample_mode": "fixed", "fixed": [{"name": "random-legal"}]}))
    games = [game for game in fixed.next_games(0) if game.split == "train"][:2]
    assert [[(s.kind, s.trained, s.template) for s in game.seats] for game in games] == [
        [("checkpoint", True, "tictactoe-board"), ("scripted", False, None)],
        [("scripted", False, None), ("checkpoint", True, "tictactoe-board")],
    ]


def test_every_seat_of_a_many_player_game_is_filled_and_ours_goes_round() -> None:
    settings = config(
        train_envs=[{"env_id": "ThreePlayerTicTacToe-v0-train", "num_players": 3}],
        model_pool={"sample_mode": "fixed", "fixed": [{"name": "random-legal"}]},
    )
    schedule = begun(settings)
    games = [game for game in schedule.next_games(0) if game.split == "train"][:3]
    assert [[seat.trained for seat in game.seats].index(True) for game in games] == [0, 1, 2]
    assert all(len(game.seats) == 3 for game in games)


@pytest.mark.parametrize(("filtered", "expected"), [(False, 6), (True, 3)])
def test_steps_of_a_game_ended_by_an_invalid_move(filtered: bool, expected: int) -> None:
    schedule = begun(config(collector={"filter_opponent_invalid": filtered}))
    schedule.apply(outcome(schedule.next_games(0)[0], invalid_seat=1))
    assert schedule.pending.total() == expected


def test_other_runs_and_games_of_an_unknown_split_change_nothing() -> None:
    schedule = GameSchedule("another-run", config())
    schedule.apply(checkpoint(0))
    schedule.apply(update(1, trained=3))
    assert schedule.next_games(0) == []
    schedule = begun(config())
    schedule.apply(msgspec.structs.replace(schedule.next_games(0)[0], split="exhibition"))
    assert (schedule.in_flight, schedule.games_in_flight("exhibition")) == ({}, 0)


def test_a_game_given_up_that_finishes_after_all_counts_its_steps() -> None:
    schedule = begun(config())
    game = schedule.next_games(0)[0]
    schedule.apply(game)
    given_up = made(GameAbandoned, game)
    for event in (given_up, outcome(game), given_up, outcome(game)):
        schedule.apply(event)
    assert not schedule.in_flight
    assert schedule.pending.total() == 6


def test_the_run_is_not_over_before_the_last_checkpoint_is_known() -> None:
    updates = [update(number, trained=0) for number in range(1, 6)]
    schedule = begun(config(evaluation={"opponents": []}), *updates)
    assert schedule.training_finished
    assert not schedule.finished
    schedule.apply(checkpoint(5))
    assert schedule.finished


def test_steps_found_lost_are_not_pending_any_more() -> None:
    schedule = begun(config(collector={"max_pending_steps": 16, "num_eval_workers": 0}))
    play_all(schedule, "train", [])
    assert schedule.next_games(0) == []
    steps = range(schedule.pending.total())
    lost = made(StepsDropped, dropped=tuple(DroppedStep(f"s{i}", "expired") for i in steps))
    schedule.apply(lost)
    schedule.apply(lost)
    assert schedule.pending.total() == 0
    assert schedule.next_games(0) != []


@pytest.mark.parametrize("host", [None, RUN])
def test_steps_of_a_trajectory_that_was_set_aside_are_not_pending(host: str | None) -> None:
    schedule = begun(config(collector={"max_pending_steps": 16, "num_eval_workers": 0}))
    games = play_all(schedule, "train", [])
    pending = schedule.pending.total()
    seat = next(seat for seat in games[0].seats if seat.trained)
    turn = made(Turn, completion_token_ids=pack_tokens([1]), logprobs=pack_floats([0.0]), action="")
    player = {"seat": seat.seat, "model_uid": seat.model_uid, "trained": True}
    view = made(Trajectory, games[0], **player, turns=(turn,) * 3)
    other = msgspec.structs.replace(view, run_id="other", event_id="other")
    evaluated = msgspec.structs.replace(view, split="eval", event_id="evaluated")
    filler = DeadLetters(group_of("archiver", host), host)
    shaping = DeadLetters(group_of("reward-processor", host), host)
    unread = StoredRecord("trajectories", 0, 9, "k", b"{]", {}, 0)
    letters = [*filler.about(stored(view), ""), *shaping.about(unread, "")]
    letters += [record for event in (other, evaluated) for record in shaping.about(stored(event), "")]
    for letter in letters:
        schedule.apply(decode_event(letter.value))
    assert schedule.pending.total() == pending
    for letter in shaping.about(stored(view), "") * 2:
        schedule.apply(decode_event(letter.value))
    assert schedule.pending.total() == pending - 3


def stored(event: Event, offset: int = 1) -> StoredRecord:
    record = record_from_event(event)
    return StoredRecord(record.topic, 0, offset, record.key, record.value, record.headers, 0)


def test_it_does_not_grow_with_the_games_played() -> None:
    schedule = begun(config(collector={"max_pending_steps": 10_000}))
    game = schedule.next_games(0)[0]
    assert game.split == "train"
    end, gone = outcome(game), given_up(game)
    flying: deque[int] = deque()
    sizes = []
    for index in range(100_000):
        name = f"game-{index}"
        schedule.apply(msgspec.structs.replace(game, game_id=name, game_index=index))
        flying.append(index)
        if len(flying) == 8:
            flying.rotate(index % 3)  # games do not end in the order in which they began
            ended = flying.popleft()
            name = f"game-{ended}"
            if ended % 20 == 0:
                schedule.apply(msgspec.structs.replace(gone, game_id=name, game_index=ended))
            if ended % 2_000:  # most games that one worker gave up were finished by another
                schedule.apply(msgspec.structs.replace(end, game_id=name, game_index=ended))
        if index in (50_000, 99_999):
            sizes.append(len(pickle.dumps(schedule)))
    assert schedule.pending.train_games > 99_900
    # The games that were given up and never finished: an id here, and a gap in the pool's set of games.
    assert abs(sizes[1] - sizes[0]) < 2_000, sizes


def given_up(game: GameStarted) -> GameAbandoned:
    return made(GameAbandoned, game, reason="gone")


def wins_all_of_tak(schedule: GameSchedule, tak: str | None = None, tictactoe: str | None = None) -> None:
    """Let a model win all of 20 games of SimpleTak, and another half of 20 of TicTacToe."""
    for index in range(40):
        is_tak, won = index % 2 == 0, index % 4 != 1
        seats = {
            0: (checkpoint_uid(0, tak if is_tak else tictactoe), 1.0 if won else -1.0),
            1: ("random-legal", -1.0 if won else 1.0),
        }
        env_id = "SimpleTak-v0-train" if is_tak else "TicTacToe-v0-train"
        schedule.apply(make_outcome(index, seats, env_id=env_id, run_id=RUN))


def test_a_curriculum_moves_games_to_the_environment_with_more_to_learn() -> None:
    envs = [{"env_id": "TicTacToe-v0-train"}, {"env_id": "SimpleTak-v0-train", "weight": 3}]
    fixed = {"sample_mode": "fixed", "fixed": [{"name": "random-legal"}]}
    settings = {"train_envs": envs, "model_pool": fixed, "collector": {"max_pending_steps": 100_000}}
    by_weight = begun(config(**settings))
    by_results = begun(config(**settings, curriculum={"mode": "win-rate", "floor": 0.0}))
    for schedule in (by_weight, by_results):
        wins_all_of_tak(schedule)
    assert by_weight.environment_shares() == [0.25, 0.75]
    assert by_results.environment_shares() == [1.0, 0.0]
    drawn = {game.env_id for game in by_results.next_games(0) if game.split == "train"}
    assert drawn == {"TicTacToe-v0-train"}
    snapshot = by_results.snapshot()
    assert snapshot["curriculum/TicTacToe-v0-train/share"] == 1.0
    assert snapshot["model-pool/TicTacToe-v0-train/score/random-legal"] == 0.5


def test_a_curriculum_of_results_needs_opponents() -> None:
    with pytest.raises(ConfigError, match=r'curriculum\.mode="win-rate" goes by results'):
        config(curriculum={"mode": "win-rate"})

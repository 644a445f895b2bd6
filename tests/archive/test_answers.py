"""The questions the archive must answer, against numbers worked out by hand from ``history``'s rules."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.archive.history import ENV, START_MS, made_up_run, stored
from tests.builders import made
from unstable_stream.algorithms.intervals import t_quantile
from unstable_stream.archive import ArchiveWriter, held, query
from unstable_stream.archive.reference import EXAMPLES, ArchiveRelation, Example, relations
from unstable_stream.archive.view_files import View, load_views
from unstable_stream.events import (
    DroppedStep,
    Event,
    GameOutcome,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunStarted,
    SeatResult,
    Trajectory,
    game_id,
)

_ROOT = Path(__file__).resolve().parents[2]


def _archive(path: Path, events: Sequence[Event]) -> Path:
    with ArchiveWriter(path) as writer:
        written = writer.write(stored(list(events)))
    assert written.records == written.rows["events"]
    assert not written.rejected
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = _archive(tmp_path_factory.mktemp("archive") / "archive.duckdb", made_up_run())
    with held(path):  # it is asked a hundred times
        yield path


_STEPS = [(16, 0, 0), (16, 0, 1), (17, 1, 0), (17, 1, 1), (18, 0, 0), (18, 0, 1), (18, 0, 2), (19, 1, 0)]
_REWARD = {16: -1.0, 17: 0.0, 18: 1.0, 19: -1.0}
_ANSWERS: Final[dict[str, tuple[str, list[tuple[Any, ...]]]]] = {
    "win rate by checkpoint and seat": (
        "SELECT policy_version, seat, games, wins, draws, losses, win_rate FROM win_rates "
        "WHERE split = 'eval' AND policy_version <= 1 ORDER BY policy_version, seat",
        [(0, 0, 1, 0, 0, 1, 0.0), (0, 1, 1, 0, 0, 1, 0.0), (1, 0, 1, 1, 0, 0, 1.0), (1, 1, 1, 0, 0, 1, 0.0)],
    ),
    # Policy 0 trains in games 0 to 3: a win as seat 0, a loss as seat 1, a draw as seat 0, a win as seat 1.
    "win rate names the opponent and counts draws as neither": (
        "SELECT seat, opponent, games, wins, draws, losses, win_rate, mean_reward FROM win_rates "
        "WHERE split = 'train' AND policy_version = 0 ORDER BY seat",
        [(0, "random", 2, 1, 1, 0, 0.5, 0.5), (1, "random", 2, 1, 0, 1, 0.5, 0.0)],
    ),
    # Wilson bounds of 2 in 4: 0.5 ∓ 1.959964 sqrt(0.0625 + 0.0600228) / 1.9603647; of 1 in 4 likewise.
    "the payoff matrix has both sides": (
        "SELECT model_uid, opponent_uid, games, wins, draws, losses, mean_reward, win_rate, "
        "round(win_rate_low, 6), round(win_rate_high, 6) FROM payoff_matrix "
        "WHERE split = 'train' AND 'ckpt-000000' IN (model_uid, opponent_uid) ORDER BY model_uid",
        [
            ("ckpt-000000", "random", 4, 2, 1, 1, 0.25, 0.5, 0.150039, 0.849961),
            ("random", "ckpt-000000", 4, 1, 1, 2, -0.25, 0.25, 0.045587, 0.699358),
        ],
    ),
    "exploitability has a row for each checkpoint and game": (
        "SELECT env_id, update, nash_conv, exploitability, gain_seat_0, gain_seat_1, value_seat_0, "
        "illegal_mass, illegal_mass_max, uniform_nash_conv, failed FROM exploitability ORDER BY env_id",
        [
            ("openspiel:kuhn_poker", 1, 0.5, 0.25, 0.125, 0.375, -0.0625, 0.25, 0.5, 0.9167, False),
            ("openspiel:nim(pile_sizes='1;2')", 1, *[None] * 8, True),
        ],
    ),
    # 8 of 10: the textbook interval; at 0 of 1 the lower bound is 0, the upper z²/(1 + z²).
    "Wilson's interval": (
        "SELECT round(wilson_low(8, 10), 6), round(wilson_high(8, 10), 6), wilson_low(0, 1), "
        "round(wilson_high(0, 1), 6), wilson_low(0, 0)",
        [(0.490162, 0.943318, 0.0, round(3.841459 / 4.841459, 6), None)],
    ),
    "Student's t, as the package has it": (
        "SELECT round(t_quantile(freedom), 4) FROM range(8) AS r(freedom)",
        [(None,), *((round(t_quantile(freedom), 4),) for freedom in range(1, 8))],
    ),
    # Update 1 trains on games 0 to 3: lengths 4; 5 (game 1, seat 1, one turn); 6, 7; and of game 3 (seat 1,
    # two turns) only 4, since its last step is dropped.
    "mean length of completions by update": (
        "SELECT update, steps, mean_completion_tokens, min_completion_tokens, max_completion_tokens "
        "FROM completion_lengths WHERE update = 1",
        [(1, 5, (4 + 5 + 6 + 7 + 4) / 5, 4, 7)],
    ),
    # Train games 4, 9, 14, 19 last six moves; all evaluation games five, as do train games 3, 8, 13, 18, 23.
    "the ten longest games": (
        "SELECT split, game_index, num_turns FROM longest_games LIMIT 10",
        [*(("train", index, 6) for index in (4, 9, 14, 19)), *(("eval", index, 5) for index in range(6))],
    ),
    # Game 4: seat 0 has three turns of 5, 6 and 7 tokens.
    "tokens of a game are summed": (
        "SELECT completion_tokens FROM longest_games WHERE split = 'train' AND game_index = 4",
        [(18,)],
    ),
    # Policy 4 plays games 16 (seat 0: 2 of 3 moves), 17 (seat 1: 2 of 4), 18 (seat 0: 3 of 5) and 19 (seat 1:
    # 3 of 6); the last of these ten steps is dropped.
    "steps behind update five": (
        "SELECT batch_position, game_index, seat, turn_index, policy_version, staleness, opponents, "
        "raw_reward, final_reward, reward FROM update_provenance WHERE update = 5 AND fate = 'trained' "
        "ORDER BY batch_position",
        [
            (place, game, *turn, 4, 0, ["random"], _REWARD[game], _REWARD[game] - 0.25, _REWARD[game] - 0.125)
            for place, (game, *turn) in enumerate([*_STEPS, (19, 1, 1)])
        ],
    ),
    "the dropped step of update five": (
        "SELECT game_index, turn_index, reason FROM update_provenance WHERE update = 5 AND fate = 'dropped'",
        [(19, 2, "overflow")],
    ),
    "games have a state": (
        "SELECT state, count(*) FROM games GROUP BY state ORDER BY state",
        [("abandoned", 1), ("finished", 38), ("in-flight", 1)],
    ),
    "an abandoned game says why": (
        "SELECT game_id, reason FROM games WHERE state = 'abandoned'",
        [(game_id("run-a", "train", 25), "engine failed")],
    ),
    # Steps of games 0 to 23: 46; one dropped by each of six updates.
    "the books balance": (
        "SELECT run_id, games_started, games_finished, games_abandoned, games_in_flight, steps_produced, "
        "steps_trained, steps_dropped, steps_pending FROM ledger",
        [("run-a", 40, 38, 1, 1, 46, 40, 6, 0)],
    ),
    # Policies 0 to 5 play six rated games each, the last one two: mu = 25 + version + games / 8.
    "the latest rating of each model": (
        "SELECT model_uid, mu, games, round(conservative, 9) FROM rating_ladder ORDER BY model_uid",
        [
            *((f"ckpt-{v:06d}", 25 + v + 6 / 8, 6, round(25 + v + 6 / 8 - 24 / 7, 9)) for v in range(6)),
            ("ckpt-000006", 31.25, 2, 31.25 - 24 / 3),
        ],
    ),
    # By update u policies 0 to u - 1 have six rated games each: mu = 25 + version + 6/8, sigma = 8/7.
    "the rating ladder as each update found it": (
        "SELECT update, place, model_uid, mu, games, round(mu - conservative, 6) FROM rating_ladder_history "
        "WHERE update <= 2 ORDER BY update, place",
        [
            (1, 1, "ckpt-000000", 25.75, 6, 3.428571),
            (2, 1, "ckpt-000001", 26.75, 6, 3.428571),
            (2, 2, "ckpt-000000", 25.75, 6, 3.428571),
        ],
    ),
    "the whole history of the ladder": ("SELECT count(*) FROM rating_ladder_history", [(6 * 7 // 2,)]),
    "token arrays are lists": (
        "SELECT len(prompt_token_ids), completion_token_ids, logprobs FROM turns JOIN trajectories "
        "USING (trajectory_id) WHERE split = 'train' AND game_index = 16 AND turn_index = 1",
        [(22, [100, 101, 102, 103, 104, 105], [-0.5] * 6)],
    ),
    "runs know their state": (
        "SELECT name, state, epoch_ms(started_at), config->>'$.learner.iterations' FROM runs",
        [("made up run-a", "completed", START_MS, "6")],
    ),
    "the environment is kept with each seat": ("SELECT DISTINCT env_id FROM seats", [(ENV,)]),
    # 38 games of a second each, from 22:13:20: all in one minute. Moves: 14 evaluation games of 5; 24 train
    # games of 2, 3, 4, 5, 6 over and over: 4 rounds of 20, and 2 + 3 + 4 + 5.
    "throughput by minute": (
        "SELECT games, turns, updates, trained_steps, tokens_per_second = completion_tokens / 60 "
        "FROM throughput",
        [(38, 70 + 94, 6, 40, True)],
    ),
    # Five moves: three by seat 0, two by seat 1.
    "the learning curve takes the evaluated checkpoint": (
        "SELECT policy_version, games, win_rate, mean_reward, mean_turns FROM learning_curve "
        "WHERE split = 'eval' AND policy_version < 2 ORDER BY 1",
        [(0, 2, 0.0, -1.0, 2.5), (1, 2, 0.5, 0.0, 2.5)],
    ),
    # Games 0 to 3: 2, 3, 4, 5 moves; 4, 5, 6 + 7 and 4 + 5 tokens; a second each.
    "lengths of games": (
        "SELECT games, mean_turns, median_turns, round(p95_turns, 6), max_turns, mean_completion_tokens, "
        "mean_duration_s, truncated_rate FROM game_lengths WHERE split = 'train' AND policy_version = 0",
        [(4, 3.5, 3.5, 4.85, 5, 7.75, 1.0, 0.0)],
    ),
    "importance ratios": (
        "SELECT model, update, mean_ratio, max_ratio, clipped_rate, approx_kl, mean_staleness "
        "FROM importance_ratios WHERE update = 2",
        [(None, 2, 1.25, 2.0, 0.25, 0.125, None)],
    ),
}


@pytest.mark.parametrize(("sql", "rows"), _ANSWERS.values(), ids=_ANSWERS)
def test_the_archive_answers(archive: Path, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    assert query(archive, sql).rows == rows


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.question)
def test_every_example_has_an_answer(archive: Path, example: Example) -> None:
    # Nobody makes an invalid move in the made-up history.
    assert bool(query(archive, example.sql).rows) == ("NOT valid" not in example.sql)


@pytest.mark.parametrize("view", load_views(), ids=lambda view: view.name)
def test_every_view_has_an_example_with_an_answer(archive: Path, view: View) -> None:
    assert view.name in view.example
    # The made-up history has nothing rejected or missing, ran nowhere, and is of no sweep or branch.
    empty = {"dead_letter_counts", "missing_of_runs", "where_it_ran", "sweep_results", "branches"}
    empty |= {"costs", "faults"}  # nor of any process
    assert bool(query(archive, view.example).rows) == (view.name not in empty)


@pytest.mark.parametrize("relation", relations(), ids=lambda relation: relation.name)
def test_every_column_is_documented(archive: Path, relation: ArchiveRelation) -> None:
    assert query(archive, f"SELECT * FROM {relation.name} LIMIT 0").columns == list(relation.columns)
    assert all(relation.columns.values())
    assert relation.doc


def test_nothing_in_the_file_is_undocumented(archive: Path) -> None:
    found = query(archive, "SELECT table_name FROM information_schema.tables")
    assert {row[0] for row in found.rows} == {relation.name for relation in relations()}


def test_queries_of_the_page_on_analytics_have_answers(archive: Path) -> None:
    page = (_ROOT / "docs" / "how-to" / "analytics.md").read_text(encoding="utf-8")
    queries = re.findall(r'unstable-stream sql "([^"]+)"', page)
    assert len(queries) == 3
    for sql in queries:
        # The made-up run has six updates.
        assert query(archive, sql.replace("(1, 10, 20)", "(1, 3, 6)")).rows, sql


# -- other histories ------------------------------------------------------------------------------


def test_mirror_games_invalid_moves_and_stale_steps(tmp_path: Path) -> None:
    events: list[Event] = []
    for event in made_up_run(updates=2):
        if isinstance(event, GameOutcome) and event.game_index == 1 and event.split == "train":
            # Game 1 becomes self-play that seat 1 ends by the second of two invalid moves.
            mirror = {"model_uid": "ckpt-000000", "kind": "checkpoint", "policy_version": 0, "trained": True}
            seats = tuple(
                replace(seat, invalid_moves=2 * seat.seat, turns=2 + seat.seat, **mirror)
                for seat in event.seats
            )
            event = replace(event, seats=seats, invalid_seat=1, reason="invalid-move")
        if isinstance(event, LearnerUpdate) and event.update == 2:
            dropped = (*event.dropped, DroppedStep(event.step_ids[0], "stale"))
            event = replace(event, update=3, step_ids=event.step_ids[1:], dropped=dropped)
        events.append(event)
    path = _archive(tmp_path / "archive.duckdb", events)
    of_first = "WHERE split = 'train' AND policy_version = 0"
    curve = query(path, f"SELECT games, invalid_rate FROM learning_curve {of_first}")
    assert curve.rows == [(3, 0.0)]
    columns = "games, invalid_moves, games_ended_invalid, invalid_game_rate"
    # Games 0, 2, 3 and both seats of game 1.
    assert query(path, f"SELECT {columns} FROM invalid_move_rates {of_first}").rows == [(5, 2, 1, 0.2)]
    # Policy 1's steps, trained on by update 3 instead of 2, are one update old.
    stale = query(
        path,
        "SELECT mean_staleness, max_staleness, dropped_stale, dropped_other FROM staleness WHERE update = 3",
    )
    assert stale.rows == [(1.0, 1, 1, 1)]


def _three_players(game: str, models: Sequence[str], rewards: Sequence[float], ranks: Sequence[int]) -> Event:
    seats = tuple(
        made(SeatResult, seat=seat, model_uid=model, reward=reward, rank=rank)
        for seat, (model, reward, rank) in enumerate(zip(models, rewards, ranks, strict=True))
    )
    return made(GameOutcome, occurred_at_ms=START_MS, game_id=game, env_id="Three-v0", seats=seats)


def test_payoff_matrix_of_three_players_counts_pairs(tmp_path: Path) -> None:
    events = [
        # a beats both seats of b, which share a rank; then a comes last behind b and c.
        _three_players("one", ["a", "b", "b"], [1.0, 0.0, 0.0], [0, 1, 1]),
        _three_players("two", ["c", "a", "b"], [1.0, -1.0, 0.5], [0, 2, 1]),
    ]
    path = _archive(tmp_path / "a.duckdb", events)
    sql = "SELECT model_uid, opponent_uid, games, wins, draws, losses FROM payoff_matrix ORDER BY ALL"
    assert query(path, sql).rows == [
        ("a", "b", 3, 2, 0, 1),
        ("a", "c", 1, 0, 0, 1),
        ("b", "a", 3, 1, 0, 2),
        ("b", "c", 1, 0, 0, 1),
        ("c", "a", 1, 1, 0, 0),
        ("c", "b", 1, 1, 0, 0),
    ]


def test_ratings_of_one_moment_and_late_ones(tmp_path: Path) -> None:
    def rating(games: int, at_s: int) -> Event:
        at_ms = START_MS + 1000 * at_s
        made_of = {"model_uid": "m", "mu": float(games), "games": games, "game_id": f"game-{games}"}
        return made(Rating, occurred_at_ms=at_ms, env_id=ENV, **made_of)

    def update(number: int, at_s: int) -> Event:
        return made(LearnerUpdate, occurred_at_ms=START_MS + 1000 * at_s, update=number)

    ratings = [rating(2, 1), rating(1, 1), rating(4, 3), rating(3, 5)]
    path = _archive(tmp_path / "a.duckdb", [*ratings, update(1, 0), update(2, 2), update(3, 5)])
    rows = query(path, "SELECT update, mu, games FROM rating_ladder_history ORDER BY update").rows
    # Nothing was rated by update 1; the game rated third ended after the fourth.
    assert rows == [(2, 2.0, 2), (3, 4.0, 4)]


def _changed(path: Path, change: Callable[[Trajectory], Event]) -> Path:
    """Archive a run one of whose trajectories is changed."""
    events = [
        change(e) if isinstance(e, Trajectory) and e.split == "train" and e.game_index == 2 else e
        for e in made_up_run(updates=1)
    ]
    return _archive(path / "a.duckdb", events)


def test_truncation_rates(tmp_path: Path) -> None:
    def cut(event: Trajectory) -> Event:
        turns = (event.turns[0], replace(event.turns[1], finish_reason="length"))
        return replace(event, turns=turns, reason="truncated")

    sql = (
        "SELECT turns, mean_completion_tokens * 6, max_completion_tokens, truncated_turns, "
        "truncated_turn_rate * 6, games, truncated_games, truncated_game_rate FROM truncation_rates "
        "WHERE split = 'train'"
    )
    # Games 0 to 3 have turns of 4; 5; 6, 7; 4, 5 tokens.
    (row,) = query(_changed(tmp_path, cut), sql).rows
    assert row == pytest.approx((6, 31, 7, 1, 1, 4, 1, 0.25))


def test_a_trajectory_without_a_turn_is_a_game_all_the_same(tmp_path: Path) -> None:
    path = _changed(tmp_path, lambda event: replace(event, turns=()))
    found = query(path, "SELECT games, turns FROM truncation_rates WHERE split = 'train'")
    assert found.rows == [(4, 4)]


def test_dead_letters_are_counted_by_kind(tmp_path: Path) -> None:
    def letter(offset: int, reason: str, topic: str = "metrics") -> Event:
        at = {"occurred_at_ms": START_MS + 1000 * offset, "topic": topic, "offset": offset}
        return made(RecordRejected, consumer="archiver", reason=reason, **at)

    letters = [
        letter(1, "EventDecodeError: first: of two"),
        letter(2, "EventDecodeError: second"),
        letter(3, "UnknownEventError: third"),
        letter(4, "EventDecodeError: elsewhere", "games"),
    ]
    sql = (
        "SELECT topic, error, letters, epoch_ms(last_at - first_at), example FROM dead_letter_counts "
        "WHERE consumer = 'archiver' ORDER BY letters DESC, topic, error"
    )
    assert query(_archive(tmp_path / "a.duckdb", letters), sql).rows == [
        ("metrics", "EventDecodeError", 2, 1000, "EventDecodeError: second"),
        ("games", "EventDecodeError", 1, 0, "EventDecodeError: elsewhere"),
        ("metrics", "UnknownEventError", 1, 0, "UnknownEventError: third"),
    ]


def test_lineage_of_forked_runs(tmp_path: Path) -> None:
    forks = (("a", "elsewhere", 7), ("b", "a", 10), ("c", "b", 15), ("d", "a", 3))
    events = [
        made(RunStarted, run_id=run, name=f"name of {run}", parent_run_id=parent, parent_update=update)
        for run, parent, update in forks
    ]
    path = _archive(tmp_path / "a.duckdb", events)
    rows = query(
        path,
        "SELECT run_id, distance, ancestor_run_id, ancestor_name, at_update FROM run_lineage ORDER BY 1, 2",
    ).rows
    lines = {"a": [("elsewhere", 7)], "b": [("a", 10), ("elsewhere", 7)], "d": [("a", 3), ("elsewhere", 7)]}
    lines["c"] = [("b", 15), *lines["b"]]
    assert rows == [
        (run, distance, ancestor, None if ancestor == "elsewhere" else f"name of {ancestor}", update)
        for run in "abcd"
        for distance, (ancestor, update) in enumerate([(run, None), *lines[run]])
    ]

"""The questions the archive must answer, against numbers worked out by hand from ``history``'s rules."""

import re
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import ENV, START_MS, made_up_run, stored
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.archive.examples import EXAMPLES, Example
from unstable_stream.archive.reference import ArchiveRelation, relations
from unstable_stream.archive.view_files import View, load_views
from unstable_stream.events import DroppedStep, Event, GameOutcome, LearnerUpdate, game_id

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        written = writer.write(stored(made_up_run()))
    assert written.records == written.rows["events"]
    assert not written.rejected
    return path


def test_win_rate_by_checkpoint_and_seat(archive: Path) -> None:
    found = query(
        archive,
        "SELECT policy_version, seat, games, wins, draws, losses, win_rate FROM win_rates "
        "WHERE split = 'eval' AND policy_version <= 2 ORDER BY policy_version, seat",
    )
    assert found.rows == [
        (0, 0, 1, 0, 0, 1, 0.0),
        (0, 1, 1, 0, 0, 1, 0.0),
        (1, 0, 1, 1, 0, 0, 1.0),
        (1, 1, 1, 0, 0, 1, 0.0),
        (2, 0, 1, 1, 0, 0, 1.0),
        (2, 1, 1, 0, 0, 1, 0.0),
    ]


def test_win_rate_names_opponent_and_counts_draws_as_neither(archive: Path) -> None:
    # Policy 0 trains in games 0 to 3: a win as seat 0, a loss as seat 1, a draw as seat 0, a win as seat 1.
    found = query(
        archive,
        "SELECT seat, opponent, games, wins, draws, losses, win_rate, mean_reward FROM win_rates "
        "WHERE split = 'train' AND policy_version = 0 ORDER BY seat",
    )
    assert found.rows == [(0, "random", 2, 1, 1, 0, 0.5, 0.5), (1, "random", 2, 1, 0, 1, 0.5, 0.0)]


def test_exploitability_has_a_row_for_each_checkpoint_and_game(archive: Path) -> None:
    found = query(
        archive,
        "SELECT env_id, update, nash_conv, exploitability, gain_seat_0, gain_seat_1, value_seat_0, "
        "illegal_mass, illegal_mass_max, uniform_nash_conv, failed "
        "FROM exploitability ORDER BY update, env_id",
    )
    assert found.rows[:2] == [
        ("openspiel:kuhn_poker", 1, 0.5, 0.25, 0.125, 0.375, -0.0625, 0.25, 0.5, 0.9167, False),
        ("openspiel:nim(pile_sizes='1;2')", 1, *[None] * 8, True),
    ]


def test_wilson_interval(archive: Path) -> None:
    # 8 of 10: the textbook interval; at 0 of 1 the lower bound is 0, the upper z²/(1 + z²).
    (row,) = query(
        archive,
        "SELECT wilson_low(8, 10), wilson_high(8, 10), wilson_low(0, 1), wilson_high(0, 1), wilson_low(0, 0)",
    ).rows
    assert row[:2] == (pytest.approx(0.490162, abs=1e-6), pytest.approx(0.943318, abs=1e-6))
    assert row[2:4] == (0.0, pytest.approx(3.841459 / 4.841459, abs=1e-6))
    assert row[4] is None


def test_mean_completion_length_by_update(archive: Path) -> None:
    # Update 1 trains on games 0 to 3: lengths 4; 5 (game 1, seat 1, one turn); 6, 7; and of game 3 (seat 1,
    # two turns) only 4, since its last step is dropped.
    found = query(
        archive,
        "SELECT update, steps, mean_completion_tokens, min_completion_tokens, max_completion_tokens "
        "FROM completion_lengths WHERE update = 1",
    )
    assert found.rows == [(1, 5, (4 + 5 + 6 + 7 + 4) / 5, 4, 7)]


def test_ten_longest_games(archive: Path) -> None:
    # Train games 4, 9, 14, 19 last six moves; all evaluation games five, as do train games 3, 8, 13, 18, 23.
    found = query(archive, "SELECT split, game_index, num_turns FROM longest_games LIMIT 10")
    six = [("train", index, 6) for index in (4, 9, 14, 19)]
    assert found.rows == six + [("eval", index, 5) for index in range(6)]


def test_tokens_of_a_game_are_summed(archive: Path) -> None:
    # Game 4: seat 0 has three turns of 5, 6 and 7 tokens.
    found = query(
        archive, "SELECT completion_tokens FROM longest_games WHERE split = 'train' AND game_index = 4"
    )
    assert found.rows == [(18,)]


def test_steps_behind_update_five(archive: Path) -> None:
    # Policy 4 plays games 16 (seat 0: 2 of 3 moves), 17 (seat 1: 2 of 4), 18 (seat 0: 3 of 5) and 19 (seat 1:
    # 3 of 6); the last of these ten steps is dropped.
    found = query(
        archive,
        "SELECT batch_position, game_index, seat, turn_index, policy_version, staleness, opponents, "
        "raw_reward, final_reward, reward FROM update_provenance WHERE update = 5 AND fate = 'trained' "
        "ORDER BY batch_position",
    )
    turns = [
        (16, 0, 0),
        (16, 0, 1),
        (17, 1, 0),
        (17, 1, 1),
        (18, 0, 0),
        (18, 0, 1),
        (18, 0, 2),
        (19, 1, 0),
        (19, 1, 1),
    ]
    reward = {16: -1.0, 17: 0.0, 18: 1.0, 19: -1.0}
    assert found.rows == [
        (place, game, seat, turn, 4, 0, ["random"], reward[game], reward[game] - 0.25, reward[game] - 0.125)
        for place, (game, seat, turn) in enumerate(turns)
    ]
    dropped = query(
        archive,
        "SELECT game_index, turn_index, reason FROM update_provenance WHERE update = 5 AND fate = 'dropped'",
    )
    assert dropped.rows == [(19, 2, "overflow")]


def test_games_have_a_state(archive: Path) -> None:
    found = query(archive, "SELECT state, count(*) FROM games GROUP BY state ORDER BY state")
    assert found.rows == [("abandoned", 1), ("finished", 38), ("in-flight", 1)]
    abandoned = query(archive, "SELECT game_id, reason FROM games WHERE state = 'abandoned'")
    assert abandoned.rows == [(game_id("run-a", "train", 25), "engine failed")]


def test_books_balance(archive: Path) -> None:
    # Steps of games 0 to 23: 46; one dropped by each of six updates.
    (row,) = query(archive, "SELECT * FROM ledger").dicts()
    assert row == {
        "run_id": "run-a",
        "games_started": 40,
        "games_finished": 38,
        "games_abandoned": 1,
        "games_in_flight": 1,
        "steps_produced": 46,
        "steps_trained": 40,
        "steps_dropped": 6,
        "steps_pending": 0,
    }


def test_latest_rating_of_each_model(archive: Path) -> None:
    # Policies 0 to 5 play six rated games each, the last one two: mu = 25 + version + games / 8.
    found = query(archive, "SELECT model_uid, mu, games, conservative FROM rating_ladder ORDER BY model_uid")
    expected = [(f"ckpt-{v:06d}", 25 + v + 6 / 8, 6, 25 + v + 6 / 8 - 24 / 7) for v in range(6)]
    expected.append(("ckpt-000006", 31.25, 2, 31.25 - 24 / 3))
    assert [row[:3] for row in found.rows] == [row[:3] for row in expected]
    assert [row[3] for row in found.rows] == pytest.approx([row[3] for row in expected])


def test_token_arrays_are_lists(archive: Path) -> None:
    found = query(
        archive,
        "SELECT len(prompt_token_ids), completion_token_ids, logprobs FROM turns "
        "WHERE game_id = ? AND turn_index = 1",
        [game_id("run-a", "train", 16)],
    )
    assert found.rows == [(22, [100, 101, 102, 103, 104, 105], [-0.5] * 6)]


def test_runs_know_their_state(archive: Path) -> None:
    (row,) = query(
        archive,
        "SELECT name, state, epoch_ms(started_at) AS ms, config->>'$.learner.iterations' AS n FROM runs",
    ).dicts()
    assert row == {"name": "made up run-a", "state": "completed", "ms": START_MS, "n": "6"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.question)
def test_every_example_has_an_answer(archive: Path, example: Example) -> None:
    rows = query(archive, example.sql).rows
    # Nobody makes an invalid move in the made-up history.
    assert bool(rows) == ("NOT valid" not in example.sql)


@pytest.mark.parametrize("view", load_views(), ids=lambda view: view.name)
def test_every_view_has_an_example_with_an_answer(archive: Path, view: View) -> None:
    assert view.name in view.example
    # Nothing was rejected in the made-up history, nothing is missing, and it ran nowhere.
    empty = ("dead_letter_counts", "missing_of_runs", "where_it_ran")
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
    page = (_ROOT / "docs" / "analytics.md").read_text(encoding="utf-8")
    queries = re.findall(r'unstable-stream sql "([^"]+)"', page)
    assert len(queries) == 3
    for sql in queries:
        # The made-up run has six updates.
        assert query(archive, sql.replace("(1, 10, 20)", "(1, 3, 6)")).rows, sql


def test_environment_is_kept_with_each_seat(archive: Path) -> None:
    assert query(archive, "SELECT DISTINCT env_id FROM seats").rows == [(ENV,)]


def test_throughput_by_minute(archive: Path) -> None:
    # 38 games of a second each, from 22:13:20: all in one minute. Moves: 14 evaluation games of 5; 24 train
    # games of 2, 3, 4, 5, 6 over and over: 4 rounds of 20, and 2 + 3 + 4 + 5.
    (row,) = query(archive, "SELECT * FROM throughput").dicts()
    assert (row["games"], row["turns"], row["updates"], row["trained_steps"]) == (38, 70 + 94, 6, 40)
    assert row["tokens_per_second"] == pytest.approx(row["completion_tokens"] / 60)


def test_learning_curve_takes_the_evaluated_checkpoint(archive: Path) -> None:
    found = query(
        archive,
        "SELECT policy_version, games, win_rate, mean_reward, mean_turns FROM learning_curve "
        "WHERE split = 'eval' AND policy_version < 2 ORDER BY 1",
    )
    # Five moves: three by seat 0, two by seat 1.
    assert found.rows == [(0, 2, 0.0, -1.0, 2.5), (1, 2, 0.5, 0.0, 2.5)]


def test_mirror_games_invalid_moves_and_stale_steps(tmp_path: Path) -> None:
    events: list[Event] = []
    for event in made_up_run(updates=2):
        if isinstance(event, GameOutcome) and event.game_index == 1 and event.split == "train":
            # Game 1 becomes self-play that seat 1 ends by the second of two invalid moves.
            seats = tuple(
                msgspec.structs.replace(
                    seat,
                    model_uid="ckpt-000000",
                    kind="checkpoint",
                    policy_version=0,
                    trained=True,
                    invalid_moves=2 * seat.seat,
                    turns=2 + seat.seat,
                )
                for seat in event.seats
            )
            event = msgspec.structs.replace(event, seats=seats, invalid_seat=1, reason="invalid-move")
        if isinstance(event, LearnerUpdate) and event.update == 2:
            step = event.step_ids[0]
            event = msgspec.structs.replace(
                event,
                update=3,
                step_ids=event.step_ids[1:],
                dropped=(*event.dropped, DroppedStep(step, "stale")),
            )
        events.append(event)
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(events))
    curve = query(
        path, "SELECT games, invalid_rate FROM learning_curve WHERE split = 'train' AND policy_version = 0"
    )
    assert curve.rows == [(3, 0.0)]
    invalid = query(
        path,
        "SELECT games, invalid_moves, games_ended_invalid, invalid_game_rate FROM invalid_move_rates "
        "WHERE split = 'train' AND policy_version = 0",
    )
    # Games 0, 2, 3 and both seats of game 1.
    assert invalid.rows == [(5, 2, 1, 0.2)]
    # Policy 1's steps, trained on by update 3 instead of 2, are one update old.
    stale = query(
        path,
        "SELECT mean_staleness, max_staleness, dropped_stale, dropped_other FROM staleness WHERE update = 3",
    )
    assert stale.rows == [(1.0, 1, 1, 1)]

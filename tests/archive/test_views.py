"""Views beyond the first questions, against numbers worked out by hand from ``history``'s rules."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import ENV, START_MS, made_up_run, stored
from tests.builders import made
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.events import (
    Event,
    GameOutcome,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunStarted,
    SeatResult,
    Trajectory,
    event_id,
)


def _archive(path: Path, events: Sequence[Event]) -> Path:
    with ArchiveWriter(path) as writer:
        assert not writer.write(stored(list(events))).rejected
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _archive(tmp_path_factory.mktemp("views") / "archive.duckdb", made_up_run())


def test_payoff_matrix_has_both_sides(archive: Path) -> None:
    # Policy 0 trains in games 0 to 3 against random: win, loss, draw, win.
    rows = query(
        archive,
        "SELECT model_uid, opponent_uid, games, wins, draws, losses, mean_reward, win_rate, "
        "round(win_rate_low, 6), round(win_rate_high, 6) FROM payoff_matrix "
        "WHERE split = 'train' AND 'ckpt-000000' IN (model_uid, opponent_uid) ORDER BY model_uid",
    ).rows
    # Wilson bounds of 2 in 4: 0.5 ∓ 1.959964 sqrt(0.0625 + 0.0600228) / 1.9603647; of 1 in 4 likewise.
    assert rows == [
        ("ckpt-000000", "random", 4, 2, 1, 1, 0.25, 0.5, 0.150039, 0.849961),
        ("random", "ckpt-000000", 4, 1, 1, 2, -0.25, 0.25, 0.045587, 0.699358),
    ]


def _three_players(game: str, models: Sequence[str], rewards: Sequence[float], ranks: Sequence[int]) -> Event:
    return made(
        GameOutcome,
        run_id="run-t",
        occurred_at_ms=START_MS,
        game_id=game,
        split="eval",
        env_id="Three-v0",
        seats=tuple(
            SeatResult(seat=seat, model_uid=model, kind="checkpoint", reward=reward, rank=rank)
            for seat, (model, reward, rank) in enumerate(zip(models, rewards, ranks, strict=True))
        ),
        reason="win",
    )


def test_payoff_matrix_of_three_players_counts_pairs(tmp_path: Path) -> None:
    path = _archive(
        tmp_path / "a.duckdb",
        [
            # a beats both seats of b, which share a rank; then a comes last behind b and c.
            _three_players("one", ["a", "b", "b"], [1.0, 0.0, 0.0], [0, 1, 1]),
            _three_players("two", ["c", "a", "b"], [1.0, -1.0, 0.5], [0, 2, 1]),
        ],
    )
    rows = query(
        path,
        "SELECT model_uid, opponent_uid, games, wins, draws, losses FROM payoff_matrix ORDER BY ALL",
    ).rows
    assert rows == [
        ("a", "b", 3, 2, 0, 1),
        ("a", "c", 1, 0, 0, 1),
        ("b", "a", 3, 1, 0, 2),
        ("b", "c", 1, 0, 0, 1),
        ("c", "a", 1, 1, 0, 0),
        ("c", "b", 1, 1, 0, 0),
    ]


def test_rating_ladder_as_each_update_found_it(archive: Path) -> None:
    # By update u policies 0 to u - 1 have six rated games each: mu = 25 + version + 6/8, sigma = 8/7.
    rows = query(
        archive,
        "SELECT update, place, model_uid, mu, games, round(mu - conservative, 6) FROM rating_ladder_history "
        "WHERE update <= 2 ORDER BY update, place",
    ).rows
    assert rows == [
        (1, 1, "ckpt-000000", 25.75, 6, 3.428571),
        (2, 1, "ckpt-000001", 26.75, 6, 3.428571),
        (2, 2, "ckpt-000000", 25.75, 6, 3.428571),
    ]
    assert query(archive, "SELECT count(*) FROM rating_ladder_history").rows == [(1 + 2 + 3 + 4 + 5 + 6,)]


def test_ratings_of_one_moment_and_late_ones(tmp_path: Path) -> None:
    def rating(games: int, at_s: int) -> Event:
        return Rating(
            event_id=event_id("run-r", "rating", games),
            run_id="run-r",
            occurred_at_ms=START_MS + 1000 * at_s,
            env_id=ENV,
            model_uid="m",
            mu=float(games),
            sigma=1.0,
            games=games,
            game_id=f"game-{games}",
        )

    def update(number: int, at_s: int) -> Event:
        return made(LearnerUpdate, run_id="run-r", occurred_at_ms=START_MS + 1000 * at_s, update=number)

    events = [
        rating(2, 1),
        rating(1, 1),
        rating(4, 3),
        rating(3, 5),
        update(1, 0),
        update(2, 2),
        update(3, 5),
    ]
    path = _archive(tmp_path / "a.duckdb", events)
    rows = query(path, "SELECT update, mu, games FROM rating_ladder_history ORDER BY update").rows
    # Nothing was rated by update 1; the game rated third ended after the fourth.
    assert rows == [(2, 2.0, 2), (3, 4.0, 4)]


def test_game_lengths(archive: Path) -> None:
    # Games 0 to 3: 2, 3, 4, 5 moves; 4, 5, 6 + 7 and 4 + 5 tokens; a second each.
    rows = query(
        archive,
        "SELECT games, mean_turns, median_turns, round(p95_turns, 6), max_turns, mean_completion_tokens, "
        "mean_duration_s, truncated_rate FROM game_lengths WHERE split = 'train' AND policy_version = 0",
    ).rows
    assert rows == [(4, 3.5, 3.5, 4.85, 5, 7.75, 1.0, 0.0)]


def _changed(change: Callable[[Trajectory], Event]) -> list[Event]:
    return [
        change(e) if isinstance(e, Trajectory) and e.split == "train" and e.game_index == 2 else e
        for e in made_up_run(updates=1)
    ]


def test_truncation_rates(tmp_path: Path) -> None:
    def cut(event: Trajectory) -> Event:
        turns = (event.turns[0], msgspec.structs.replace(event.turns[1], finish_reason="length"))
        return msgspec.structs.replace(event, turns=turns, reason="truncated")

    (row,) = query(
        _archive(tmp_path / "a.duckdb", _changed(cut)),
        "SELECT * FROM truncation_rates WHERE split = 'train'",
    ).dicts()
    # Games 0 to 3 have turns of 4; 5; 6, 7; 4, 5 tokens.
    assert row == {
        "run_id": "run-a",
        "split": "train",
        "env_id": ENV,
        "model_uid": "ckpt-000000",
        "policy_version": 0,
        "turns": 6,
        "mean_completion_tokens": pytest.approx(31 / 6),
        "max_completion_tokens": 7,
        "truncated_turns": 1,
        "truncated_turn_rate": pytest.approx(1 / 6),
        "games": 4,
        "truncated_games": 1,
        "truncated_game_rate": 0.25,
    }


def test_a_trajectory_without_a_turn_is_a_game_all_the_same(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.duckdb", _changed(lambda event: msgspec.structs.replace(event, turns=())))
    found = query(path, "SELECT games, turns FROM truncation_rates WHERE split = 'train'")
    assert found.rows == [(4, 4)]


def test_importance_ratios(archive: Path) -> None:
    found = query(archive, "SELECT * FROM importance_ratios WHERE update = 2").dicts()
    assert found == [
        {
            "run_id": "run-a",
            "model": None,
            "update": 2,
            "mean_ratio": 1.25,
            "max_ratio": 2.0,
            "clipped_rate": 0.25,
            "approx_kl": 0.125,
            "mean_staleness": None,
        }
    ]


def test_dead_letters_are_counted_by_kind(tmp_path: Path) -> None:
    def letter(offset: int, reason: str, topic: str = "metrics") -> Event:
        return RecordRejected(
            event_id=event_id("", "record-rejected", "archiver", topic, 0, offset),
            run_id="",
            occurred_at_ms=START_MS + 1000 * offset,
            consumer="archiver",
            topic=topic,
            partition=0,
            offset=offset,
            reason=reason,
        )

    path = _archive(
        tmp_path / "a.duckdb",
        [
            letter(1, "EventDecodeError: first: of two"),
            letter(2, "EventDecodeError: second"),
            letter(3, "UnknownEventError: third"),
            letter(4, "EventDecodeError: elsewhere", "games"),
        ],
    )
    rows = query(
        path,
        "SELECT consumer, topic, error, letters, epoch_ms(last_at - first_at), example "
        "FROM dead_letter_counts ORDER BY letters DESC, topic, error",
    ).rows
    assert rows == [
        ("archiver", "metrics", "EventDecodeError", 2, 1000, "EventDecodeError: second"),
        ("archiver", "games", "EventDecodeError", 1, 0, "EventDecodeError: elsewhere"),
        ("archiver", "metrics", "UnknownEventError", 1, 0, "UnknownEventError: third"),
    ]


def test_lineage_of_forked_runs(tmp_path: Path) -> None:
    def started(run: str, parent: str | None = None, update: int | None = None) -> Event:
        return made(
            RunStarted,
            run_id=run,
            occurred_at_ms=START_MS,
            name=f"name of {run}",
            parent_run_id=parent,
            parent_update=update,
        )

    events = [
        started("a", "elsewhere", 7),
        started("b", "a", 10),
        started("c", "b", 15),
        started("d", "a", 3),
    ]
    path = _archive(tmp_path / "a.duckdb", events)
    rows = query(
        path,
        "SELECT run_id, distance, ancestor_run_id, ancestor_name, at_update FROM run_lineage ORDER BY 1, 2",
    ).rows
    assert rows == [
        ("a", 0, "a", "name of a", None),
        ("a", 1, "elsewhere", None, 7),
        ("b", 0, "b", "name of b", None),
        ("b", 1, "a", "name of a", 10),
        ("b", 2, "elsewhere", None, 7),
        ("c", 0, "c", "name of c", None),
        ("c", 1, "b", "name of b", 15),
        ("c", 2, "a", "name of a", 10),
        ("c", 3, "elsewhere", None, 7),
        ("d", 0, "d", "name of d", None),
        ("d", 1, "a", "name of a", 3),
        ("d", 2, "elsewhere", None, 7),
    ]

"""What a report knows of a run, against numbers worked out by hand from the made-up history."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.api.place import Place
from unstable_stream.api.why import find_why
from unstable_stream.archive import query
from unstable_stream.errors import RunError
from unstable_stream.events import Checkpoint, Event, GameOutcome, GamePosition, RunStarted, game_id
from unstable_stream.history.views.report import write_report
from unstable_stream.history.views.report.reading import RunFacts, before_and_after, find_runs, read_run
from unstable_stream.history.views.run_list import list_runs


def test_runs_are_found_by_id_beginning_and_name(archive: Path) -> None:
    assert find_runs(archive, ["run-b", "made up run-a", "run-b"]) == ["run-b", "run-a"]
    # Both started at the same moment: the id decides.
    assert find_runs(archive, []) == ["run-a"]
    with pytest.raises(RunError, match="'run-' is the beginning or the name of several runs: run-a, run-b"):
        find_runs(archive, ["run-"])
    with pytest.raises(RunError, match=r"no run 'x' in .*: run-a"):
        find_runs(archive, ["x"])


def test_totals(facts: RunFacts) -> None:
    # Six updates of four games, and seven checkpoints with two evaluation games each.
    assert (facts.totals["train_games"], facts.totals["eval_games"]) == (24, 14)
    assert (facts.totals["updates"], facts.totals["checkpoints"], facts.totals["dead_letters"]) == (6, 7, 1)
    # Train game i of 0 to 23 has 2 + i % 5 moves: 24 * 2 + 4 * 10 + 0 + 1 + 2 + 3; evaluation games have 5.
    assert facts.totals["turns"] == 94 + 70
    assert facts.duration_s == 39.0
    assert facts.drops == [{"reason": "overflow", "steps": 6}]


def test_evaluation_by_opponent(facts: RunFacts) -> None:
    rows = [(row["opponent"], row["version"], row["games"], row["wins"]) for row in facts.opponents]
    assert rows == [("random", 0, 2, 0), *(("random", version, 2, 1) for version in range(1, 7))]
    # Wilson's interval of 1 in 2: centre 1/2, half width z sqrt(1/8 + z²/16) / (1 + z²/2).
    z = 1.959963984540054
    half = z * math.sqrt(1 / 8 + z * z / 16) / (1 + z * z / 2)
    assert facts.opponents[-1]["low"] == pytest.approx(0.5 - half)


def test_difference_of_first_and_last_policy(facts: RunFacts) -> None:
    (change,) = before_and_after(facts)
    assert (change.before["version"], change.after["version"], change.difference) == (0, 6, 0.5)
    assert change.low < 0 < change.high


def test_newcombes_own_example(facts: RunFacts) -> None:
    # Newcombe (1998), table II, case a: 56 of 70 against 48 of 80; method 10 gives 0.0524 to 0.3339.
    def row(wins: int, games: int) -> dict[str, float]:
        z2 = 1.959963984540054**2
        rate = wins / games
        centre = (rate + z2 / 2 / games) / (1 + z2 / games)
        half = math.sqrt(z2 * (rate * (1 - rate) / games + z2 / 4 / games**2)) / (1 + z2 / games)
        return {"win_rate": rate, "low": centre - half, "high": centre + half}

    rows = [{"env_id": "", "opponent": "", "model": None, **of} for of in (row(48, 80), row(56, 70))]
    (change,) = before_and_after(replace(facts, opponents=rows))
    assert (round(change.low, 4), round(change.high, 4)) == (0.0524, 0.3339)


def test_rewards_lengths_and_curve(facts: RunFacts) -> None:
    assert [row["update"] for row in facts.steps] == [1, 2, 3, 4, 5, 6]
    for row in facts.steps:
        assert row["final"] == pytest.approx(row["raw"] - 0.25)
        assert row["step"] == pytest.approx(row["raw"] - 0.125)
    train = [row for row in facts.curve if row["split"] == "train"]
    # Games 0 to 3 are won, lost, drawn and won.
    assert (train[0]["games"], train[0]["wins"], train[0]["draws"]) == (4, 2, 1)


def test_throughput_has_no_holes(facts: RunFacts) -> None:
    assert facts.bin_s == 1.0
    assert [row["second"] for row in facts.throughput] == [float(second) for second in range(1, 38)]
    assert sum(row["games"] for row in facts.throughput) == 38
    assert sum(row["steps"] for row in facts.throughput) == 40


def test_payoff_is_a_zero_sum(facts: RunFacts) -> None:
    scores = {(row["model_uid"], row["opponent"]): row for row in facts.payoff}
    for (one, other), row in scores.items():
        assert row["score"] + scores[other, one]["score"] == pytest.approx(1.0)
    # Policy 0: evaluation lost twice; train games won, lost, drawn, won.
    assert scores["ckpt-000000", "random"]["games"] == 6
    assert scores["ckpt-000000", "random"]["score"] == pytest.approx(2.5 / 6)


def _of_teams(event: Event) -> Event:
    """Let the two players of a game each play a team of two, or of the games whose number is 1 modulo 4 let
    one policy play both; each second of those games is cut short, and the last ends by a partner's move.
    """
    if not isinstance(event, GameOutcome):
        return event
    change = msgspec.structs.replace
    mirror = event.game_index % 4 == 1
    if mirror and event.split == "train":
        me = next(seat for seat in event.seats if seat.trained)
        pairs = tuple(change(me, rank=each.rank, reward=each.reward) for each in event.seats)
    else:
        pairs = event.seats
    seats = tuple(change(pairs[seat // 2], seat=seat, team=seat // 2) for seat in range(4))
    if event.game_index % 4 == 2:
        return change(event, seats=seats, reason="truncated")
    if event.game_index % 4 == 3:
        partner = next(seat.seat for seat in seats if seat.kind == "checkpoint") + 1
        return change(event, seats=seats, reason="invalid", invalid_seat=partner)
    return change(event, seats=seats)


def test_games_of_teams_and_mirror_games_count_as_in_the_learning_curve(tmp_path: Path) -> None:
    path = archived(tmp_path, [_of_teams(event) for event in made_up_run()])
    facts = read_run(path, "run-a", "A")
    columns = "split, policy_version, games, win_rate, draw_rate, invalid_rate, win_rate_low, win_rate_high"
    view = query(path, f"SELECT {columns}, mean_reward, mean_turns FROM learning_curve ORDER BY ALL").rows
    report = [
        (
            *(row["split"], row["version"], row["games"], row["win_rate"], row["draws"] / row["games"]),
            *(row["invalid_rate"], row["low"], row["high"], row["reward"], row["turns"]),
        )
        for row in facts.curve
    ]
    assert report == view
    # Of four training games of a policy one is against itself, one cut short and one ended by a partner.
    train = [row for row in facts.curve if row["split"] == "train"]
    assert [row["games"] for row in train] == [3] * 6
    assert {(row["invalid"], row["truncated_rate"]) for row in train} == {(1, 1 / 3)}
    assert {(row["opponent"], row["games"]) for row in facts.opponents} == {("random", 2)}


def test_a_run_of_all_parameters_has_no_adapter_and_a_later_game_of_a_person_is_not_the_newest_run(
    tmp_path: Path,
) -> None:
    whole = [
        msgspec.structs.replace(event, parameters="all", lora={}) if isinstance(event, Checkpoint) else event
        for event in made_up_run(updates=2)
    ]
    config, parent = {"learner": {"iterations": 2}}, {"parent_run_id": "run-a", "parent_update": 2}
    later = {"run_id": "play", "occurred_at_ms": 2_000_000_000_000}
    play = made(RunStarted, name="play-run-a-2", config=config, **later, **parent)
    archive = archived(tmp_path, [*whole, play])
    assert find_runs(archive, []) == ["run-a"]
    assert [run.run_id for run in list_runs(archive)] == ["run-a", "play"]
    assert read_run(archive, "run-a", "A").totals["trained"] == ["all parameters trained"]
    page = tmp_path / "report.html"
    write_report(archive, ["run-a"], page)
    assert "all parameters trained" in page.read_text()
    assert "LoRA adapter" not in page.read_text()
    printed = repr(find_why(Place.at(tmp_path), "ckpt-000002", run="run-a"))
    assert "all parameters, begun from tiny" in printed
    assert "adapter" not in printed


def test_games_from_a_position_are_no_results(tmp_path: Path) -> None:
    """Of the four training games of each policy, every second one is a branch."""
    start = GamePosition(game_id=game_id("run-a", "train", 0), turn=1, seed=0, moves=1)
    events = [
        msgspec.structs.replace(event, position=start)
        if isinstance(event, GameOutcome) and event.split == "train" and event.game_index % 2
        else event
        for event in made_up_run()
    ]
    path = archived(tmp_path, events)
    facts = read_run(path, "run-a", "A")
    assert [row["games"] for row in facts.curve if row["split"] == "train"] == [2] * 6
    met = query(
        path, "SELECT sum(games)::INT FROM payoff_matrix WHERE split = 'train' AND model_uid = 'random'"
    )
    assert met.rows == [(2 * 6,)]

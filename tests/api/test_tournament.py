"""A tournament: checkpoints of several runs, the base model and scripted opponents, on equal terms."""

import csv
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.api.conftest import ENV, train
from tests.places import ask
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events.seeds import eval_game_seed
from unstable_stream.history.views.best import sure
from unstable_stream.history.views.report.reading import read_run
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.history.views.written import share
from unstable_stream.inference.tiny_player import tiny_player_path

pytestmark = pytest.mark.longer

GAMES = 4


@pytest.fixture(scope="module")
def runs(trained: us.Run) -> tuple[us.Run, us.Run]:
    """Two runs of one place."""
    return trained, train(trained.place.root, name="second", iterations=1)


@pytest.fixture(scope="module")
def played(runs: tuple[us.Run, us.Run]) -> us.Run:
    first, _ = runs
    players = [f"{first.id}@1", first, "second", "base", "random-legal"]
    run = us.tournament(players, games=GAMES, data=first.place.root)
    assert run.state == "built"
    return run.start(live=False)


def names(runs: tuple[us.Run, us.Run]) -> set[str]:
    first, second = runs
    return {f"{first.id}@1", f"{first.id}@2", f"{second.id}@1", "base", "random-legal"}


def test_each_pair_plays_the_same_seeds_in_both_seat_orders(
    played: us.Run, runs: tuple[us.Run, us.Run]
) -> None:
    assert played.state == "completed"
    games = played.sql("SELECT seed, models FROM game_outcomes").rows()
    # Those of an evaluation.
    seeds = {eval_game_seed(played.config.seed, ENV["env_id"], number) for number in range(GAMES // 2)}
    players = names(runs)
    expected = {(seed, a, b) for seed in seeds for a in players for b in players if a != b}
    assert len(games) == len(expected)
    assert {(seed, *models) for seed, models in games} == expected


def test_its_log_adds_up_and_its_games_are_played_again_alike(played: us.Run) -> None:
    assert played.audit().ok
    verified = played.verify()
    assert verified.ok
    assert {check.name: check.compared for check in verified.checks}["games"] == 10 * GAMES
    assert played.sql("SELECT count(*) FROM updates").rows() == [(0,)]


def test_one_query_has_the_results_of_all_pairs(played: us.Run, runs: tuple[us.Run, us.Run]) -> None:
    standings = played.standings()
    assert {row.player for row in standings} == names(runs)
    assert {row.games for row in standings} == {4 * GAMES}
    assert sum(row.elo for row in standings) == pytest.approx(0, abs=1e-6)
    rated = played.sql("SELECT model_uid, mu, sigma FROM rating_ladder WHERE env_id = '*'").rows()
    assert {(row.player, row.mu, row.sigma) for row in standings} == set(rated)
    queried = played.sql(
        "SELECT model_uid, opponent_uid, (wins + draws / 2) / games AS score FROM payoff_matrix"
    ).rows()
    assert {(row.player, other): score for row in standings for other, score in row.against.items()} == {
        (player, other): pytest.approx(score) for player, other, score in queried
    }


def test_the_page_has_the_strengths_that_the_terminal_has(played: us.Run) -> None:
    facts = read_run(played.place.archive, played.id, "tournament")
    charts = {chart.key: chart for section in build_sections([facts]) for chart in section.charts}
    (series,) = charts["ladder-0"].series
    rows = list(reversed(played.standings()))
    assert list(series.x) == [row.player for row in rows]
    for numbers, name in ((series.y, "elo"), (series.low, "elo_low"), (series.high, "elo_high")):
        assert numbers == pytest.approx([getattr(row, name) for row in rows])
    assert charts["ladder-0"].more["alpha-rank"] == [share(row.alpha_rank) for row in rows]
    assert charts["ladder-0"].more["ahead of the next"] == [sure(row.ahead_of_next) for row in rows]


def test_a_report_holds_the_result_and_the_digest_of_its_verification(played: us.Run, tmp_path: Path) -> None:
    data, page = played.place.root, tmp_path / "report.html"
    done = ask(data, "report", played.id, "--verify", "--samples", "0", "-o", str(page))
    assert (done.exit_code, f"{played.id}: verified" in done.output) == (0, True), done.output
    printed = ask(data, "verify", played.id, "--json").stdout
    text = page.read_text(encoding="utf-8")
    assert hashlib.sha256(printed.encode()).hexdigest() in text
    assert "verified</span>" in text
    played.report(page, samples=0)
    assert "verified</span>" not in page.read_text(encoding="utf-8")


def test_the_base_model_plays_itself_evenly(runs: tuple[us.Run, us.Run]) -> None:
    # Both seat orders of a seed are sampled alike, so that two equal players mirror each other.
    first, second = runs
    run = us.tournament([f"{first.id}@0", f"{second.id}@0"], games=6, data=first.place.root).start(live=False)
    assert [row.score for row in run.standings()] == [0.5, 0.5]


def test_without_a_checkpoint_the_model_is_named(tmp_path: Path) -> None:
    players = ["base", "random-legal", "perfect"]
    short = ["sampling.max_tokens=2"]
    run = us.tournament(players, games=2, model="tiny-player", envs=[ENV], data=tmp_path, overrides=short)
    run.start(live=False)
    assert [row.games for row in run.standings()] == [4, 4, 4]
    assert run.audit().ok


@pytest.mark.parametrize(
    ("players", "settings", "error", "words"),
    [
        ([], {}, ConfigError, "a tournament of 0: expected at least two players"),
        ("trained", {}, ConfigError, "a tournament of 1: expected at least two players"),
        (["trained", "nothing@2"], {}, RunError, "no run 'nothing'"),
        (["trained", "second@9"], {}, RunError, "no checkpoint of update 9; it has those of 0, 1"),
        (["trained", "random-legl"], {}, RunError, "player 'random-legl': no run .* opponents: random-legal"),
        (["trained@2", "trained"], {}, ConfigError, "@2 is named twice"),
        (["trained", "base"], {"games": 3}, ConfigError, "games=3: expected an even number"),
        (["trained", "base"], {"model": "other"}, ConfigError, "different base models: .*, .* other"),
        (["base", "random-legal"], {}, ConfigError, "no checkpoint of a run plays: name the environments"),
        (["base", "random-legal"], {"envs": [ENV]}, ConfigError, "name the environments, and the base model"),
        (["trained", "no.module:player"], {}, ConfigError, "cannot import no"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_written(
    runs: tuple[us.Run, us.Run], players: object, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    data = runs[0].place.root
    before = len(us.list_runs(data))
    with pytest.raises(error, match=words) as raised:
        us.tournament(players, data=data, **settings)
    assert "\n" not in str(raised.value)
    assert len(us.list_runs(data)) == before


def test_runs_of_different_base_models_are_both_named(runs: tuple[us.Run, us.Run], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(tiny_player_path(), tmp_path / "copied"))
    data = runs[0].place.root
    us.tournament([runs[0], "base"], model=str(copied), data=data)  # the same files are the same model
    (copied / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    other = us.build(model=str(copied), train_envs=[ENV], backend="inline", data=data, iterations=0)
    other.start(live=False)
    with pytest.raises(ConfigError, match="different base models") as raised:
        us.tournament([runs[0], other])
    for part in (f"{runs[0].id}@2 is tiny-player (", f"{other.id}@0 is {copied} (", "leave one out"):
        assert part in str(raised.value)


def test_it_measures_no_exploitability(tmp_path: Path) -> None:
    """A run that does so records it, and a tournament takes the run's settings over."""
    kuhn = "openspiel:kuhn_poker"
    run = train(tmp_path, train_envs=[kuhn], exploitability=[kuhn], evaluation_opponents=[], iterations=0)
    assert len(run.sql("FROM exploitability").rows()) == 1
    meeting = us.tournament([f"{run.id}@0", "random-legal"], games=2, data=tmp_path).start(live=False)
    assert meeting.state == "completed"
    assert meeting.sql("FROM exploitability").rows() == []


def test_games_of_three_seats_are_rated_by_pairs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "tiny-player", "envs": [("LiarsDice-v0-train", 3, "default")]}
    players = ["random-legal", "first-legal"]
    played = us.tournament(players, games=6, data=tmp_path, **settings).start(live=False)
    assert played.state == "completed"
    alone = played.sql(
        "SELECT model_uid, seat FROM seats "
        "QUALIFY count(*) OVER (PARTITION BY game_id, model_uid) = 1 ORDER BY ALL"
    ).rows()
    assert alone == [(player, seat) for player in ("first-legal", "random-legal") for seat in range(3)]
    standings = played.standings()
    assert {row.player: row.games for row in standings} == {"first-legal": 12, "random-legal": 12}
    payoffs = played.sql("SELECT model_uid, wins + draws / 2, games FROM payoff_matrix").rows()
    assert (standings[0].player, standings[0].score * 12, 12) in payoffs
    assert all(row.mu is not None for row in standings)
    assert played.audit().ok


def test_opponents_alone_need_no_model_and_play_what_the_tiny_player_cannot_read(tmp_path: Path) -> None:
    """Half of six seats against the other half: TextArena's roles, teams of unlike size."""
    options = ["--env", "SecretMafia-v0-train", "--games", "4", "-q"]
    done = ask(tmp_path, "tournament", "random-legal", "first-legal", *options)
    assert done.exit_code == 0, done.output
    assert "2 players, 4 of 4 games" in done.output
    assert "a game counts once for each" in done.output
    (run,) = us.list_runs(tmp_path)
    played = us.open_run(run.run_id, tmp_path)
    assert {row.player: row.games for row in played.standings()} == {"first-legal": 4, "random-legal": 4}
    assert played.audit().ok


def test_the_command_shows_a_ladder_and_the_payoffs(runs: tuple[us.Run, us.Run]) -> None:
    data = runs[0].place.root
    done = ask(data, "tournament", "trained", "second", "base", "--games", "2", "-q")
    assert done.exit_code == 0, done.output
    for said in (
        "3 players, 6 of 6 games",
        "95 % interval",
        "Payoff matrix",
        "alpha-rank",
        " is first, stronger",
    ):
        assert said in done.output
    newest = us.list_runs(data)[0]
    assert newest.name == "tournament"
    show = ["tournament", "--show", newest.run_id]
    assert ask(data, *show).output == done.output
    standings = us.open_run(newest.run_id, data).standings()
    rows = json.loads(ask(data, *show, "--json").stdout)
    assert [(row["player"], row["elo"], row["against"]) for row in rows] == [
        (row.player, row.elo, row.against) for row in standings
    ]
    read = list(csv.DictReader(io.StringIO(ask(data, *show, "--csv").stdout)))
    assert [row["player"] for row in read] == [row.player for row in standings]
    refused = ask(data, *show, "first", "second")
    assert (refused.exit_code, "plays nothing" in refused.output) == (2, True)


def test_a_tournament_that_was_stopped_goes_on(runs: tuple[us.Run, us.Run]) -> None:
    run = us.tournament([*runs, "base", "random-legal"], games=16)
    run.start(block=False, live=False)
    run.stop()
    assert run.state == "stopped"
    games = sum(row.games for row in run.standings()) // 2
    assert games < 6 * 16
    run.resume(live=False)
    assert run.state == "completed"
    assert [row.games for row in run.standings()] == [3 * 16] * 4
    assert run.audit().ok


def test_games_in_given_seats_are_recorded_whoever_plays(tmp_path: Path) -> None:
    settings = ("--seats", "perfect", "--seats", "random-legal", "--env", ENV["env_id"], "--mirrored")
    ask(tmp_path, "play", *settings, "-k", "4", "-q")
    alone = ask(
        tmp_path,
        "play",
        "--seats",
        "perfect",
        *settings[:2],
        *settings[4:6],
        "-k",
        "1",
        "-q",
        "--set",
        "name=alone",
    )
    assert "completed: 1 player, 1 of 1 games" in alone.output
    run = us.open_run("play", tmp_path)
    ask_of = "SELECT models, list(seed ORDER BY seed) FROM games GROUP BY models ORDER BY models"
    (first, seeds), (second, same_seeds) = run.sql(ask_of).rows()
    assert (first, second) == (["perfect", "random-legal"], ["random-legal", "perfect"])
    assert len(seeds) == 2
    assert seeds == same_seeds
    verified = run.verify()
    assert verified.ok, verified.problems


def test_a_game_without_a_player_for_each_seat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 seats, found 1, perfect: name one player for each"):
        us.play(["perfect"], envs=[ENV], data=tmp_path)

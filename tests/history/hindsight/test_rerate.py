"""Rating a run anew: the recorded ratings under the recorded parameters, others under others."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.history.proofs.recorded_run import ENVS, events_of
from tests.places import archived, recorded
from unstable_stream.archive import query
from unstable_stream.archive.what_if import open_set, set_directory
from unstable_stream.events import GameOutcome, GamePosition, Rating, RunStarted
from unstable_stream.history.hindsight.rerate import Scopes, rerate_from_archive, rerate_from_log
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.model_pool import TrueSkill
from unstable_stream.model_pool.systems import Elo

pytestmark = pytest.mark.longer

RUN = "run-rated"
AS_RECORDED = TrueSkill(draw_probability={ENVS[0]: 0.3})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log and the archive of a recorded run, and another one beside it."""
    return recorded(tmp_path_factory.mktemp("rated"), RUN, "run-other", games=20, hosted=False).root


@pytest.fixture
async def log(data: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(data / "log.sqlite") as opened:
        yield opened


@pytest.fixture
def archive(data: Path) -> Path:
    return data / "archive.duckdb"


async def recorded_ratings(
    log: EventLog, run_id: str
) -> dict[tuple[str, str, str], tuple[float, float, int]]:
    """By game, environment and model."""
    return {
        (event.game_id, event.env_id, event.model_uid): (event.mu, event.sigma, event.games)
        for event in await events_of(log, run_id, Rating)
    }


async def test_with_the_recorded_parameters_nothing_differs(
    log: LocalLog, archive: Path, tmp_path: Path
) -> None:
    used = await recorded_ratings(log, RUN)
    from_log = set_directory(tmp_path / RUN, "from-log")
    with open_set(from_log) as out:
        done = await rerate_from_log(log, RUN, AS_RECORDED, out=out)
    from_archive = set_directory(tmp_path / RUN, "from-archive")
    with open_set(from_archive) as out:
        again = rerate_from_archive(archive, RUN, AS_RECORDED, out=out)
    assert (done.changed, again.changed) == (0, 0)
    assert done.games == again.games == 60
    assert done.rated == again.rated == len({game for game, _, _ in used})
    assert done.models == again.models
    assert {each.env_id for each in done.models} == {"*", *ENVS}
    for directory in (from_log, from_archive):
        rows = query(archive, f"FROM '{directory}/ratings.parquet'", files=True).dicts()
        assert {row["run_id"] for row in rows} == {RUN}
        found = {
            (row["game_id"], row["env_id"], row["model_uid"]): (row["mu"], row["sigma"], row["games"])
            for row in rows
        }
        assert found == used, "every rating ever given, to the last bit"
        assert len(rows) == len(found)


async def test_other_parameters_make_other_ratings_and_say_so(
    log: LocalLog, archive: Path, tmp_path: Path
) -> None:
    before = await recorded_ratings(log, RUN)
    directory = set_directory(tmp_path / RUN, "wide")
    with open_set(directory) as out:
        done = rerate_from_archive(archive, RUN, TrueSkill(beta=8.0), out=out)
    assert done.changed == len(done.models)
    assert all((each.sigma or 0.0) > (each.sigma_used or 0.0) for each in done.models), "a game says less"
    assert all(each.games == each.games_used for each in done.models)
    about = json.loads((directory / "about.json").read_text())
    assert (about["system"], about["parameters"]["beta"], about["games"]) == ("trueskill", 8.0, 60)
    ladder = query(archive, f"FROM '{directory}/ladder.parquet'", files=True).dicts()
    assert [(row["env_id"], row["model_uid"], row["mu"], row["rank_used"]) for row in ladder] == [
        (each.env_id, each.model_uid, each.mu, each.rank_used) for each in done.models
    ]
    assert await recorded_ratings(log, RUN) == before, "the recorded ratings are as they were"


async def test_ranks_are_compared_by_mu_less_three_sigma(archive: Path) -> None:
    done = rerate_from_archive(archive, RUN, Elo(k=24.0), Scopes(per_env=False))
    assert {each.env_id for each in done.models} == {"*"}
    assert {each.sigma for each in done.models} == {None}
    by_elo = sorted(done.models, key=lambda each: -each.mu)
    assert [each.rank for each in by_elo] == list(range(1, len(by_elo) + 1))
    used = sorted(done.models, key=lambda each: -((each.mu_used or 0.0) - 3 * (each.sigma_used or 0.0)))
    assert [each.rank_used for each in used] == list(range(1, len(used) + 1))


async def test_games_from_a_position_rate_nobody_from_the_log_either(tmp_path: Path) -> None:
    start = GamePosition(game_id="game", turn=1, seed=0, moves=1)
    events = [
        msgspec.structs.replace(event, position=start)
        if isinstance(event, GameOutcome) and event.game_index % 2
        else event
        for event in made_up_run()
        if isinstance(event, RunStarted | GameOutcome)
    ]
    path = archived(tmp_path, events)
    async with LocalLog.open(tmp_path / "log.sqlite") as log:
        await log.create_topics(list(load_topics().values()))
        await log.append([record_from_event(event) for event in events])
        from_log = await rerate_from_log(log, "run-a", TrueSkill())
    from_archive = rerate_from_archive(path, "run-a", TrueSkill())
    assert from_log.models == from_archive.models
    assert from_log.games == from_archive.games

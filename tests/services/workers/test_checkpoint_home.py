"""The learner service with its checkpoints in a store: killed at any step, it goes on as with a directory."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from infra.s3.server import S3Server
from tests.log.stores.gate import Gate
from tests.services.workers.test_learner_service import (
    RUN,
    UPDATES,
    Curves,
    KillAt,
    Killed,
    after_publishing,
    after_saving,
    config,
    curve,
    killed,
    published,
    service,
)
from tests.services.workers.test_learner_service import log as log  # fixtures
from tests.services.workers.test_learner_service import uninterrupted as uninterrupted
from unstable_stream.errors import CheckpointError, StoreUnavailableError
from unstable_stream.events import Metrics
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.stores.address import joined, owner_of
from unstable_stream.log.stores.checkpoint_files import has_file, hold_optimizer_state
from unstable_stream.log.stores.store import Store
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.workers.checkpoint_home import CheckpointHome, DirectoryHome, StoredHome
from unstable_stream.services.workers.learner import LearnerService

pytestmark = pytest.mark.longer


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place for checkpoints in the store of this process."""
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache"))
    return f"memory://{secrets.token_hex(6)}"


def stored(root: str, **learner: Any) -> RunConfig:
    """The configuration with its checkpoints there."""
    made = config(**learner).model_dump(mode="json")
    return parse_config({**made, "backend": "inline", "learner": {**made["learner"], "ckpt_root": root}})


def files(root: str) -> list[str]:
    """The files of the run's checkpoints in a store."""
    return Store(joined(root, RUN)).names()


def whole(names: list[str]) -> set[str]:
    """The directories that a learner can load."""
    return {name.partition("/")[0] for name in names if name.endswith("/state.json")}


async def test_checkpoints_are_in_the_store_and_nowhere_else(
    root: str, tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    victim = service(tmp_path, stored(root))
    assert await victim.train(log, asyncio.Event()) == UPDATES
    victim.close()
    assert await curve(log) == uninterrupted[1]
    _, checkpoints = await published(log)
    for checkpoint in checkpoints[1:]:
        assert checkpoint.path is not None
        assert checkpoint.path.startswith(f"{root}/{RUN}/{checkpoint.model_uid}-")
        assert owner_of(checkpoint.path) == RUN
    named = {each.path.rpartition("/")[2] for each in checkpoints if each.path is not None}
    assert whole(files(root)) == named
    assert not list(tmp_path.glob("checkpoints/*/ckpt-*"))
    assert not list((tmp_path / "cache" / "saving").iterdir())


def after_uploading(victim: LearnerService, patch: pytest.MonkeyPatch) -> None:
    publish = victim._home.publish

    def killed(directory: Path) -> str:
        address = publish(directory)
        if directory.name.startswith("ckpt-000003"):
            raise Killed
        return address

    patch.setattr(victim._home, "publish", killed)


def in_mid_upload(victim: LearnerService, patch: pytest.MonkeyPatch) -> None:
    put = Store.put

    def killed(self: Store, file: Path, name: str) -> None:
        put(self, file, name)
        if name.startswith("ckpt-000003") and name.endswith("adapter_model.safetensors"):
            raise Killed

    patch.setattr(Store, "put", killed)


@pytest.mark.parametrize("kill", [after_saving, in_mid_upload, after_uploading, after_publishing])
async def test_killed_between_any_two_steps_it_ends_with_the_same_weights(
    kill: KillAt, root: str, tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    settings = stored(root)
    await killed(tmp_path, log, settings, kill)
    assert len((await published(log))[0]) == (3 if kill is after_publishing else 2)
    assert [name for name in files(root) if name.startswith("ckpt-000003")]
    assert await service(tmp_path, settings).train(log, asyncio.Event()) == UPDATES
    assert await curve(log) == uninterrupted[1]
    _, checkpoints = await published(log)
    named = {each.path.rpartition("/")[2] for each in checkpoints if each.path is not None}
    left = {name.partition("/")[0] for name in files(root)} - {"dtype"}
    assert left == named, "what was uploaded and never published is gone"


async def test_a_restart_on_another_host_fetches_what_it_needs(
    root: str, tmp_path: Path, log: LocalLog, monkeypatch: pytest.MonkeyPatch, uninterrupted: Curves
) -> None:
    await service(tmp_path, stored(root, iterations=2)).train(log, asyncio.Event())
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache of another host"))
    assert await service(tmp_path / "elsewhere", stored(root)).train(log, asyncio.Event()) == UPDATES
    assert (await curve(log))[1] == uninterrupted[1][1]


async def test_a_checkpoint_that_was_changed_in_the_store_is_refused(
    root: str, tmp_path: Path, log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service(tmp_path, stored(root, iterations=1)).train(log, asyncio.Event())
    name = next(name for name in files(root) if name.endswith("adapter_model.safetensors"))
    Store(joined(root, RUN)).write(name, b"of somebody else")
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache of another host"))
    with pytest.raises(CheckpointError, match="is damaged in the store"):
        await service(tmp_path, stored(root)).train(log, asyncio.Event())


async def test_a_store_that_stays_away_ends_the_learner_and_costs_one_update(
    root: str, tmp_path: Path, log: LocalLog, monkeypatch: pytest.MonkeyPatch, uninterrupted: Curves
) -> None:
    put = Store.put

    def away(self: Store, file: Path, name: str) -> None:
        if name.startswith("ckpt-000003"):
            raise StoreUnavailableError("the store is away")
        put(self, file, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", away)
        with pytest.raises(StoreUnavailableError):
            await service(tmp_path, stored(root)).train(log, asyncio.Event())
    assert len((await published(log))[0]) == 2
    assert await service(tmp_path, stored(root)).train(log, asyncio.Event()) == UPDATES
    assert await curve(log) == uninterrupted[1]


async def waits(log: LocalLog) -> list[float]:
    """What the learner told of its waiting, in order."""
    events = [event async for _, event in events_to_end(log, ("metrics",)) if isinstance(event, Metrics)]
    return [event.values[name] for event in events if (name := "stores/learner/wait_s") in event.values]


async def test_a_store_that_goes_away_in_mid_training_only_delays(
    s3: str,
    s3_server_of_session: S3Server,
    tmp_path: Path,
    log: LocalLog,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: Curves,
) -> None:
    with Gate(s3_server_of_session.port) as gate:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
        learner = service(tmp_path, stored(s3))
        publish = learner._home.publish

        def after_two(directory: Path) -> str:
            if directory.name.startswith("ckpt-000003"):
                gate.close_now("busy")
            return publish(directory)

        monkeypatch.setattr(learner._home, "publish", after_two)
        training = asyncio.ensure_future(learner.train(log, asyncio.Event()))
        async with asyncio.timeout(60):
            while not any(await waits(log)):
                await asyncio.wait({training}, timeout=0.02)
        assert len((await published(log))[0]) == 2
        gate.state = "open"
        assert await training == UPDATES

    assert await curve(log) == uninterrupted[1]
    first, *later = await waits(log)
    assert first == 0 < max(later)


@pytest.fixture(params=["directory", "memory", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointHome:
    """A home of each kind."""
    if request.param == "directory":
        return DirectoryHome(tmp_path / "run")
    root: str = request.getfixturevalue("s3" if request.param == "s3" else "root")
    return StoredHome(f"{root}/run")


def published_at(home: CheckpointHome, name: str) -> str:
    with home.saving() as root:
        (root / name).mkdir(parents=True)
        for file in ("adapter_model.safetensors", "optimizer.pt", "state.json"):
            (root / name / file).write_bytes(file.encode())
        return home.publish(root / name)


def test_every_home_keeps_what_is_published(home: CheckpointHome) -> None:
    assert home.attempts() == []
    names = [f"ckpt-00000{number}-0a1b2c3d" for number in range(1, 5)]
    locations = [published_at(home, name) for name in names]
    assert [location.rpartition("/")[2] for location in locations] == names
    assert home.attempts() == names
    assert home.read_note("dtype") is None
    home.write_note("dtype", "float32\n")
    assert home.read_note("dtype") == "float32\n"
    assert home.attempts() == names
    hold_optimizer_state(locations[0], "fork")
    home.prune(names[:3], keep_last=1)
    assert [has_file(location, "optimizer.pt") for location in locations] == [True, False, True, True]
    assert home.remove([names[0]]) == [names[0]]
    assert home.attempts() == names[1:]
    home.prune([], keep_last=1)


def test_a_fork_that_comes_while_its_state_is_pruned_has_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StoredHome(f"{root}/run")
    location = published_at(home, "ckpt-000001-0a1b2c3d")
    remove = Store.remove

    def between(self: Store, name: str) -> None:
        hold_optimizer_state(location, "fork")
        remove(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", between)
        home.prune(["ckpt-000001-0a1b2c3d", "ckpt-000002-0a1b2c3d"], keep_last=1)
    assert has_file(location, "optimizer.pt")

"""Checkpoints are read wherever they are: a directory in place, one in a store through the cache, checked."""

import secrets
from pathlib import Path

import pytest

from tests.log.stores.saved import put, save
from unstable_stream.errors import CheckpointError
from unstable_stream.log.stores.adapter_format import CONFIG_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.address import joined
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.checkpoint_files import (
    has_file,
    hold_optimizer_state,
    opened_checkpoint,
    sha256_of,
)
from unstable_stream.log.stores.store import Store


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", max_bytes=1_000_000)


@pytest.fixture(params=["directory", "memory", "s3"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A checkpoint in a place of each kind, and the digest of its weights."""
    digest = save(tmp_path / "saved")
    if request.param == "directory":
        return str(tmp_path / "saved"), digest
    root = f"memory://{secrets.token_hex(6)}" if request.param == "memory" else request.getfixturevalue("s3")
    address = joined(root, "ckpt-000001-0a1b2c3d")
    put(address, tmp_path / "saved")
    return address, digest


@pytest.fixture
def stored(tmp_path: Path) -> tuple[str, str]:
    """The same, in a store."""
    digest = save(tmp_path / "saved")
    address = f"memory://{secrets.token_hex(6)}/ckpt-000001"
    put(address, tmp_path / "saved")
    return address, digest


def refused(cache: HostCache, address: str, sha256: str | None = None, *, match: str) -> None:
    with pytest.raises(CheckpointError, match=match), opened_checkpoint(address, sha256, cache=cache):
        raise AssertionError("it was given")


def test_an_engine_gets_the_weights_and_a_learner_all_of_it(saved: tuple[str, str], cache: HostCache) -> None:
    location, digest = saved
    for to_train in (False, True, False):
        with opened_checkpoint(location, digest, to_train=to_train, cache=cache) as directory:
            assert (directory / WEIGHTS_FILE).read_bytes() == b"weights"
            assert (directory / CONFIG_FILE).is_file()
            assert (directory / "optimizer.pt").is_file() or not to_train


def test_files_are_found_and_recognised(saved: tuple[str, str]) -> None:
    location, digest = saved
    assert sha256_of(location, WEIGHTS_FILE) == digest
    assert sha256_of(location, "model.safetensors") is None
    assert has_file(location)
    assert has_file(location, "optimizer.pt")
    assert not has_file(location, "networks.safetensors")
    assert not has_file(f"{location}-other")


def test_a_state_that_a_fork_holds_outlives_its_pruning(saved: tuple[str, str], cache: HostCache) -> None:
    location, _ = saved
    hold_optimizer_state(location, "fork")
    assert has_file(location, "optimizer.pt.of-fork")
    with pytest.raises(FileNotFoundError):
        hold_optimizer_state(f"{location}-other", "fork")


def test_a_held_state_is_used_where_the_other_name_is_gone(stored: tuple[str, str], cache: HostCache) -> None:
    address, digest = stored
    hold_optimizer_state(address, "fork")
    Store(address).remove("optimizer.pt")
    with opened_checkpoint(address, digest, to_train=True, cache=cache) as directory:
        assert (directory / "optimizer.pt").read_bytes() == b"momenta" * 100


def test_without_its_optimizer_state_the_rest_is_there(stored: tuple[str, str], cache: HostCache) -> None:
    address, digest = stored
    Store(address).remove("optimizer.pt")
    for _ in range(2):
        with opened_checkpoint(address, digest, to_train=True, cache=cache) as directory:
            assert not (directory / "optimizer.pt").exists()
            assert (directory / WEIGHTS_FILE).is_file()


def test_weights_that_differ_from_the_recorded_ones_are_refused(
    stored: tuple[str, str], cache: HostCache, tmp_path: Path
) -> None:
    address, digest = stored
    refused(cache, address, "0" * 64, match="another checkpoint")
    Store(address).write(WEIGHTS_FILE, b"damaged")
    refused(cache, address, digest, match="is damaged in the store")
    assert not (cache.directory(address) / WEIGHTS_FILE).exists()
    Store(address).write(WEIGHTS_FILE, b"weights")
    with opened_checkpoint(address, digest, cache=cache) as directory:
        assert (directory / WEIGHTS_FILE).read_bytes() == b"weights"


def test_what_is_damaged_in_the_cache_is_fetched_anew(stored: tuple[str, str], cache: HostCache) -> None:
    address, digest = stored
    with opened_checkpoint(address, digest, to_train=True, cache=cache) as directory:
        for name in (WEIGHTS_FILE, "optimizer.pt", "state.json"):
            (directory / name).write_bytes(b"rot")
    with opened_checkpoint(address, digest, to_train=True, cache=cache) as directory:
        assert (directory / WEIGHTS_FILE).read_bytes() == b"weights"
        assert (directory / "optimizer.pt").read_bytes() == b"momenta" * 100


@pytest.mark.parametrize("lost", [WEIGHTS_FILE, CONFIG_FILE])
def test_what_is_missing_is_named(lost: str, stored: tuple[str, str], cache: HostCache) -> None:
    address, digest = stored
    Store(address).remove(lost)
    refused(cache, address, digest, match=f"lacks {lost}")


def test_a_checkpoint_that_is_not_there_is_said_to_be_so(cache: HostCache) -> None:
    address = f"memory://{secrets.token_hex(6)}"
    refused(cache, address, match=f"{address} is not in the store")


def test_an_adapter_of_others_needs_no_state(cache: HostCache, tmp_path: Path) -> None:
    digest = save(tmp_path / "saved")
    address = f"memory://{secrets.token_hex(6)}"
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        Store(address).put(tmp_path / "saved" / name, name)
    for known in (digest, None):
        with opened_checkpoint(address, known, cache=cache) as directory:
            assert (directory / WEIGHTS_FILE).read_bytes() == b"weights"


@pytest.mark.parametrize("state", [b"no json", b"[]", b'{"sha256": {"../../x": "0"}}', b'{"sha256": {}}'])
def test_a_state_that_names_no_files_is_refused(
    state: bytes, stored: tuple[str, str], cache: HostCache
) -> None:
    address, digest = stored
    Store(address).write("state.json", state)
    refused(cache, address, digest, match=r"state\.json")

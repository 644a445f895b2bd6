"""What ``disk`` counts: every byte once, by topic, table and run, and what frees it."""

from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.places import append, ask
from unstable_stream.api.disk import disk_usage
from unstable_stream.api.place import Place
from unstable_stream.api.removal import bytes_in
from unstable_stream.api.serving import archive
from unstable_stream.log.stores.cache import CACHE


def test_every_byte_is_counted_once_and_a_run_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, hub = tmp_path / "data", tmp_path / "hub"
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    place = Place.at(data)
    append(data, [*made_up_run("run-a"), *made_up_run("run-b", updates=1)])
    archive(place)
    for file, size in (
        (data / "checkpoints" / "run-b" / "ckpt-000001-0" / "model.safetensors", 3000),
        (data / "logs" / "run-b" / "learner.log", 20),
        (data / "code" / "run-b.json", 5),
        (data / "archive.duckdb.old", 700),
        (data / "archive.duckdb.wal.lock", 300),
        (data / "sweeps" / "demo-3fa1c2.lock", 1),
        (hub / "models--owner--player" / "blob", 900),
        (tmp_path / "cache" / "checkpoints" / "fetched", 80),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size)
    used = disk_usage(place)
    sizes = {each.what: each.bytes for each in used}
    assert [each.bytes for each in used] == sorted(sizes.values(), reverse=True)
    assert (sizes["checkpoints: run-b"], sizes["output of processes: run-b"]) == (3000, 20)
    assert (sizes["names of code: run-b"], sizes["archive.duckdb.old"]) == (5, 700)
    assert sizes["archive: write-ahead log"] == 300
    assert (sizes["Hugging Face: owner/player"], sizes[f"cache of stores: {tmp_path}/cache"]) == (900, 80)
    # DuckDB's file begins with three headers of 4 KiB, which are no block.
    assert sum(sizes.values()) == bytes_in(data) - 3 * 4096 + 980
    assert {each.what: each.frees for each in used}["sweeps"] == "nothing: locks of sweeps"
    of_a, of_b = ({each.what: each.bytes for each in disk_usage(place, run)} for run in ("run-a", "1"))
    assert of_b["checkpoints: run-b"] == 3000
    shares = of_a["archive: its share"] + of_b["archive: its share"]
    assert abs(shares - bytes_in(place.data.archive_file) - 300) <= 1
    topics = [what for what in sizes if what.startswith("log: ") and "free" not in what]
    assert len(topics) > 5
    assert all(of_a[what] + of_b.get(what, 0) == sizes[what] for what in topics)
    shown = ask(data, "disk", "run-b", "--table", width=80)
    assert "rm run-b" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert ask(data, "disk", str(data), "--csv", "--limit", "1").stdout.startswith("what,bytes,freed_by\n")

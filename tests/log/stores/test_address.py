"""What may stand for a place, and what it becomes where it is recorded."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.log.stores.address import (
    checked_address,
    is_address,
    joined,
    name_of,
    owner_of,
    path_part,
)
from unstable_stream.log.stores.checkpoint_files import (
    has_file,
    hold_optimizer_state,
    opened_checkpoint,
    sha256_of,
)
from unstable_stream.log.stores.store import Store


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("/mnt/runs/", "/mnt/runs"),
        ("runs", str(Path("runs").absolute())),
        ("file:///mnt/my%20runs", "/mnt/my runs"),
        ("file://localhost/mnt", "/mnt"),
        ("s3://bucket/runs/", "s3://bucket/runs"),
        ("gs://bucket", "gs://bucket"),
        ("memory://runs", "memory://runs"),
    ],
)
def test_a_place_is_recorded_in_one_form(given: str, recorded: str) -> None:
    assert checked_address(given, "key") == recorded


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("s3://ME:SECRET@bucket/runs", "expected s3://bucket/runs"),
        ("s3://bucket/runs?X-Amz-Signature=SECRET", "expected s3://bucket/runs"),
        ("simplecache::s3://bucket", "chains"),
        ("file://elsewhere/mnt", "names the host elsewhere"),
        ("s3://", "names no place"),
        ("s3://ME:SEC?RET@bucket/runs", "expected s3://bucket/runs"),
        ("s3://ME:SEC/RET@bucket/runs", "expected s3://bucket/runs"),
        ("webhdfs://ME:SECRET@host/x", "no kind of store"),
        ("simplecache::http://ME:SECRET@host/x?token=SECRET", "chains"),
        ("S3://bucket/runs", "no kind of store"),
        ("://bucket", "no kind of store"),
        ("s3://bucket/a b", "printable characters without blanks"),
        ("s3://bucket/a\nb", "printable characters without blanks"),
        ("gs://bucket/\x1b[2J", "printable characters without blanks"),
        ("s3://bucket/" + "k" * 1100, "up to 1024"),
        ("s3://[bucket/runs", "is no address"),
        ("az://container/../other", "goes up"),
        ("file:///mnt/%00", "cannot be a path"),
        ("", "cannot be a path"),
        ("/mnt/\0", "cannot be a path"),
        ("/mnt/" + "k" * 300, "cannot be a path"),
        ("/mnt" + "/k" * 2500, "cannot be a path"),
        ("~nobody-of-this-name/runs", "cannot be expanded|determine home"),
    ],
)
def test_what_cannot_be_recorded_or_reached_is_refused(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"key: .*{reason}") as caught:
        checked_address(given, "key")
    said = str(caught.value)
    assert "SEC" not in said
    assert "RET" not in said
    assert said.isprintable()
    assert len(said) < 500


def test_places_are_taken_apart_and_put_together() -> None:
    for root in ("/mnt/runs", "s3://bucket/runs"):
        checkpoint = joined(root, "run-1", "ckpt-000002-abc")
        assert checkpoint == f"{root}/run-1/ckpt-000002-abc"
        assert (name_of(checkpoint), owner_of(checkpoint)) == ("ckpt-000002-abc", "run-1")
    assert is_address("s3://bucket")
    assert not is_address("/mnt/s3:/bucket")


ASKED: list[Callable[[str], object]] = [
    Store,
    has_file,
    lambda location: sha256_of(location, "weights"),
    lambda location: hold_optimizer_state(location, "run-b"),
    lambda location: opened_checkpoint(location).__enter__(),
]


@pytest.mark.parametrize("ask", ASKED)
def test_an_address_of_a_record_is_refused_before_anything_is_connected_to(
    ask: Callable[[str], object],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        for location in (
            *(f"{kind}://{host}/run/ckpt" for kind in ("http", "https", "ftp", "sftp", "smb", "ws", "dask")),
            *(
                f"{kind}://run/ckpt"
                for kind in ("github", "hf", "zip", "reference", "jupyter", "dir", "data")
            ),
            f"simplecache::http://{host}/run/ckpt",
            f"s3://bucket/ckpt::http://{host}/x",
            "s3://bucket/\0",
        ):
            with pytest.raises(ConfigError, match=r"^(store|checkpoint): "):
                ask(location)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("name", ["run-a", "my run", "größe", "a.b_c@3", "a" * 200, "50%", "q?", "[x]"])
def test_a_plain_name_may_be_part_of_a_path(name: str) -> None:
    assert path_part(name, "run id") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "...", ".hidden", "end.", " a", "a ", "a/b", "/etc", "../x", "a\\b", "a\0b", "a\nb"),
        *("\x1b[31m", "a\x7f", "a\u202eb", "a\u2028b", "\udc80", "a" * 201, "ü" * 101),
    ],
)
def test_a_name_that_leads_elsewhere_or_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^run id .* cannot be part of a file name") as caught:
        path_part(name, "run id")
    assert str(caught.value).isprintable()
    with pytest.raises(ConfigError):
        joined("s3://bucket/runs", name)

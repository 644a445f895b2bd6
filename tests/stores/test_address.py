"""What may stand for a place, and what it becomes where it is recorded."""

from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.stores import checked_address, is_address, joined, name_of, owner_of


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
    ],
)
def test_what_cannot_be_recorded_or_reached_is_refused(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"key: .*{reason}") as caught:
        checked_address(given, "key")
    assert "SECRET" not in str(caught.value)


def test_places_are_taken_apart_and_put_together() -> None:
    for root in ("/mnt/runs", "s3://bucket/runs"):
        checkpoint = joined(root, "run-1", "ckpt-000002-abc")
        assert checkpoint == f"{root}/run-1/ckpt-000002-abc"
        assert (name_of(checkpoint), owner_of(checkpoint)) == ("ckpt-000002-abc", "run-1")
    assert is_address("s3://bucket")
    assert not is_address("/mnt/s3:/bucket")

"""What runs in the image of the services runs without torch, Ray and TextArena, which it does not hold."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.builders import made
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.services.workers.test_game_schedule import config
from unstable_stream.events import RunStarted, decode_event
from unstable_stream.log.open import open_log_at
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import TOPICS_DIR
from unstable_stream.runs.data_dir import DataDir

pytestmark = pytest.mark.broker

ABSENT = ("faust", "openai", "peft", "ray", "textarena", "torch", "transformers", "vllm")
WITHOUT = f"""
import json, sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # importing it fails, as if it were not installed
from unstable_stream.ui.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
DEADLINE_S = 60.0


@pytest.fixture
def location(tmp_path: Path) -> Iterator[str]:
    """A Kafka that holds nothing yet."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", 1, free_port_pair(), KEEPING) as cluster:
        yield f"kafka://{cluster.bootstrap}"


def start(location: str, data: Path, *commands: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT, json.dumps(commands)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "UNSTABLE_STREAM_LOG": location, "UNSTABLE_STREAM_DATA": str(data)},
    )


def run(location: str, data: Path, *commands: Sequence[str]) -> str:
    """Run commands one after the other in one process."""
    process = start(location, data, *commands)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


def stop_after(process: "subprocess.Popen[str]", words: str) -> None:
    """SIGTERM a standing service once it has said so; it ends with status 0."""
    assert process.stdout is not None
    told = ""
    try:
        for line in process.stdout:
            told += line
            if words in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, told
        assert words in told
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.long
async def test_every_service_of_the_image(location: str, tmp_path: Path) -> None:
    assert "created: checkpoints" in run(location, tmp_path, ["topics", "create"])
    log = open_log_at(location, DataDir(tmp_path).log)
    golden = [decode_event(path.read_bytes()) for path in (TOPICS_DIR / "golden").glob("*.json")]
    settings = config()
    started = made(RunStarted, config=settings.model_dump(mode="json"))
    events = [started if isinstance(event, RunStarted) else event for event in golden]
    await log.append([record_from_event(event) for event in events])
    await log.close()
    counted = ["sql", "SELECT count(*) AS n FROM events", "--csv"]
    said = run(location, tmp_path, ["topics", "check"], ["archive"], counted)
    assert "10 topics are as declared" in said
    assert f"{len(golden)} records archived" in said
    assert said.split()[-2:] == ["n", str(len(golden))]
    stop_after(start(location, tmp_path, ["processors"]), "processors ready")
    assert "committed" in run(location, tmp_path, ["topics", "lag", "--csv"])
    stop_after(start(location, tmp_path, ["monitor", "--port", "0"]), "http://")

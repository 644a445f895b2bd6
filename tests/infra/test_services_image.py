"""What runs in the image of the services runs without torch, Ray and TextArena, which it does not hold."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.builders import made
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.processes import Service, python, until
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


@pytest.fixture
def location(tmp_path: Path) -> Iterator[str]:
    """A Kafka that holds nothing yet."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", 1, free_port_pair(), KEEPING) as cluster:
        yield f"kafka://{cluster.bootstrap}"


@pytest.fixture
def image(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of what runs in the image."""
    monkeypatch.setenv("UNSTABLE_STREAM_LOG", location)
    monkeypatch.setenv("UNSTABLE_STREAM_DATA", str(tmp_path))
    return tmp_path


def run(*commands: Sequence[str]) -> str:
    """Run commands one after the other in one process."""
    done = python(WITHOUT, json.dumps(commands))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr + done.stdout


async def stop_after(data: Path, words: str, *command: str) -> None:
    """SIGTERM a standing service once it has said so; it ends with status 0."""
    with Service(data / f"{command[0]}.txt", sys.executable, "-c", WITHOUT, json.dumps([command])) as started:
        await until(lambda: words in started.printed, started)
        assert await started.end() == 0, started.printed


@pytest.mark.long
async def test_every_service_of_the_image(location: str, image: Path) -> None:
    assert "created: checkpoints" in run(["topics", "create"])
    log = open_log_at(location, DataDir(image).log)
    golden = [decode_event(path.read_bytes()) for path in (TOPICS_DIR / "golden").glob("*.json")]
    started = made(RunStarted, config=config().model_dump(mode="json"))
    events = [started if isinstance(event, RunStarted) else event for event in golden]
    await log.append([record_from_event(event) for event in events])
    await log.close()
    counted = ["sql", "SELECT count(*) AS n FROM events", "--csv"]
    said = run(["topics", "check"], ["archive"], counted)
    assert "10 topics are as declared" in said
    assert f"{len(golden)} records archived" in said
    assert said.split()[-2:] == ["n", str(len(golden))]
    await stop_after(image, "processors ready", "processors")
    assert "committed" in run(["topics", "lag", "--csv"])
    await stop_after(image, "http://", "monitor", "--port", "0")

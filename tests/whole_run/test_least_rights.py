"""Every component works with the rights that ``infra/strimzi/users.yaml`` gives it, and with no others."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from tests.whole_run.processes import CONFIG, DEADLINE_S, History, command_line
from unstable_stream.events import GameOutcome, LearnerUpdate, Rating, RunFinished, Step

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

USERS = Path(__file__).parents[2] / "infra" / "strimzi" / "users.yaml"
PREFIX = "unstable-stream-"
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefix": ResourcePatternType.PREFIXED}


def users() -> dict[str, list[dict[str, Any]]]:
    """The rights of each user in the manifest."""
    found = yaml.safe_load_all(USERS.read_text(encoding="utf-8"))
    return {user["metadata"]["name"]: user["spec"]["authorization"]["acls"] for user in found}


@dataclass(frozen=True)
class GuardedBroker:
    """A broker that asks who comes, and lets everyone do what the manifest says."""

    cluster: KafkaCluster

    @property
    def log(self) -> str:
        return f"kafka://localhost:{self.cluster.port + 2}"

    def environment(self, user: str) -> dict[str, str]:
        """What a pod of this user has in its environment."""
        return {
            "UNSTABLE_STREAM_LOG": self.log,
            "UNSTABLE_STREAM_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "UNSTABLE_STREAM_KAFKA_SASL_MECHANISM": "PLAIN",
            "UNSTABLE_STREAM_KAFKA_SASL_USERNAME": PREFIX + user,
            "UNSTABLE_STREAM_KAFKA_SASL_PASSWORD": f"of-{PREFIX}{user}",
        }

    def start(self, user: str, data: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command as a user."""
        data.mkdir(exist_ok=True)
        with (data / "output.txt").open("ab") as output:
            return subprocess.Popen(
                command_line(*arguments, "--data", str(data)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment(user)},
            )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    skip_without_kafka()
    port = free_port_pair(brokers=2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},LOGIN://localhost:{port + 2}"
    logins = " ".join(f'user_{name}="of-{name}"' for name in users())
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the broker itself, and this test: the listener without logins
    }
    with KafkaCluster(tmp_path_factory.mktemp("guarded"), port=port, settings=settings) as cluster:
        bindings = [
            AclBinding(
                _RESOURCES[right["resource"]["type"]],
                right["resource"]["name"],
                _PATTERNS[right["resource"].get("patternType", "literal")],
                f"User:{user}",
                "*",
                AclOperation[re.sub(r"\B([A-Z])", r"_\1", operation).upper()],
                AclPermissionType.ALLOW,
            )
            for user, rights in users().items()
            for right in rights
            for operation in right["operations"]
        ]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = admin.create_acls(bindings)
        for binding in made.values():
            binding.result(DEADLINE_S)
        broker = GuardedBroker(cluster)
        data = tmp_path_factory.mktemp("admin")
        created = broker.start("admin", data, "topics", "create")
        assert created.wait(DEADLINE_S) == 0, _told(data)
        yield broker


def _told(data: Path) -> str:
    return (data / "output.txt").read_text(encoding="utf-8", errors="replace")[-4000:]


@pytest.mark.long
async def test_each_component_has_the_rights_it_needs(guarded: GuardedBroker, tmp_path: Path) -> None:
    standing = {
        "processors": ["processors"],
        "archiver": ["archive", "--follow"],
        "monitor": ["monitor", "--port", str(free_port_pair())],
    }
    services = {
        name: guarded.start(name, tmp_path / name, *arguments) for name, arguments in standing.items()
    }
    try:
        settings = [
            "backend=inline", "learner.iterations=2", "learner.batch_size=64", "learner.mini_batch_size=64",
            "collector.num_workers=16", "collector.num_eval_workers=4", "evaluation.every=1",
            "evaluation.max_eval_games_per_ckpt=4", "evaluation.first_last_games=4",
            'external=["processors", "archiver"]',
        ]  # fmt: skip
        flags = [f"--set={setting}" for setting in settings]
        run = guarded.start("training", tmp_path / "run", "train", str(CONFIG), *flags)
        try:
            status = run.wait(2 * DEADLINE_S)
        finally:
            run.kill()
        everything = "\n".join(f"== {name}\n{_told(tmp_path / name)}" for name in ["run", *services])
        assert status == 0, everything
        history = History(tmp_path / "history", f"kafka://{guarded.cluster.bootstrap}")
        await history.read_all()
        await history.close()
        (ended,) = history.of(RunFinished)
        proof = guarded.start("training", tmp_path / "run", "audit", ended.run_id)
        assert proof.wait(DEADLINE_S) == 0, _told(tmp_path / "run")
        _until_archived(guarded, tmp_path / "archiver")
    finally:
        for service in services.values():
            service.terminate()
        statuses = {name: service.wait(DEADLINE_S) for name, service in services.items()}
    assert statuses == dict.fromkeys(services, 0), {name: _told(tmp_path / name) for name in services}
    assert all(history.of(kind) for kind in (Step, Rating, LearnerUpdate))
    for name in services:
        assert "does not allow" not in _told(tmp_path / name)


def _until_archived(guarded: GuardedBroker, data: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    games = 0
    while not games:
        done = subprocess.run(
            command_line("sql", "SELECT count(*) AS games FROM game_outcomes", "--json", "--data", str(data)),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        games = json.loads(done.stdout)[0]["games"] if done.returncode == 0 else 0
        assert time.monotonic() < deadline, (
            f"{GameOutcome.TOPIC} are not archived: {_told(data)}{done.stderr}"
        )


@pytest.mark.parametrize(
    ("user", "arguments", "group"),
    [
        ("archiver", ["processors"], "(reward|rating|metrics)-processor"),
        ("processors", ["archive", "--follow"], "archiver-"),
    ],
)
@pytest.mark.long
def test_who_may_not_join_a_group_is_told_so(
    guarded: GuardedBroker, tmp_path: Path, user: str, arguments: list[str], group: str
) -> None:
    done = guarded.start(user, tmp_path / user, *arguments)
    try:
        status = done.wait(DEADLINE_S)
    finally:
        done.kill()
    told = _told(tmp_path / user)
    assert status == 1, told
    assert "Traceback" not in told
    refusal = rf"the brokers do not allow it .*: {group}.*: ask who runs them for the right"
    assert re.search(refusal, told), told

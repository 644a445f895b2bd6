"""Every component works with the rights that ``infra/strimzi/users.yaml`` gives it, and with no others."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
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
from tests.processes import Service, completed, until
from tests.whole_run.processes import CONFIG, DEADLINE_S, History, command_line
from unstable_stream.events import LearnerUpdate, Rating, RunFinished, Step

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

    def start(self, user: str, data: Path, *arguments: str) -> Service:
        """Start a command as a user."""
        command = command_line(*arguments, "--data", str(data))
        return Service(data / "output.txt", *command, **self.environment(user))


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
        with broker.start("admin", tmp_path_factory.mktemp("admin"), "topics", "create") as created:
            assert created.process.wait(DEADLINE_S) == 0, created.printed
        yield broker


@pytest.mark.long
async def test_each_component_has_the_rights_it_needs(guarded: GuardedBroker, tmp_path: Path) -> None:
    standing = {
        "processors": ["processors"],
        "archiver": ["archive", "--follow"],
        "monitor": ["monitor", "--port", str(free_port_pair())],
    }
    settings = [
        "backend=inline", "learner.iterations=2", "learner.batch_size=64", "learner.mini_batch_size=64",
        "collector.num_workers=16", "collector.num_eval_workers=4", "evaluation.every=1",
        "evaluation.max_eval_games_per_ckpt=4", "evaluation.first_last_games=4",
        'external=["processors", "archiver"]',
    ]  # fmt: skip
    flags = [f"--set={setting}" for setting in settings]
    with ExitStack() as started:

        def start(name: str, user: str, *arguments: str) -> Service:
            return started.enter_context(guarded.start(user, tmp_path / name, *arguments))

        services = {name: start(name, name, *arguments) for name, arguments in standing.items()}
        run = start("run", "training", "train", str(CONFIG), *flags)
        status = await run.end(None, 2 * DEADLINE_S)
        assert status == 0, [run.printed, *(service.printed for service in services.values())]
        history = History(tmp_path / "history", f"kafka://{guarded.cluster.bootstrap}")
        await history.read_all()
        await history.close()
        (ended,) = history.of(RunFinished)
        proof = start("proof", "training", "audit", ended.run_id)
        assert await proof.end(None) == 0, proof.printed

        def archived() -> bool:
            query = ("sql", "SELECT count(*) AS games FROM game_outcomes", "--json")
            done = completed(*command_line(*query, "--data", str(tmp_path / "archiver")))
            return done.returncode == 0 and json.loads(done.stdout)[0]["games"] > 0

        await until(archived, services["archiver"])
        for service in services.values():
            assert await service.end() == 0, service.printed
            assert "does not allow" not in service.printed
    assert all(history.of(kind) for kind in (Step, Rating, LearnerUpdate))


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
    with guarded.start(user, tmp_path / user, *arguments) as started:
        status = started.process.wait(DEADLINE_S)
        told = started.printed
    assert status == 1, told
    assert "Traceback" not in told
    refusal = rf"the brokers do not allow it .*: {group}.*: ask who runs them for the right"
    assert re.search(refusal, told), told

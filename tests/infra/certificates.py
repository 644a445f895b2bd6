"""Certificates of Ray's pods, made by the commands of the page and the script of the manifests."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = "certificate.sh"


def made_certificate(directory: Path, *, address: str, head: str) -> Path:
    """Return the directory with ``ca.crt``, ``tls.crt`` and ``tls.key`` of a pod and its head's name.

    The script stands as it is, but for its directories. Skips the test where openssl is missing.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    authority, made = directory / "authority", directory / "tls"
    authority.mkdir()
    made.mkdir()
    page = (_ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("openssl req")]
    subprocess.run(["sh", "-c", line], cwd=authority, check=True, capture_output=True)
    manifests = yaml.safe_load_all((_ROOT / "infra" / "ray" / "training.yaml").read_text(encoding="utf-8"))
    (script,) = [each["data"][name] for each in manifests for name in each.get("data", {}) if name == _SCRIPT]
    script = script.replace("/etc/ray/authority", str(authority)).replace("/etc/ray/tls", str(made))
    place = {**os.environ, "POD_IP": address, "FQ_RAY_IP": head}
    subprocess.run(["sh", "-c", script], check=True, capture_output=True, env=place)
    return made

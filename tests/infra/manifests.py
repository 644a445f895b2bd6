"""The manifests and the page about them as tests read them, and a certificate that they make."""

import copy
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
MANIFESTS = sorted(
    path for folder in ("keda", "ray", "strimzi") for path in (ROOT / "infra" / folder).glob("*.yaml")
)

Tree: TypeAlias = dict[str, Any]


@functools.cache
def _loaded() -> list[Tree]:
    return [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def resources() -> list[Tree]:
    """Everything in every manifest, to be changed as one likes."""
    return copy.deepcopy(_loaded())


def of_kind(kind: str) -> list[Tree]:
    return [resource for resource in resources() if resource["kind"] == kind]


def named(kind: str, name: str) -> Tree:
    """The one resource of a kind whose name ends so."""
    (found,) = [each for each in of_kind(kind) if each["metadata"]["name"].endswith(name)]
    return found


def holding(key: str) -> Tree:
    """The data of the ConfigMap that has a key."""
    (found,) = [each for each in of_kind("ConfigMap") if key in each["data"]]
    data: Tree = found["data"]
    return data


def ray_pods() -> list[Tree]:
    """The templates inside the RayJob, whose definition is KubeRay's but whose pods are Kubernetes' own."""
    (job,) = of_kind("RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups] + [job["spec"]["submitterPodTemplate"]]


def pod_templates() -> list[Tree]:
    """The pods of every manifest, with their labels."""
    return [deployment["spec"]["template"] for deployment in of_kind("Deployment")] + ray_pods()


def container_of(template: Tree) -> Tree:
    (container,) = template["spec"]["containers"]
    found: Tree = container
    return found


def settings_of(template: Tree) -> dict[str, Tree]:
    """The environment of a pod's container, by name."""
    return {setting["name"]: setting for setting in container_of(template).get("env", [])}


def made_certificate(directory: Path, *, address: str, head: str) -> Path:
    """Return the directory with ``ca.crt``, ``tls.crt`` and ``tls.key`` of a pod and its head's name.

    The commands are those of the page and of the script, which stands as it is, but for its directories.
    Skips the test where openssl is missing.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    authority, made = directory / "authority", directory / "tls"
    authority.mkdir()
    made.mkdir()
    (line,) = [line for line in PAGE.splitlines() if line.startswith("openssl req")]
    subprocess.run(["sh", "-c", line], cwd=authority, check=True, capture_output=True)
    script = holding("certificate.sh")["certificate.sh"]
    script = script.replace("/etc/ray/authority", str(authority)).replace("/etc/ray/tls", str(made))
    place = {**os.environ, "POD_IP": address, "FQ_RAY_IP": head}
    subprocess.run(["sh", "-c", script], check=True, capture_output=True, env=place)
    return made

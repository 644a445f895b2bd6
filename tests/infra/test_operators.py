"""The resources of KubeRay and KEDA against the definitions with which their operators are installed.

The definitions are in the operators' Go modules, which the ``go`` command fetches; nothing is compiled. An
API server drops what a definition does not name, so here that is an error. Rules in CEL are not evaluated.
"""

import copy
import functools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tests.infra.manifests import Tree, named, of_kind, resources
from tests.processes import completed

KUBERAY: Final = ("github.com/ray-project/kuberay/ray-operator", "v1.5.1")
KEDA: Final = ("github.com/kedacore/keda/v2", "v2.21.0")
SUMS: Final = {
    KUBERAY: "h1:7FJYmB8oM+cnjv1VYCj/TfzRZG4XHvvt5Ayn5pZ5A1c=",
    KEDA: "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
}
"""Of the modules' content, as a go.sum has them."""
DEFINITIONS: Final = {
    "RayJob": (KUBERAY, "ray.io_rayjobs.yaml"),
    "ScaledObject": (KEDA, "keda.sh_scaledobjects.yaml"),
    "TriggerAuthentication": (KEDA, "keda.sh_triggerauthentications.yaml"),
}

# Fetching the modules, 4 MB, may take a while the first time; Go keeps them.
pytestmark = pytest.mark.timeout(300)


def operated() -> list[Tree]:
    """The resources that an operator reads."""
    return [each for each in resources() if each["apiVersion"].split("/")[0] in ("ray.io", "keda.sh")]


@functools.cache
def module(which: tuple[str, str]) -> Path:
    """Where an operator's module is on this machine."""
    if shutil.which("go") is None:
        pytest.skip("needs the go command: apt-get install golang-go")
    name = "@".join(which)
    # In no module, so that nothing but this one is asked for; its content is compared with the sum here.
    alone = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOSUMDB": "off", "GOWORK": "off"}
    fetched = completed("go", "mod", "download", "-json", name, cwd="/", env=alone)
    found = json.loads(fetched.stdout or "{}")
    if fetched.returncode:
        said = found.get("Error") or fetched.stderr
        pytest.skip(f"needs a Go module: go mod download {name}; it says {said}")
    assert found["Sum"] == SUMS[which]
    return Path(found["Dir"])


def _only_what_is_named(schema: Tree) -> Tree:
    """Refuse fields that a schema does not name, where it does not say that it keeps them."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for key, inner in schema.items():
        if key == "properties":
            for each in inner.values():
                _only_what_is_named(each)
        elif key in ("items", "additionalProperties") and isinstance(inner, dict):
            _only_what_is_named(inner)
    return schema


@functools.cache
def definition(kind: str) -> tuple[str, jsonschema.Draft7Validator]:
    """The ``apiVersion`` of a kind and what it may have."""
    which, file = DEFINITIONS[kind]
    text = (module(which) / "config" / "crd" / "bases" / file).read_text(encoding="utf-8")
    found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [each for each in found["spec"]["versions"] if each["storage"]]
    schema = _only_what_is_named(version["schema"]["openAPIV3Schema"])
    return f"{found['spec']['group']}/{version['name']}", jsonschema.Draft7Validator(schema)


def problems(resource: Tree) -> list[str]:
    """What an API server would not take or would drop, as ``path: problem``."""
    version, validator = definition(resource["kind"])
    wrong = [] if resource["apiVersion"] == version else [f"apiVersion: expected {version}"]
    return wrong + [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator.iter_errors(resource)
    ]


def test_the_operators_know_all_of_their_resources() -> None:
    found = operated()
    assert {each["kind"] for each in found} == DEFINITIONS.keys()
    assert {each["metadata"]["name"]: problems(each) for each in found} == {
        each["metadata"]["name"]: [] for each in found
    }


CLUSTER = ["spec", "rayClusterSpec"]


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        ("RayJob", ["spec", "entryPoint"], "train", "spec: .*'entryPoint' was unexpected"),
        ("RayJob", [*CLUSTER, "headGroupSpec", "template", "spec", "container"], [],
         r"spec\.rayClusterSpec\.headGroupSpec\.template\.spec: .*'container' was unexpected"),
        ("RayJob", ["apiVersion"], "ray.io/v1beta1", r"apiVersion: expected ray\.io/v1"),
        ("ScaledObject", ["spec", "triggers", 0, "metadata", "lagThreshold"], 2000, "2000 is not of type"),
        ("TriggerAuthentication", ["spec", "secretRef"], [], "'secretRef' was unexpected"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(kind: str, path: list[Any], value: object, problem: str) -> None:
    resource = copy.deepcopy(next(each for each in operated() if each["kind"] == kind))
    inner: Any = resource
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    said = problems(resource)
    assert any(re.search(problem, each) for each in said), said


def test_the_brokers_let_in_kedas_operator_as_it_is_installed() -> None:
    """It asks for the lag; its labels and its namespace are those of its own manifests."""
    (cluster,) = of_kind("Kafka")
    peers = cluster["spec"]["kafka"]["listeners"][0]["networkPolicyPeers"]
    (peer,) = [each for each in peers if "namespaceSelector" in each]
    text = (module(KEDA) / "config" / "manager" / "manager.yaml").read_text(encoding="utf-8")
    (operator,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    labels = operator["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": operator["metadata"]["namespace"]
    }


def test_keda_knows_the_settings_of_the_triggers_and_takes_them_where_they_stand() -> None:
    """To the definition a trigger is any map; which settings it has is in a schema of KEDA's own."""
    schema = json.loads((module(KEDA) / "schema/generated/scalers-schema.json").read_text(encoding="utf-8"))
    (kafka,) = [scaler for scaler in schema["scalers"] if scaler["type"] == "kafka"]
    settings = {each["name"]: each for each in kafka["parameters"]}
    for scaled in of_kind("ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["type"] == "kafka"
            for name, value in trigger["metadata"].items():
                assert settings[name].get("metadataVariableReadable"), name
                assert value in settings[name].get("allowedValue", [value]), name
    (login,) = of_kind("TriggerAuthentication")
    secret = named("Secret", "unstable-stream-scaler-login")["stringData"]
    for target in login["spec"]["secretTargetRef"]:
        setting = settings[target["parameter"]]
        assert setting.get("triggerAuthenticationVariableReadable"), target["parameter"]
        if target["name"] == "unstable-stream-scaler-login":
            value = secret[target["key"]]
            assert value in setting.get("allowedValue", [value]), target["parameter"]

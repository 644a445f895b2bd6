"""The Kubernetes manifests against published schemas, and what they promise about rights."""

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.infra.manifests import (
    PAGE,
    ROOT,
    Tree,
    container_of,
    holding,
    made_certificate,
    named,
    of_kind,
    pod_templates,
    ray_pods,
    resources,
    settings_of,
)
from tests.processes import completed
from tests.tiers import chosen
from unstable_stream.log.topics import load_topics
from unstable_stream.log.topics import manifests as topic_manifests
from unstable_stream.services.workers.retention import ARCHIVER_GROUP

pytestmark = pytest.mark.longer

STRIMZI = ROOT / "infra" / "strimzi"
KUBERNETES = ("1.30", "1.33", "1.37")  # the oldest and newest that are checked, and one between
NO_RIGHTS = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@chosen("version", KUBERNETES[::2], KUBERNETES[1:2])
def test_kubernetes_takes_its_own_resources(version: str) -> None:
    own = [
        found
        for found in resources()
        if "." not in found["apiVersion"].split("/")[0] or "k8s.io" in found["apiVersion"]
    ]
    assert {found["kind"] for found in own} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "Secret", "ServiceAccount",
    }  # fmt: skip
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": t["spec"]}
        for t in ray_pods()
    ]
    for resource in [*own, *pods]:
        kubernetes_validate.validate(resource, version, strict=True)


def test_kubernetes_takes_the_resources_of_the_page() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        kubernetes_validate.validate(yaml.safe_load(block), KUBERNETES[-1], strict=True)


@pytest.fixture(scope="module")
def strimzi(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that reads resources as Strimzi's operators do."""
    for program, package in (("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install {package}")
    jars = tmp_path_factory.mktemp("strimzi")
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(STRIMZI / "check" / "pom.xml"), "dependency:copy-dependencies",
         "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return ["java", "-cp", str(jars / "*"), str(STRIMZI / "check" / "Check.java")]


@pytest.mark.long
def test_strimzi_knows_every_field_of_its_resources(strimzi: list[str]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in STRIMZI.glob("*.yaml")]
    texts.append(topic_manifests(load_topics().values(), "unstable-stream").removeprefix("---\n"))
    done = completed(*strimzi, input="\n---\n".join(texts))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"{found['kind']}/{found['metadata']['name']} read"
        for text in texts
        for found in yaml.safe_load_all(text)
    ]


@pytest.mark.long
def test_strimzi_names_what_it_does_not_know(strimzi: list[str]) -> None:
    text = (STRIMZI / "users.yaml").read_text(encoding="utf-8").replace("simple", "simpel", 1)
    done = completed(*strimzi, input=text.replace("operations: [Write]", "operations: [Writ]", 1))
    assert done.returncode == 1
    assert "simpel" in done.stdout
    assert 'operations[0]: unknown value "Writ"' in done.stdout


@pytest.mark.parametrize(
    ("services", "followed"),
    [
        ("processors", {"reward-processor": "trajectories", "rating-processor": "game-outcomes"}),
        ("archivers", {f"{ARCHIVER_GROUP}-ARCHIVE_ID": "trajectories"}),
    ],
)
def test_the_scalers_follow_the_lag_and_find_the_brokers_from_their_own_namespace(
    services: str, followed: dict[str, str]
) -> None:
    scaled = named("ScaledObject", services)["spec"]
    target = named("Deployment", scaled["scaleTargetRef"]["name"])["spec"]
    volumes = target["template"]["spec"]["volumes"]
    assert all("persistentVolumeClaim" not in each for each in volumes), "several cannot mount one volume"
    (login,) = of_kind("TriggerAuthentication")
    service, _, port = (
        holding("UNSTABLE_STREAM_LOG")["UNSTABLE_STREAM_LOG"].removeprefix("kafka://").partition(":")
    )
    found = {}
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "kafka"
        assert trigger["authenticationRef"]["name"] == login["metadata"]["name"]
        settings = trigger["metadata"]
        assert all(isinstance(value, str) for value in settings.values())
        assert settings["bootstrapServers"] == f"{service}.NAMESPACE.svc:{port}"
        found[settings["consumerGroup"]] = settings["topic"]
    assert found == followed
    assert scaled["maxReplicaCount"] == max(load_topics()[topic].partitions for topic in followed.values())
    assert r's#\.NAMESPACE\.svc#.$NAMESPACE.svc#" infra/keda/*.yaml' in PAGE


def test_every_login_is_a_user_with_rights_and_every_connection_is_encrypted() -> None:
    (cluster,) = of_kind("Kafka")
    for listener in cluster["spec"]["kafka"]["listeners"]:
        assert listener["tls"] is True
        assert listener["authentication"]["type"] == "scram-sha-512"
    assert cluster["spec"]["kafka"]["authorization"] == {"type": "simple"}
    users = {user["metadata"]["name"] for user in of_kind("KafkaUser")}
    environment = holding("UNSTABLE_STREAM_LOG")
    assert environment["UNSTABLE_STREAM_KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"
    (port,) = {listener["port"] for listener in cluster["spec"]["kafka"]["listeners"]}
    assert environment["UNSTABLE_STREAM_LOG"].endswith(f":{port}")
    logins = set()
    for settings in map(settings_of, pod_templates()):
        if "UNSTABLE_STREAM_KAFKA_SASL_USERNAME" in settings:
            login = settings["UNSTABLE_STREAM_KAFKA_SASL_USERNAME"]["value"]
            password = settings["UNSTABLE_STREAM_KAFKA_SASL_PASSWORD"]["valueFrom"]["secretKeyRef"]
            assert password == {"name": login, "key": "password"}, "Strimzi makes a Secret of the user's name"
            logins.add(login)
    assert logins == users - {"unstable-stream-admin", "unstable-stream-scaler"}


def test_pods_have_no_rights_that_they_do_not_use() -> None:
    (job,) = of_kind("RayJob")
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    for template in pod_templates():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        for container in spec.get("initContainers", []):
            assert container["securityContext"] == NO_RIGHTS
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        is_rays = template["metadata"]["labels"].get("unstable-stream/part") == "ray"  # writes where it likes
        rights = {key: value for key, value in NO_RIGHTS.items() if key != "readOnlyRootFilesystem"}
        assert container_of(template)["securityContext"] == (rights if is_rays else NO_RIGHTS)


def test_rays_processes_talk_over_tls_and_only_the_init_container_has_the_authoritys_key() -> None:
    for template in ray_pods()[:-1]:  # the submitter starts no process of Ray's
        (init,) = template["spec"]["initContainers"]
        settings = {name: each.get("value") for name, each in settings_of(template).items()}
        assert settings["RAY_USE_TLS"] == "1"
        mounts = {each["name"]: each["mountPath"] for each in container_of(template)["volumeMounts"]}
        written = {each["name"]: each["mountPath"] for each in init["volumeMounts"]}
        assert mounts["certificate"] == written["certificate"]
        for name, file in (("SERVER_CERT", "tls.crt"), ("SERVER_KEY", "tls.key"), ("CA_CERT", "ca.crt")):
            assert settings[f"RAY_TLS_{name}"] == f"{mounts['certificate']}/{file}"
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes["ray-authority"]["secret"] == {"secretName": "unstable-stream-ray-authority"}
        assert "ray-authority" not in mounts
        script = volumes["certificate-script"]["configMap"]["name"]
        assert init["command"] == ["sh", f"{written['certificate-script']}/certificate.sh"]
        found = named("ConfigMap", script)
        for directory in (written["ray-authority"], written["certificate"]):
            assert directory in found["data"]["certificate.sh"]


def test_the_script_makes_a_certificate_that_the_authority_signed_for_the_pod(tmp_path: Path) -> None:
    made = made_certificate(tmp_path, address="10.1.2.3", head="head.default.svc.cluster.local")
    for option, name, said in (
        ("-verify_ip", "10.1.2.3", "tls.crt: OK\n"),
        ("-verify_hostname", "head.default.svc.cluster.local", "tls.crt: OK\n"),
        ("-verify_ip", "10.1.2.4", ""),
    ):
        done = completed("openssl", "verify", "-CAfile", "ca.crt", option, name, "tls.crt", cwd=made)
        assert done.stdout == said, done.stderr
    assert (made / "tls.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("way", ["Ingress", "Egress"])
def test_every_pod_is_in_a_network_policy(way: str) -> None:
    policies = [policy["spec"] for policy in of_kind("NetworkPolicy") if way in policy["spec"]["policyTypes"]]
    for template in pod_templates():
        labels = template["metadata"]["labels"]
        assert any(_selects(policy["podSelector"], labels) for policy in policies), labels


def test_the_submitter_reaches_the_heads_page_alone() -> None:
    (job,) = of_kind("RayJob")
    submitter = job["spec"]["submitterPodTemplate"]["metadata"]["labels"]
    allowed = [
        (rule.get("to"), port["port"])
        for policy in of_kind("NetworkPolicy")
        if _selects(policy["spec"]["podSelector"], submitter)
        for rule in policy["spec"]["egress"]
        for port in rule["ports"]
    ]
    head = [{"podSelector": {"matchLabels": {"unstable-stream/part": "ray"}}}]
    assert allowed == [(head, 8265), (None, 53), (None, 53)]


def _logs_in(template: Tree) -> bool:
    """Whether a pod is told where the log is, or has a login to it."""
    taken = container_of(template).get("envFrom", [])
    return any(name.startswith("UNSTABLE_STREAM_KAFKA") for name in settings_of(template)) or any(
        source.get("configMapRef", {}).get("name") == "unstable-stream-environment" for source in taken
    )


def test_the_brokers_let_in_who_uses_the_log_and_nobody_else() -> None:
    (cluster,) = of_kind("Kafka")
    for listener in cluster["spec"]["kafka"]["listeners"]:
        peers = listener["networkPolicyPeers"]
        assert all(peer["podSelector"]["matchLabels"] for peer in peers), "an empty selector means every pod"
        beside = [peer["podSelector"] for peer in peers if "namespaceSelector" not in peer]
        for template in pod_templates():
            labels = template["metadata"]["labels"]
            assert any(_selects(each, labels) for each in beside) == _logs_in(template), labels
        (elsewhere,) = [peer for peer in peers if "namespaceSelector" in peer]
        assert elsewhere["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "keda"}
    assert {_logs_in(template) for template in pod_templates()} == {True, False}


def _selects(selector: Tree, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", [])
    )

"""The compose file, the image and the manifests: what can be known of them without Docker and Kubernetes."""

import re
import shlex
import shutil
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
import typer
import yaml

from tests.infra.manifests import (
    MANIFESTS,
    PAGE,
    ROOT,
    Tree,
    container_of,
    holding,
    named,
    of_kind,
    pod_templates,
    resources,
    settings_of,
)
from tests.processes import completed
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE, is_shared
from unstable_stream.runs.config import VllmEngineConfig, parse_config, read_toml
from unstable_stream.runs.placement import Machine, place
from unstable_stream.ui.cli import app

COMPOSE = ROOT / "docker-compose.kafka.yml"
DOCKERFILE = ROOT / "infra" / "docker" / "Dockerfile"


@pytest.fixture(scope="module")
def compose() -> Tree:
    loaded: Tree = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return loaded


def sources(template: Tree) -> set[tuple[str, str]]:
    """Kind and name of what the environment of a pod's container is taken from."""
    taken = container_of(template).get("envFrom", [])
    return {(kind, at["name"]) for source in taken for kind, at in source.items()}


def assert_is_a_command(arguments: list[str]) -> None:
    """The command line takes these arguments; nothing is run."""
    command: Any = typer.main.get_command(app)
    name, *rest = arguments
    context = command.make_context("unstable-stream", arguments, resilient_parsing=True)
    found = command.get_command(context, name)
    assert found is not None, f"no command {name!r}"
    # Parsed for real, but not invoked.
    with found.make_context(name, rest, parent=context):
        pass


def test_docker_accepts_the_compose_file() -> None:
    if shutil.which("docker") is None or completed("docker", "compose", "version").returncode:
        pytest.skip(
            "needs the docker client with its compose plugin (https://docs.docker.com/compose/install)"
        )
    done = completed("docker", "compose", "-f", COMPOSE, "--profile", "train", "config", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


def test_compose_runs_the_broker_version_that_the_tests_run(compose: Tree) -> None:
    pom = (ROOT / "infra" / "kafka" / "pom.xml").read_text(encoding="utf-8")
    found = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>([\d.]+)</version>", pom)
    assert found
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{found[1]}"
    (cluster,) = of_kind("Kafka")
    assert cluster["spec"]["kafka"]["version"] == found[1]


def test_compose_publishes_on_loopback_only(compose: Tree) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_services_run_commands_that_there_are(compose: Tree) -> None:
    services = compose["services"].items()
    ours = {name: service for name, service in services if service["image"].startswith("unstable-stream:")}
    assert set(ours) == {"topics", "processors", "archiver", "monitor", "train"}
    for service in ours.values():
        assert_is_a_command(service["command"])
        assert service["image"] == f"unstable-stream:{service['build']['target']}"
        assert service["environment"]["UNSTABLE_STREAM_LOG"] == "kafka://kafka:19092"
    settings = [word for word in ours["train"]["command"] if word.startswith("external=")]
    config = parse_config(read_toml(ROOT / "unstable_stream" / "api" / "quickstart.toml"), settings)
    assert set(config.external) == {"processors", "archiver"}, "compose has its own"


def test_compose_starts_in_order_and_gives_everything_time_to_end(compose: Tree) -> None:
    services = compose["services"]
    for name in ("processors", "archiver", "monitor", "train"):
        assert services[name]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
    for name in ("topics", "ui"):
        assert services[name]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    for name in ("kafka", "processors", "archiver", "train"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= 60
    mounted = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert mounted == set(compose["volumes"])


def test_brokers_have_the_same_settings_everywhere(compose: Tree) -> None:
    """Those that change what the clients see; sizes and threads are the machine's business."""
    properties = dict(
        line.split("=", 1)
        for line in (ROOT / "infra" / "kafka" / "server.properties").read_text(encoding="utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    )
    environment = compose["services"]["kafka"]["environment"]
    (cluster,) = of_kind("Kafka")
    strimzi = cluster["spec"]["kafka"]["config"]
    for name in (
        "auto.create.topics.enable",
        "offsets.retention.minutes",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    ):
        assert str(environment[f"KAFKA_{name.replace('.', '_').upper()}"]) == properties[name], name
        assert str(strimzi[name]).lower() == properties[name], name


def test_the_image_is_built_from_files_that_there_are_with_extras_that_there_are(compose: Tree) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copies = [line for line in text.splitlines() if line.startswith("COPY") and "--from" not in line]
    copied = {name for line in copies for name in shlex.split(line)[1:-1]}
    assert copied == sent
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r"--extra (\w+)", text)) | set(re.findall(r"ARG ENGINE=(\S+)", text))
    assert named == {"delta", "kafka", "s3", "train"} <= set(project["optional-dependencies"])
    stages = {match[1] for match in re.finditer(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)}
    built = [service["build"]["target"] for service in compose["services"].values() if "build" in service]
    assert set(built) == {"services", "train"} <= stages


def test_pods_run_commands_that_there_are() -> None:
    for deployment in of_kind("Deployment"):
        assert_is_a_command(container_of(deployment["spec"]["template"])["args"])
    (job,) = of_kind("RayJob")
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert program == "unstable-stream"
    assert_is_a_command(arguments)


def test_pods_mount_only_what_is_declared_and_keep_secrets_in_secrets() -> None:
    declared = {(found["kind"], found["metadata"]["name"]) for found in resources()}
    for template in pod_templates():
        pod = template["spec"]
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        every = [*pod.get("initContainers", []), container_of(template)]
        assert {mount["name"] for each in every for mount in each.get("volumeMounts", [])} == set(volumes)
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in declared
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in declared
        for kind, name in sources(template):
            assert kind != "configMapRef" or ("ConfigMap", name) in declared
        for name, setting in settings_of(template).items():
            is_path = str(setting.get("value")).startswith("/")  # of a file that holds a key
            if re.search(r"KEY|PASSWORD|TOKEN|SECRET", name) and not is_path:
                assert "secretKeyRef" in setting["valueFrom"]


KEYS = {
    "ray": "unstable-stream-training-keys",  # writes checkpoints, reads a shared archive
    "unstable-stream-archivers": "unstable-stream-archivers-keys",  # writes a shared archive
    "unstable-stream-processors": "unstable-stream-processors-keys",  # reads it
}
"""The Secret with the keys of stores, by the label of the pods that use a store."""


def test_a_pod_gets_the_keys_that_its_work_needs_and_no_others() -> None:
    seen = set()
    for template in pod_templates():
        labels, pod = template["metadata"]["labels"], template["spec"]
        who = labels.get("unstable-stream/part") or labels["app"]
        seen.add(who)
        keys = {name for kind, name in sources(template) if kind == "secretRef"}
        assert keys == ({KEYS[who]} if who in KEYS else set()), who
        told = {name for kind, name in sources(template) if kind == "configMapRef"}
        archive, run = "unstable-stream-shared-archive", "unstable-stream-run"
        mounted = {volume.get("configMap", {}).get("name") for volume in pod["volumes"]}
        assert bool(keys) == (archive in told or run in mounted), f"{who}: keys go with a store's address"

        # What is left: the password of its own login, and who signs certificates.
        logins = settings_of(template)
        own = logins.get("UNSTABLE_STREAM_KAFKA_SASL_USERNAME", {}).get("value")
        referred = [setting.get("valueFrom", {}).get("secretKeyRef") for setting in logins.values()]
        assert {each["name"] for each in referred if each} == ({own} if own else set()), who
        volumes = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        mounts = {each["name"] for each in container_of(template)["volumeMounts"]}
        read = {secret for name, secret in volumes.items() if name in mounts}
        assert read == ({"unstable-stream-cluster-ca-cert"} if own else set()), who
    assert KEYS.keys() < seen
    assert seen - KEYS.keys() == {"submitter", "unstable-stream-archiver", "unstable-stream-monitor"}
    assert len(set(KEYS.values())) == len(KEYS), "rights of one can be taken away without the others'"


def test_checkpoints_and_a_shared_archive_are_in_buckets_of_their_own() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MANIFESTS]
    addresses = [found for text in texts for found in re.findall(r"s3://(\w+)/(\w+)", text)]
    assert sorted(addresses) == [("ARCHIVE_BUCKET", "archive"), ("BUCKET", "runs")]
    for bucket, _ in addresses:
        assert f"s#s3://{bucket}/#s3://${bucket}/#" in PAGE


def test_the_page_makes_the_secrets_that_nobody_else_makes_and_deletes_them() -> None:
    made = re.findall(r"^kubectl create secret generic (\S+)", PAGE, re.MULTILINE)
    assert sorted(made) == sorted([*KEYS.values(), "unstable-stream-ray-authority"])
    lines = re.findall(r"^kubectl delete secret (?:--ignore-not-found )?(.*)$", PAGE, re.MULTILINE)
    assert sorted(name for line in lines for name in line.split()) == sorted(made)


def test_an_archive_in_a_file_has_one_writer_and_a_shared_one_several_without_a_volume_to_share() -> None:
    archiver, archivers = (named("Deployment", name)["spec"] for name in ("archiver", "archivers"))
    assert (archiver["replicas"], archiver["strategy"]) == (1, {"type": "Recreate"})
    assert archivers["replicas"] > 1
    assert "strategy" not in archivers
    volumes = archivers["template"]["spec"]["volumes"]
    assert all("persistentVolumeClaim" not in volume for volume in volumes)
    shared = named("ConfigMap", "shared-archive")
    assert is_shared(shared["data"][ARCHIVE_VARIABLE])
    assert ("configMapRef", shared["metadata"]["name"]) in sources(archivers["template"])


def test_no_pod_needs_a_disk_that_several_nodes_can_mount() -> None:
    for claim in of_kind("PersistentVolumeClaim"):
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    root = parse_config(tomllib.loads(holding("run.toml")["run.toml"])).learner.ckpt_root
    assert root is not None
    assert root.startswith("s3://"), "what the learner writes is read by the engines, on other nodes"


def test_the_way_back_deletes_all_that_the_way_there_applied_but_no_claim() -> None:
    texts = {name: (ROOT / name).read_text() for name in re.findall(r"infra/\w+/[\w-]+\.yaml", PAGE)}
    lines = re.findall(r"^kubectl delete (.*)$", PAGE, re.MULTILINE)
    gone = {path for line in lines for path in re.findall(r"-f (\S+\.yaml)", line)}
    claims = {name for name, text in texts.items() if "kind: PersistentVolumeClaim" in text}
    assert claims, "they have results on their volumes"
    assert texts.keys() - claims == gone


def test_the_ray_job_has_the_ray_that_the_image_holds() -> None:
    (job,) = of_kind("RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert cluster["rayVersion"] == version("ray")
    assert f"ray=={version('ray')}" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_the_run_on_the_cluster_is_a_valid_configuration_that_fits_its_gpus() -> None:
    (job,) = of_kind("RayJob")
    config = parse_config(tomllib.loads(holding("run.toml")["run.toml"]))
    cluster = job["spec"]["rayClusterSpec"]
    workers = sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    assert isinstance(config.engine, VllmEngineConfig)
    plan = place(config, [Machine(gpus=1)] * (1 + workers))
    # The learner has a GPU of the workers', so the head, Ray's last machine, has an engine.
    assert [share.num_gpus for share in plan.shares] == [1.0] * (1 + workers)
    assert [share.service for share in plan.shares if share.machine == workers] == [f"engine {workers - 1}"]
    assert set(config.external) == {"processors", "archiver"}
    deployments = {d["metadata"]["name"].removeprefix("unstable-stream-") for d in of_kind("Deployment")}
    assert set(config.external) <= deployments

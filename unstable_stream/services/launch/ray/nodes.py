"""Ask each machine of a Ray cluster whether it has what a run needs, before anything of it starts.

Otherwise an actor fails minutes later, on a machine that nobody looks at.
"""

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.inference.base_model import (
    MODEL_FILES,
    is_snapshot,
    model_fingerprint,
    model_on_this_machine,
)
from unstable_stream.log.stores.adapter_format import CONFIG_FILE, MODEL_WEIGHTS_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.address import is_address
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.store import Store
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig, VllmEngineConfig
from unstable_stream.runs.placement import Machine
from unstable_stream.services.launch.plan import RunPlan
from unstable_stream.services.launch.ray.cluster import plan_on_cluster, start_local, stop_local
from unstable_stream.version import __version__

_DEADLINE_S = 120.0
"""Seconds in which every machine answers: a first worker on a busy machine takes tens of seconds."""
_FETCH_S = 3600.0
"""Seconds in which every machine fetches the base model, if it is one of Hugging Face's."""
_TELL_S = 60.0
"""Seconds after which those that have not are named again."""
_PATIENCE_S = 30.0
"""For the store of checkpoints, within that."""
_ADAPTER_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE, MODEL_WEIGHTS_FILE)
_CUDA_S: Final = 60.0
"""Seconds to load PyTorch on a busy machine and to wake the driver, within the deadline."""
_ASK_CUDA: Final = (
    "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda)"
)
_PRETEND: Final = "UNSTABLE_STREAM_PRETEND_GPUS"
"""Environment variable: 1 where Ray is told of GPUs that are not there, to try placement without any."""


class Equipment(msgspec.Struct, frozen=True):
    """The parts of what a run needs that one machine has."""

    version: str
    """Of this package."""
    python: str
    """Its major and minor version: Ray carries objects between equal ones only."""
    model: str | None
    """The fingerprint of the base model; empty if it is not there, ``None`` if it could not be fetched."""
    code: tuple[str, ...] | None
    """Identities of the extensions that the configuration names; ``None``: they could not be read."""
    directories: dict[str, str] = {}
    """The fingerprint of what else the run reads, by its path; empty: it is not there."""
    vllm: bool = False
    errors: tuple[str, ...] = ()
    """The things that it cannot do, each with what to do about it."""


def equipment(config: RunConfig, model_path: str, gpus: int = 0) -> Equipment:
    """Look at all that a run needs of this machine.

    Args:
        config: of the run.
        model_path: the directory of the base model at the launcher's.
        gpus: those that Ray counts here.
    """
    found = software(config, model_path)
    errors = filter(None, (_store_error(config), _gpu_error(gpus)))
    return msgspec.structs.replace(found, errors=(*found.errors, *errors))


def software(config: RunConfig, model_path: str) -> Equipment:
    """Look at the packages, the model and the extensions of this machine only.

    A base model of Hugging Face's is fetched if it is not here.
    """
    code = model = None
    errors = []
    try:
        code = tuple(f"{use.kind} {use.target} {use.sha256}" for use in code_in_use(config))
    except ConfigError as error:
        errors.append(f"{error} (copy the code there, or install it as a package on all machines)")
    try:
        model = model_fingerprint(Path(model_on_this_machine(config.model, model_path)))
    except ConfigError as error:
        errors.append(str(error))
    return Equipment(
        version=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        model=model,
        code=code,
        directories={
            path: model_fingerprint(Path(path).expanduser(), files)
            for path, (_, files) in _directories(config).items()
        },
        vllm=find_spec("vllm") is not None,
        errors=tuple(errors),
    )


def _directories(config: RunConfig) -> dict[str, tuple[str, Sequence[str]]]:
    """Return the directories that a run reads on any machine, beside its base model: by path, what names it,
    and patterns of the files that are read.
    """
    found: dict[str, tuple[str, Sequence[str]]] = {}
    for model in config.model_names:
        where = "learner" if model is None else f"trained_models, {model}"
        if path := config.for_model(model).learner.initial_lora_path:
            found[path] = (f"{where}.initial_lora_path", _ADAPTER_FILES)
    for opponent in (*config.model_pool.fixed, *config.evaluation.opponents):
        if opponent.path and opponent.kind in ("adapter", "model"):
            files = _ADAPTER_FILES if opponent.kind == "adapter" else MODEL_FILES
            found[opponent.path] = (f"opponent {opponent.name!r}", files)
    # The others are fetched: from a store, from Hugging Face, or with the package.
    fetched = (*config.model_revisions, "tiny-player")
    return {path: named for path, named in found.items() if not is_address(path) and path not in fetched}


def require(config: RunConfig, model_path: str, elsewhere: Equipment) -> None:
    """Check that this machine, which joined a run later, has the same software as the launcher's.

    Raises:
        ConfigError: it has not; says what it lacks and what to do.
    """
    if found := lacking(config, model_path, elsewhere, software(config, model_path)):
        raise ConfigError(f"{socket.gethostname()} lacks what the run needs: {'; '.join(found)}")


def _store_error(config: RunConfig) -> str:
    root = config.learner.ckpt_root
    if root is None or not is_address(root):
        return ""
    try:
        HostCache.of_host()
        Store(root, patience_s=_PATIENCE_S).read(".nothing")
    except (ConfigError, StoreError) as error:
        return f"learner.ckpt_root: {error}"
    return ""


def _gpu_error(gpus: int) -> str:
    if gpus == 0 or os.environ.get(_PRETEND) == "1":
        return ""
    # Ray hides the GPUs from a task that asks for none.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK_CUDA],
            capture_output=True,
            text=True,
            timeout=_CUDA_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"CUDA did not answer within {_CUDA_S:g} s: look at nvidia-smi there"
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return f"PyTorch cannot be loaded: {last}"
    usable, version = answer.stdout.split()[-2:]
    if int(usable) >= gpus:
        return ""
    why = "its PyTorch is built without CUDA" if version == "None" else "look at nvidia-smi there"
    return (
        f"Ray counts {gpus} GPUs, and PyTorch can use {usable}: {why}, or start Ray with --num-gpus={usable}"
    )


def lacking(config: RunConfig, model_path: str, here: Equipment, there: Equipment) -> list[str]:
    """Return what a machine lacks or has otherwise than the launcher's, each with what to do."""
    found = list(there.errors)
    if there.version != here.version:
        found.append(f"unstable_stream {there.version}, here {here.version}: install the same version")
    if there.python != here.python:
        found.append(f"Python {there.python}, here {here.python}: install the same version")
    if there.model == "":
        found.append(f"no model at {model_path}: copy it there, or name a directory that all machines have")
    elif there.model not in (None, here.model):
        found.append(f"another model at {model_path} than here: copy this one there")
    for path, (named, _) in _directories(config).items():
        if not there.directories.get(path):
            found.append(
                f"{named}: nothing at {path}: copy it there, or name a directory that all machines have"
            )
        elif there.directories[path] != here.directories.get(path):
            found.append(f"{named}: other files at {path} than here: copy these there")
    if there.code not in (None, here.code):
        other = sorted({use.split()[1] for use in {*there.code} ^ {*(here.code or ())}})
        found.append(f"other code than here of {', '.join(other)}: install the same version")
    if isinstance(config.engine, VllmEngineConfig) and not there.vllm:
        found.append("engine.type = 'vllm', and vLLM is not installed there")
    return found


def check_cluster(
    plan: Callable[[list[Machine]], RunPlan],
    config: RunConfig,
    model_path: str,
    progress: Callable[[str], None],
) -> None:
    """Connect to the cluster that ``RAY_ADDRESS`` names, ask all of its machines, and disconnect.

    Raises:
        ConfigError: the run cannot be placed on them, or a machine lacks something.
        ServiceError: it cannot be reached, or a machine does not describe itself.
    """
    start_local()
    try:
        planned = plan_on_cluster(plan)
        check_nodes(config, model_path, planned.placement.machines, progress)
    finally:
        stop_local()


def check_nodes(
    config: RunConfig,
    model_path: str,
    machines: Sequence[Machine],
    progress: Callable[[str], None] = lambda words: None,
) -> None:
    """Ask every machine of the cluster what it has; Ray must be initialised.

    Args:
        config: of the run.
        model_path: the directory of the base model.
        machines: those of the cluster.
        progress: called with the machines that are waited for while a model is fetched.

    Raises:
        ConfigError: a machine lacks something; names each such machine and what to do.
    """
    if is_snapshot(model_path):
        _fetch_model(config.model, model_path, machines, progress)
    here = equipment(config, model_path)
    asked = {machine: _on(machine, equipment, config, model_path, machine.gpus) for machine in machines}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=_DEADLINE_S)
    lines = []
    for machine, answer in asked.items():
        try:
            found = lacking(config, model_path, here, ray.get(answer, timeout=0))
        except ray.exceptions.GetTimeoutError:
            found = [f"no answer within {_DEADLINE_S:g} s: is it out of memory or disk?"]
        except ray.exceptions.RayTaskError as error:
            found = [f"cannot say what it has ({error.cause}): is unstable_stream installed there?"]
        except ray.exceptions.RayError as error:
            found = [f"cannot say what it has ({type(error).__name__}: {str(error).strip().splitlines()[0]})"]
        lines += [f"{machine.host}: {each}" for each in found]
    if lines:
        raise ConfigError("\n".join(["machines of the Ray cluster lack what the run needs:", *lines]))


def _fetch_model(
    name: str, model_path: str, machines: Sequence[Machine], progress: Callable[[str], None]
) -> None:
    """Let every machine fetch the base model. What fails is said when they are asked what they have.

    Raises:
        ConfigError: a machine has not answered in time.
    """
    fetching = {_on(machine, model_on_this_machine, name, model_path): machine for machine in machines}
    waiting, begun = list(fetching), time.monotonic()
    while True:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_TELL_S, fetch_local=False)
        if not waiting:
            return
        hosts = ", ".join(sorted(fetching[each].host for each in waiting))
        past_s = time.monotonic() - begun
        if past_s >= _FETCH_S:
            raise ConfigError(
                f"no answer within {_FETCH_S:g} s from {hosts}, which should fetch the model {name}: look "
                "whether Hugging Face can be reached from there, and whether the disk has room"
            )
        progress(f"fetching the model {name}: after {past_s:.0f} s no answer from {hosts}")


def _on(machine: Machine, function: Callable[..., object], *arguments: object) -> Any:
    """Call a function in a task of Ray on one machine; return Ray's reference to the answer."""
    strategy = NodeAffinitySchedulingStrategy(machine.node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy).remote(*arguments)

"""Ask each machine of a Ray cluster whether it has what a run needs, before anything of it starts.

Otherwise an actor fails minutes later, on a machine that nobody looks at.
"""

import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.inference.base_model import model_fingerprint
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig, VllmEngineConfig
from unstable_stream.runs.placement import Machine
from unstable_stream.stores import HostCache, Store, is_address
from unstable_stream.version import __version__

__all__ = ["Equipment", "check_nodes", "equipment", "lacking"]

_DEADLINE_S = 120.0
"""Seconds in which every machine answers: a first worker on a busy machine takes tens of seconds."""
_PATIENCE_S = 30.0
"""For the store of checkpoints, within that."""


class Equipment(msgspec.Struct, frozen=True):
    """The parts of what a run needs that one machine has."""

    version: str
    """Of this package."""
    python: str
    """Its major and minor version: Ray carries objects between equal ones only."""
    model: str
    """The fingerprint of the base model; empty if its directory is not there."""
    code: tuple[str, ...]
    """Identities of the extensions that the configuration names."""
    code_error: str = ""
    """The reason that they could not be read."""
    vllm: bool = False
    store_error: str = ""
    """The reason that the store of checkpoints cannot be used from it."""


def equipment(config: RunConfig, model_path: str) -> Equipment:
    """Look at this machine."""
    code: tuple[str, ...] = ()
    error = ""
    try:
        code = tuple(f"{use.kind} {use.target} {use.sha256}" for use in code_in_use(config))
    except ConfigError as failure:
        error = str(failure)
    return Equipment(
        __version__,
        ".".join(platform.python_version_tuple()[:2]),
        model_fingerprint(Path(model_path)) if Path(model_path).is_dir() else "",
        code,
        error,
        find_spec("vllm") is not None,
        _store_error(config),
    )


def _store_error(config: RunConfig) -> str:
    root = config.learner.ckpt_root
    if root is None or not is_address(root):
        return ""
    try:
        HostCache.of_host()
        Store(root, patience_s=_PATIENCE_S).read(".nothing")
    except (ConfigError, StoreError) as error:
        return str(error)
    return ""


def lacking(config: RunConfig, model_path: str, here: Equipment, there: Equipment) -> list[str]:
    """Return what a machine lacks or has otherwise than the launcher's, each with what to do."""
    found = []
    if there.version != here.version:
        found.append(f"unstable_stream {there.version}, here {here.version}: install the same version")
    if there.python != here.python:
        found.append(f"Python {there.python}, here {here.python}: install the same version")
    if not there.model:
        found.append(f"no model at {model_path}: copy it there, or name a directory that all machines have")
    elif there.model != here.model:
        found.append(f"another model at {model_path} than here: copy this one there")
    if there.code_error:
        found.append(f"{there.code_error} (copy the code there, or install it as a package on all machines)")
    elif there.code != here.code:
        other = sorted({use.split()[1] for use in {*there.code} ^ {*here.code}})
        found.append(f"other code than here of {', '.join(other)}: install the same version")
    if there.store_error:
        found.append(f"learner.ckpt_root: {there.store_error}")
    if isinstance(config.engine, VllmEngineConfig) and not there.vllm:
        found.append("engine.type = 'vllm', and vLLM is not installed there")
    return found


def check_nodes(
    config: RunConfig, model_path: str, machines: Sequence[Machine], *, deadline_s: float = _DEADLINE_S
) -> None:
    """Ask every machine of the cluster what it has; Ray must be initialised.

    Raises:
        ConfigError: a machine lacks something; names each such machine and what to do.
    """
    here = equipment(config, model_path)
    asked = {
        machine: ray.remote(equipment)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False))
        .remote(config, model_path)
        for machine in machines
    }
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=deadline_s)
    lines = []
    for machine, answer in asked.items():
        try:
            found = lacking(config, model_path, here, ray.get(answer, timeout=0))
        except ray.exceptions.GetTimeoutError:
            found = [f"no answer within {deadline_s:g} s: is it out of memory or disk?"]
        except ray.exceptions.RayTaskError as error:
            found = [f"cannot say what it has ({error.cause}): is unstable_stream installed there?"]
        except ray.exceptions.RayError as error:
            found = [f"cannot say what it has ({type(error).__name__}: {str(error).strip().splitlines()[0]})"]
        lines += [f"{machine.host}: {each}" for each in found]
    if lines:
        raise ConfigError("\n".join(["machines of the Ray cluster lack what the run needs:", *lines]))

"""What Python imports first in every process of a run under chaos: dies and misbehaves when it is told to.

The directory named by ``CHAOS_CONTROL`` holds the orders; :mod:`tests.chaos.faults` gives them.

``crash``
    ``WORDS N``: the process with the words in its command line is killed, as by ``kill -9``, at its N-th step
    from now on. Steps lie before and after each function below, and before each renaming of a file. The file
    becomes ``crashed``, with the step's name.
``environment``, ``engine``
    ``KIND UNTIL``: until this time, a part of all calls of the environment or the engine raises, hangs, or
    returns garbage.
``hang``
    the one next step of an environment never returns, and the file goes.
"""

import asyncio
import contextlib
import functools
import importlib.abc
import inspect
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_TRANSACTION = ("__aenter__", "append", "commit_positions", "save", "__aexit__")
_STEPS = {
    "unstable_stream.log.local.log": (
        "LocalLog.append",
        *(f"LocalTransaction.{name}" for name in _TRANSACTION),
    ),
    "unstable_stream.log.local.consumer": ("LocalConsumer.commit",),
    "unstable_stream.log.kafka.log": ("KafkaLog.append",),
    "unstable_stream.log.kafka.producer": tuple(f"KafkaTransaction.{name}" for name in _TRANSACTION),
    "unstable_stream.log.kafka.consumer": ("KafkaConsumer.commit",),
    "unstable_stream.archive.writer": ("ArchiveWriter.store",),
    "unstable_stream.services.workers.checkpoint_home": tuple(
        f"DirectoryHome.{name}" for name in ("publish", "remove", "prune", "write_note")
    ),
}
"""By module, the functions that change what outlives the process."""
_SESSION_S = 4.0
"""Seconds after which brokers give up a killed member of a group: each kill would wait for the usual ten."""
_ENVIRONMENT = ("textarena.envs.SimpleTak.env", "SimpleTakEnv.step")
_ENGINE = ("unstable_stream.inference.transformers.engine", "TransformersEngine.generate")
_SHARE = 0.1
"""The part of calls that go wrong while they do."""
_HANG_S = (0.2, 4.0)

# Not the generators of the module: an environment's games have them replaced by their own.
_chance = random.SystemRandom()
_counting = threading.Lock()
_counted: dict[int, int] = {}
"""By the order's moment, the steps that were seen since."""


def _control() -> Path:
    # Asked anew each time: a server that processes are forked from outlives a campaign and its directory.
    return Path(os.environ["CHAOS_CONTROL"])


def _order(name: str) -> str:
    try:
        return (_control() / name).read_text()
    except FileNotFoundError:
        return ""


def _misbehaviour(name: str) -> str:
    kind, _, until = _order(name).rpartition(" ")
    return kind if until and time.time() < float(until) else ""


def _step(name: str) -> None:
    order = _order("crash")
    if not order:
        return
    words, _, number = order.rpartition(" ")
    if words not in Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode():
        return
    with _counting, contextlib.suppress(FileNotFoundError):  # another process has obeyed in between
        control = _control()
        moment = (control / "crash").stat().st_mtime_ns
        _counted[moment] = _counted.get(moment, 0) + 1
        if _counted[moment] < int(number):
            return
        (control / "crash").unlink()
        told = control / f".crashed-{os.getpid()}"
        told.write_text(name)
        os.link(told, control / "crashed")
        os.kill(os.getpid(), signal.SIGKILL)


def _with_steps(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    async def finished(result: Any) -> Any:
        result = await result
        _step(f"after {name}")
        return result

    @functools.wraps(function)
    def stepped(*arguments: Any, **named: Any) -> Any:
        _step(f"before {name}")
        result = function(*arguments, **named)
        if inspect.isawaitable(result):
            return finished(result)
        _step(f"after {name}")
        return result

    return stepped


def _bad_environment(step: Callable[..., Any], _: str) -> Callable[..., Any]:
    @functools.wraps(step)
    def bad(*arguments: Any, **named: Any) -> Any:
        if _order("hang"):
            with contextlib.suppress(FileNotFoundError):  # another process obeys
                (_control() / "hang").unlink()
                while True:
                    time.sleep(3600)
        order = _misbehaviour("environment")
        if order and _chance.random() < _SHARE:
            if order == "raises":
                raise RuntimeError("chaos: this environment has a bug")
            time.sleep(_chance.uniform(*_HANG_S) * _SHARE)
        return step(*arguments, **named)

    return bad


def _bad_engine(generate: Callable[..., Any], _: str) -> Callable[..., Any]:
    @functools.wraps(generate)
    async def bad(*arguments: Any, **named: Any) -> Any:
        order = _misbehaviour("engine")
        completion = await generate(*arguments, **named)
        if not order or _chance.random() >= _SHARE:
            return completion
        if order == "hangs":
            await asyncio.sleep(_chance.uniform(*_HANG_S))
        elif order == "wrong tokens":
            completion.token_ids[:] = [_chance.randrange(20) for _ in completion.token_ids]
        elif order == "not finite":
            completion.logprobs[:] = [float("nan") for _ in completion.logprobs]
        elif order == "cut short":
            completion.logprobs.clear()
        elif order == "unknown tokens":
            completion.token_ids[:] = [10**6 for _ in completion.token_ids]
        return completion

    return bad


class _Patching(importlib.abc.MetaPathFinder):
    """Wraps functions of the modules above as soon as they are imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        wrappers: list[tuple[str, Callable[..., Any]]]
        wrappers = [(name, _with_steps) for name in _STEPS.get(fullname, ())]
        for (module, name), wrapper in ((_ENVIRONMENT, _bad_environment), (_ENGINE, _bad_engine)):
            wrappers += [(name, wrapper)] if module == fullname else []
        spec = PathFinder.find_spec(fullname, path, target) if wrappers else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            if fullname == "unstable_stream.log.kafka.log":
                module.KafkaLog.open.__func__.__kwdefaults__["session_timeout_s"] = _SESSION_S
            for function, wrapper in wrappers:
                whose, _, name = function.partition(".")
                owner = getattr(module, whose)
                setattr(owner, name, wrapper(getattr(owner, name), function))

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and os.environ["CHAOS_CONTROL"] not in str(arguments[0]):
        kept = "".join(letter for letter in Path(str(arguments[1])).name if not letter.isdigit())
        _step(f"before renaming to {kept.split('-')[0] or kept}")


if "CHAOS_CONTROL" in os.environ:
    sys.meta_path.insert(0, _Patching())
    sys.addaudithook(_audited)

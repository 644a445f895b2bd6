"""What makes the ancestor run on a CPU: a few of its names are replaced in its own processes.

Nothing of its code is here. Each replacement, and why:

- Each process imports what it uses: vLLM the engine's, PyTorch and the learner's classes the learner's. The
  package imports all of it in each of its 22 processes, which takes 640 MB in each, and its import 22 times
  before it plays. So it is spared that. ``left_out/sitecustomize.py`` leaves modules out, ``put_back``
  imports the real ones.
- ``Vllm`` has the four names of vLLM that its actor uses. vLLM has no argument ``task`` any more; on a CPU it
  needs the size of its key-value cache; and the model is float32 here, as for our side.
- ``str`` takes the place of ``dict`` in its actor. Where 30 seconds pass without a step of the engine, as on
  a busy machine, it calls ``dict`` with a number. That raises, and the engine never makes a step again.
- Its learner's model is float32 (see ``ancestor_learner``): it computes in bfloat16, which takes many times
  as long on a CPU without instructions for it. The learner finds no GPU and takes the CPU by itself.
- ``MarkedBuffer`` and the learner tell when games and updates are done.
- ``make_board`` takes the place of TextArena's ``make`` in its games: the observation is already the prompt
  of the tiny player. The ancestor would sample from the templated prompt and train on the bare observation,
  some hundred tokens here, where our side trains on the 19 of the prompt. So it is spared that work.
- ``as_it_is`` and ``cell`` are a template and its extraction under names of their own, since the tiny player
  knows none of its templates.
"""

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import textarena
import unstable

from benchmarks.peers.whole_run.work import KV_CACHE_GB, tell
from unstable_stream.games.board_templates import format_simpletak_board
from unstable_stream.games.templates import extract_cell

MARKS = "UNSTABLE_STREAM_PEER_MARKS"
"""Environment variable that tells its actors where to tell."""


class Vllm:
    """The names that the ancestor imports from vLLM, which is imported when one is used."""

    class LLMEngine:
        """Starts an engine."""

        @staticmethod
        def from_engine_args(arguments: Any) -> Any:
            return _vllm().LLMEngine.from_engine_args(arguments)

    @staticmethod
    def EngineArgs(*, task: str, **given: Any) -> Any:  # noqa: N802, the name that it takes the place of
        """Return arguments for a CPU."""
        assert task == "generate"
        return _vllm().EngineArgs(**given, dtype="float32", kv_cache_memory_bytes=KV_CACHE_GB * 2**30)

    @staticmethod
    def SamplingParams(**given: Any) -> Any:  # noqa: N802
        return _vllm().SamplingParams(**given)

    @staticmethod
    def LoRARequest(*given: Any) -> Any:  # noqa: N802
        return _lora_requests().LoRARequest(*given)


def put_back(name: str) -> Any:
    """Return the real module, in place of one that was left out."""
    for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[each]
    return importlib.import_module(name)


@cache
def _vllm() -> Any:
    return put_back("vllm")


@cache
def _lora_requests() -> Any:
    return importlib.import_module("vllm.lora.request")


class _Board:
    """An environment whose observations are the tiny player's prompts."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def get_observation(self) -> tuple[int, str]:
        player, observation = self._environment.get_observation()
        return player, format_simpletak_board(observation)


def make_board(env_id: str) -> _Board:
    """Return an environment as TextArena's ``make`` does."""
    return _Board(textarena.make(env_id))


def as_it_is(observation: str) -> str:
    """Return the prompt: the observation is one."""
    return observation


def cell(raw_action: str) -> tuple[str, dict[str, bool]]:
    """Return the action of a completion, and whether there was one."""
    return extract_cell(raw_action)


def marks() -> Path:
    """Return where to tell."""
    return Path(os.environ[MARKS])


def plain(actor: Any) -> Any:
    """Return the class of the ancestor's without Ray's decorator, which none can derive from."""
    return actor.__ray_metadata__.modified_class


class MarkedBuffer(plain(unstable.StepBuffer)):  # type: ignore[misc]  # Ray's decorator hides the class
    """The ancestor's buffer; tells of the first game, and of the steps played when a batch is drawn."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._played = 0

    def add_player_trajectory(self, player_traj: Any, env_id: str) -> None:
        super().add_player_trajectory(player_traj, env_id)
        if not self._played:
            tell(marks(), "game")
        self._played += len(player_traj.obs)

    def get_batch(self, batch_size: int) -> list[Any]:
        batch: list[Any] = super().get_batch(batch_size)
        tell(marks(), "batch", played=self._played)
        return batch

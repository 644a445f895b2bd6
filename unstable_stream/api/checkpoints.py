"""Checkpoints of the runs of a place by name, and as players of other runs.

A name is ``RUN@UPDATE``, or in a run that trains several models, ``RUN@MODEL/UPDATE``. The update is a
number, ``-1`` for the newest checkpoint, ``-2`` for the one before, or ``best``: the one that won the largest
share of its evaluation games, the newer of equals.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from unstable_stream.api.place import Place
from unstable_stream.api.shorthand import TINY_PLAYER, template_for
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Checkpoint
from unstable_stream.extensions import confined
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.runs.base_model import ModelIdentity, base_model_path
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork, find_fork
from unstable_stream.runs.history import find_run

if TYPE_CHECKING:
    from unstable_stream.inference.engine import Adapter
    from unstable_stream.inference.tokenizer import FileTokenizer
    from unstable_stream.inference.transformers.engine import TransformersEngine
    from unstable_stream.inference.vllm.engine import VllmEngine

EngineName: TypeAlias = Literal["transformers", "vllm"]


class CheckpointName(NamedTuple):
    """The parts of a checkpoint's name."""

    run: str
    update: int | Literal["best"] | None = None
    """Negative: counted from the newest checkpoint. ``None``: the newest."""
    model: str | None = None
    """``None``: the run trains one."""


def split_name(name: str) -> CheckpointName:
    """Return the parts of ``RUN``, ``RUN@UPDATE``, ``RUN@MODEL`` or ``RUN@MODEL/UPDATE``.

    The update may be ``last`` or ``best``.
    """
    run, at, rest = name.rpartition("@")
    if not at:
        return CheckpointName(name)
    model, _, update = rest.rpartition("/")
    if update == "best":
        return CheckpointName(run, "best", model or None)
    if update == "last":
        return CheckpointName(run, None, model or None)
    if not model and update[:1].isalpha():
        return CheckpointName(run, model=update)
    if not re.fullmatch(r"-?\d+", update):
        raise ConfigError(
            f"{name!r}: expected RUN@UPDATE with a number, e.g. demo-2026@20, RUN@-1, RUN@best, or "
            "RUN@MODEL/UPDATE"
        )
    return CheckpointName(run, int(update), model or None)


_BEST: Final = """
SELECT policy_version FROM learning_curve
WHERE split = 'eval' AND run_id = $run AND ($model IS NULL OR model = $model)
GROUP BY policy_version ORDER BY sum(win_rate * games) / sum(games) DESC, policy_version DESC LIMIT 1
"""


def find_checkpoint(
    place: Place,
    run: str,
    update: int | Literal["best"] | None = None,
    model: str | None = None,
    *,
    to_train: bool = False,
) -> tuple[Fork, RunConfig]:
    """Return a checkpoint to play with, or to train on, the last of the fork, and its run's configuration.

    Raises:
        RunError: no such run or checkpoint, or its files are missing.
    """
    number = _best(place, run, model) if update == "best" else update
    how: Any = {"model": model, "to_train": to_train, "located": place.data.located}
    dropped = place.dropped()
    return place.ask_history(lambda log: find_fork(log, run, number, dropped=dropped, **how))


def _best(place: Place, run: str, model: str | None) -> int:
    from unstable_stream.archive import query  # loads DuckDB

    dropped = place.dropped()
    run_id, _ = place.ask_history(lambda log: find_run(log, run, dropped))
    rows = query(place.archive, _BEST, {"run": run_id, "model": model}).rows
    if not rows:
        raise RunError(
            f"run {run_id} has no evaluated checkpoint, so none is the best; name one by its update"
        )
    return int(rows[0][0])


def find_policy(place: Place, policy: str) -> tuple[Fork, RunConfig] | None:
    """Return the checkpoint of this name and its run's configuration; see :func:`split_name`.

    ``None``: it names a model. Raises as :func:`find_checkpoint`.
    """
    # A model is ``tiny-player``, a directory, or has the slash of a Hugging Face id.
    if policy == TINY_PLAYER or "/" in policy.partition("@")[0] or Path(policy).is_dir():
        return None
    return find_checkpoint(place, *split_name(policy))


def as_opponent(fork: Fork) -> dict[str, Any]:
    """Return the configuration of an opponent that is a checkpoint: its adapter, under the checkpoint's
    name."""
    chosen = fork.checkpoints[-1]
    return {"name": fork.name, "kind": "adapter", "path": chosen.path, "sha256": chosen.sha256}


def begun_from(place: Place, config: RunConfig) -> RunConfig:
    """Return a configuration that begins with the checkpoint which its ``init_from`` names.

    Raises:
        RunError: no such run or checkpoint, or its files are missing.
        ConfigError: it has another base model, or other parameters are trained.
    """
    fork, recorded = find_checkpoint(place, *split_name(config.init_from))
    (checkpoint,) = fork.chosen
    own, learner = ModelIdentity.of_model(config.model), config.learner
    theirs = ModelIdentity.of_run(recorded)
    if not theirs.matches(own) or recorded.learner.parameters != learner.parameters:
        raise ConfigError(
            f"init_from = {config.init_from!r}: {fork.name} has the base model {theirs} and trains "
            f"{recorded.learner.parameters}, this run {own} and {learner.parameters}: set model and "
            "learner.parameters as they are there"
        )
    if checkpoint.path is None:
        return config  # the base model itself
    if learner.parameters == "all":
        return config.model_copy(update={"model": checkpoint.path})
    size = recorded.lora.lora_rank, recorded.lora.lora_alpha
    if size != (config.lora.lora_rank, config.lora.lora_alpha):
        raise ConfigError(
            f"init_from = {config.init_from!r}: the adapter has lora.lora_rank = {size[0]} and "
            f"lora.lora_alpha = {size[1]}: set them as they are there"
        )
    begun = learner.model_copy(update={"initial_lora_path": checkpoint.path})
    return config.model_copy(update={"learner": begun})


class LoadedPolicy(NamedTuple):
    """An engine with one policy; close the engine."""

    engine: "TransformersEngine | VllmEngine"
    tokenizer: "FileTokenizer"
    adapter: "Adapter | None"
    """``None``: the base model itself."""


def load_policy(
    path: str,
    checkpoint: Checkpoint | None,
    opened: ExitStack,
    *,
    engine: EngineName = "transformers",
    lora_rank: int = 8,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> LoadedPolicy:
    """Load a policy, which computes in float32; its files stay open until ``opened`` closes.

    Args:
        path: the directory of the base model.
        checkpoint: of a run with this base model; ``None``: the model itself.
        opened: gets what has to stay open.
        engine: what computes.
        lora_rank: of the checkpoint's adapter.
        chat_template_kwargs: variables of the model's chat template.

    Raises:
        ConfigError: the model cannot be loaded.
        EngineError: the checkpoint's weights are missing, or not those that were recorded.
    """
    from unstable_stream.inference.engine import Adapter
    from unstable_stream.inference.tokenizer import load_tokenizer

    adapter = None
    if checkpoint is not None and checkpoint.path is not None:
        saved = opened.enter_context(opened_checkpoint(checkpoint.path, checkpoint.sha256))
        adapter = Adapter(checkpoint.model_uid, str(saved), checkpoint.sha256, checkpoint.probe)
    tokenizer = load_tokenizer(path, chat_template_kwargs)
    if engine == "vllm":
        from unstable_stream.inference.vllm.engine import VllmEngine

        vllm = VllmEngine(path, dtype="float32", max_loras=1, lora_rank=lora_rank)
        return LoadedPolicy(vllm, tokenizer, adapter)
    from unstable_stream.inference.transformers.engine import TransformersEngine

    return LoadedPolicy(TransformersEngine(path, dtype="float32", max_loras=1), tokenizer, adapter)


LOADING: Final = ("libraries", "the base model's files", "the weights")
"""The parts that :func:`policy_at_work` loads, in this order."""


@asynccontextmanager
async def policy_at_work(
    place: Place, fork: Fork, config: RunConfig, told: Callable[[int], None]
) -> AsyncIterator[LoadedPolicy]:
    """Load the last checkpoint of a fork as :func:`load_policy`, and close it; code of others is confined.

    Args:
        place: where the run is.
        fork: the checkpoint.
        config: of its run.
        told: called with the number of parts of :data:`LOADING` that are loaded.
    """
    await asyncio.to_thread(import_module, "unstable_stream.inference.transformers.engine")
    told(1)
    allowed = place.allowed_code(fork.parent_run_id, [], config, config)
    with confined(allowed), ExitStack() as opened:
        path = await asyncio.to_thread(base_model_path, config)
        told(2)
        words = config.chat_template_kwargs
        loaded = await asyncio.to_thread(
            load_policy, path, fork.checkpoints[-1], opened, chat_template_kwargs=words
        )
        told(3)
        try:
            yield loaded
        finally:
            await loaded.engine.close()


def template_in(recorded: RunConfig, env_id: str) -> str:
    """Return the template of a run in an environment, or the one that suits its model there."""
    its = {each.env_id: each.template for each in (*recorded.evaluated_envs, *recorded.train_envs)}
    return its.get(env_id) or template_for(recorded.model, env_id)

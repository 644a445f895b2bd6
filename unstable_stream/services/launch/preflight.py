"""Find all failures that can be known before a process starts."""

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.events.seeds import train_game_seed
from unstable_stream.extensions import (
    KINDS,
    Reference,
    forget_changed_files,
    is_extension,
    load,
    needs_this_process,
)
from unstable_stream.games.environments import check_environment
from unstable_stream.games.openspiel.solution import information_states
from unstable_stream.games.opponents.scripted import check_scripted
from unstable_stream.games.seating import dealt_roles
from unstable_stream.games.templates import get_template
from unstable_stream.inference.base_model import check_model, model_here, resolve_model
from unstable_stream.inference.exploitability import game_of
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.log.stores.adapter_format import MODEL_WEIGHTS_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.address import is_address
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.checkpoint_files import has_file
from unstable_stream.log.stores.store import Store
from unstable_stream.reward_transformations import build_final, build_sampling, build_step
from unstable_stream.runs.base_model import base_model_path
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import (
    EngineExtensionConfig,
    EnvConfig,
    OpponentConfig,
    RunConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
)
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.extension_trials import envs_of, try_extensions
from unstable_stream.services.launch.first_turns import check_first_turn
from unstable_stream.services.streams.trackers import plugins_beside
from unstable_stream.services.workers.game_schedule import build_pool

_DEALS: Final = 32
"""So many games of an environment are dealt to learn which roles there are."""
_PATIENCE_S: Final = 60.0
"""For a store, at the start of a run: somebody looks on."""


def check_config(config: RunConfig) -> None:
    """Check environments, templates, opponents and transformations by constructing each once.

    Extensions are loaded from the present state of their files and tried on a small sample.

    Raises:
        EnvironmentUnavailableError: an environment cannot run on this machine.
        ConfigError: another setting cannot work; the message names the key to change.
    """
    config.check_trainable()
    forget_changed_files()
    find_code(config)
    _check_installed(config)
    _check_names(config)
    _check_opponents(config)
    try_extensions(config)
    plugins_beside(RunContext(config.name, config, DataDir(Path(gettempdir()) / "unstable-data")))
    for env in envs_of(config):
        check_environment(env.env_id, env.num_players)
        get_template(env.template)
    for opponent in (*config.model_pool.fixed, *config.evaluation.opponents):
        _check_opponent(opponent, config)
    for model in config.model_names:
        where = "learner" if model is None else f"trained_models, {model}"
        _check_weights(f"{where}.initial_lora_path", config.for_model(model).learner.initial_lora_path)
    _check_roles(config)
    _check_measured(config)
    _check_store(config.learner.ckpt_root)
    if config.metrics_port is not None:
        _check_port(config.metrics_port)
    build_pool(config).validate()
    build_final(list(config.rewards.final))
    build_step(list(config.rewards.step))
    build_sampling(list(config.rewards.sampling))
    if model_here(config.model, config.model_revisions.get(config.model)):
        check_base_model(config, base_model_path(config, weights=False))


def check_base_model(config: RunConfig, model_path: str) -> None:
    """Refuse a base model that engine or learner cannot compute, or that cannot play an environment.

    :func:`check_config` calls it where the model is on this machine, so that a dry run refuses what a start
    does; a model that must be fetched first is checked when it was.

    Raises:
        ConfigError: names the model, the reason and what would do.
    """
    trains = config.learner.iterations > 0
    adapts = trains and config.learner.parameters == "lora"
    check_model(
        model_path,
        plays_here=isinstance(config.engine, TransformersEngineConfig),
        trains=trains,
        targets=config.lora.target_modules if adapts else None,
    )
    if not trains:
        return  # in a tournament opponents may play alone
    templates = dict.fromkeys((*(env.template for env in envs_of(config)), *config.measured_games.values()))
    if config.chat_template_kwargs and not any(get_template(name).chat for name in templates):
        raise ConfigError(
            f"chat_template_kwargs: {', '.join(templates)} does not use the chat template of the model; "
            "choose a prompt template that does, such as chat or answer-chat, or leave it out"
        )
    tokenizer = load_tokenizer(model_path, config.chat_template_kwargs)
    tokenizer.check_vocabulary()
    for env in envs_of(config):
        check_first_turn(f"model {config.model!r}", env, env.template, tokenizer)


def _check_roles(config: RunConfig) -> None:
    """Refuse a role that is never dealt: its model would wait for ever for steps."""
    for env in envs_of(config):
        declared = env.teams or ()
        by_team = {member for group in declared for member in group if isinstance(member, str)}
        if not by_team and not config.deals_roles(env.env_id):
            continue
        dealt: set[str] = set()
        for number in range(_DEALS):
            seed = train_game_seed(config.seed, number)
            dealt |= set(dealt_roles(env.env_id, env.num_players, seed).values())
        there = f"deals {', '.join(sorted(dealt))}" if dealt else "deals no roles"
        for model in config.trained_models:
            plays = not model.env_ids or env.env_id in model.env_ids
            if model.roles and plays and not dealt & set(model.roles):
                raise ConfigError(
                    f"trained_models, {model.name}.roles: {env.env_id} {there}; name some of these, or other "
                    "environments in env_ids"
                )
        if unknown := by_team - dealt:
            raise ConfigError(f"teams of {env.env_id}: no {', '.join(sorted(unknown))}; it {there}")


def _check_installed(config: RunConfig) -> None:
    """Refuse vLLM where it is missing; machines of a cluster may have what this one lacks."""
    elsewhere = config.backend == "ray" and "RAY_ADDRESS" in os.environ
    if isinstance(config.engine, VllmEngineConfig) and not elsewhere and find_spec("vllm") is None:
        raise ConfigError(
            "engine.type = 'vllm': vLLM is not installed: pip install 'unstable_stream[vllm]' with a GPU; "
            "without one, make vllm-env in a clone; or use engine.type = 'transformers'"
        )


def _check_names(config: RunConfig) -> None:
    """Refuse an unknown name, for kinds whose names are all known here.

    Built-in ones are known without a look: an algorithm's module takes two seconds, since it imports PyTorch.
    """
    for kind, key, reference in config.references():
        known = KINDS[kind]
        if reference.target in known.built_in:
            continue
        own = needs_this_process(reference.target) or is_extension(known, reference)
        if not own and not known.names_elsewhere:
            load(known, reference, key)


def _check_opponents(config: RunConfig) -> None:
    """Refuse two opponents of one name: games and ratings could not tell them apart.

    The weight of the draw does not make two of one player.
    """
    named: dict[str, OpponentConfig] = {}
    for opponent in (*config.model_pool.fixed, *config.evaluation.opponents):
        player = opponent.model_copy(update={"weight": 1.0})
        if named.setdefault(opponent.name, player) != player:
            raise ConfigError(
                f"model_pool.fixed and evaluation.opponents: two different opponents are named "
                f"{opponent.name!r}; give one of them another name"
            )


def _envs_of(opponent: OpponentConfig, config: RunConfig) -> list[EnvConfig]:
    """Return the environments in which an opponent plays."""
    met = (
        *(config.train_envs if opponent in config.model_pool.fixed else ()),
        *(config.evaluated_envs if opponent in config.evaluation.opponents else ()),
    )
    return [env for env in dict.fromkeys(met) if env.num_players > 1]


def _check_opponent(opponent: OpponentConfig, config: RunConfig) -> None:
    if opponent.kind == "scripted":
        for env in envs_of(config):
            if env.num_players > 1:
                check_scripted(opponent.scripted, env.env_id)
    elif opponent.kind == "adapter":
        _check_weights(f"opponent {opponent.name!r}", opponent.path)
    elif opponent.kind == "model":
        _check_opponent_model(opponent, config)
    elif opponent.kind == "openai":
        get_template(opponent.template)
        for env in _envs_of(opponent, config):
            check_first_turn(f"opponent {opponent.name!r}", env, opponent.template, None)
        if not os.environ.get(opponent.api_key_env):
            raise ConfigError(
                f"opponent {opponent.name!r} needs a key: set the environment variable "
                f"{opponent.api_key_env} (any text for an endpoint that asks for none)"
            )


def _check_opponent_model(opponent: OpponentConfig, config: RunConfig) -> None:
    """Refuse a model that is not there, or that cannot play an environment."""
    where = f"opponent {opponent.name!r}"
    try:
        path = opponent.path or ""
        model_path = resolve_model(path, revision=config.model_revisions.get(path))
        check_model(model_path, plays_here=True)
        tokenizer = load_tokenizer(model_path, opponent.chat_template_kwargs)
        tokenizer.check_vocabulary()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    for env in _envs_of(opponent, config):
        check_first_turn(where, env, opponent.template, tokenizer)


def _check_weights(where: str, location: str | None) -> None:
    if location is None:
        return
    try:
        found = any(has_file(location, name) for name in (WEIGHTS_FILE, MODEL_WEIGHTS_FILE))
    except (ConfigError, StoreError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if not found:
        raise ConfigError(
            f"{where}: no {WEIGHTS_FILE} or {MODEL_WEIGHTS_FILE} at {location}; expected the place of a "
            "checkpoint: unstable-stream sql 'SELECT run_id, model_uid, path FROM checkpoints' lists them"
        )


def _check_measured(config: RunConfig) -> None:
    """Refuse games that cannot be solved, and an engine that cannot be asked."""
    for game, template in config.measured_games.items():
        information_states(game_of(game))
        get_template(template)
    engine = config.engine
    if config.measured_games and isinstance(engine, EngineExtensionConfig):
        made = load(KINDS["engine"], Reference.parse(engine.spec, "engine"), "engine")
        if isinstance(made, type) and not hasattr(made, "score"):
            raise ConfigError(
                f"evaluation.exploitability: engine {engine.type!r} has no method score, which tells how "
                "probable answers are (see docs/how-to/extending.md): add one, or measure nothing"
            )


def _check_store(root: str | None) -> None:
    if root is None or not is_address(root):
        return
    HostCache.of_host()
    try:
        Store(root, patience_s=_PATIENCE_S).check_writable()
    except (ConfigError, StoreError) as error:
        raise ConfigError(f"learner.ckpt_root: {error}") from error


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server does the same
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"metrics_port={port}: {error.strerror}; choose another with --metrics-port"
            ) from error

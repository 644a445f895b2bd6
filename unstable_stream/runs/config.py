"""The configuration of a run: one tree of frozen models, from TOML plus ``--set key=value``.

Unknown keys are errors. Every cross-field check runs before any process starts. The ``run-started`` event
records the resolved tree. The core takes plain values and does not see the configuration.

Every choice of code is open: a built-in's name, or a reference to an extension
(:mod:`unstable_stream.extensions`). Paths of files are made absolute when the configuration is read.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import pydantic
from pydantic import BaseModel, Field, JsonValue

from unstable_stream.errors import ConfigError
from unstable_stream.events import MOST_LEVELS, unfit
from unstable_stream.extensions import KINDS, Reference, is_extension
from unstable_stream.inference.adapter_files import heads_and_embeddings
from unstable_stream.inference.vllm.limits import VLLM_LORA_RANKS, check_extra_engine_args
from unstable_stream.runs.overlay import retyped
from unstable_stream.runs.presets import named_table, resolved, without_advantage
from unstable_stream.runs.sections import (
    A2CConfig,
    AlgorithmConfig,
    BufferConfig,
    Choice,
    CollectorConfig,
    ConfigSection,
    CurriculumConfig,
    EngineConfig,
    EngineExtensionConfig,
    EnvConfig,
    EvaluationConfig,
    ExploitabilityConfig,
    ExtensionConfig,
    LearnerConfig,
    LoraConfig,
    ModelPoolConfig,
    Named,
    OpponentConfig,
    PolicyGradientConfig,
    PPOConfig,
    ProcessorsConfig,
    ReinforceConfig,
    RewardConfig,
    SamplingConfig,
    TrainedModelConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
    as_table,
)
from unstable_stream.stores.address import IN_THIS_PROCESS, LONGEST_NAME, is_address, path_part

__all__ = [
    "A2CConfig",
    "AlgorithmConfig",
    "BufferConfig",
    "CollectorConfig",
    "EngineConfig",
    "EngineExtensionConfig",
    "EnvConfig",
    "EvaluationConfig",
    "ExploitabilityConfig",
    "ExtensionConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelPoolConfig",
    "OpponentConfig",
    "PPOConfig",
    "PolicyGradientConfig",
    "ProcessorsConfig",
    "ReinforceConfig",
    "RewardConfig",
    "RunConfig",
    "SamplingConfig",
    "TrainedModelConfig",
    "TransformersEngineConfig",
    "VllmEngineConfig",
    "parse_config",
    "parse_toml",
    "read_toml",
]


class RunConfig(ConfigSection):
    """Everything a run needs."""

    name: str = "run"
    """Display name; part of the run id, so of file names: at most 150 bytes of printable text."""
    seed: int = 0
    """Every seed of the run is derived from this one."""
    model: str
    """Base model: a directory, a Hugging Face id, or ``tiny-player``. A relative directory begins at the
    working directory; the run records it as an absolute one.
    """
    model_fingerprint: str = ""
    """Recorded by the run when it starts: the fingerprint of the files of its base model. When the run is
    resumed, forked, evaluated or played, the model must have it; it may be at another place. Empty: a model
    of Hugging Face's, which has a commit in ``model_revisions``, or a run that recorded none.
    """
    model_revisions: dict[str, str] = Field(default_factory=dict)
    """Version of each model of Hugging Face's, by its id: a commit, tag or branch; by default the newest. The
    run records the commit that it began with, and keeps it.
    """
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Variables of the model's chat template, e.g. ``{ enable_thinking = false }`` for Qwen3, where a prompt
    template uses it (``chat``, ``answer-chat``). One that it does not know changes nothing.
    """
    log: str = "local"
    """The event log: ``local`` (a file in the data directory), or brokers of Kafka such as
    ``kafka://host:9092,other:9092``.
    """
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """Local log: ``FULL`` survives power loss, ``NORMAL`` survives any kill of a process."""
    train_envs: tuple[EnvConfig, ...] = Field(min_length=1)
    """The training environments."""
    eval_envs: tuple[EnvConfig, ...] = ()
    """Defaults to the training environments."""
    trained_models: tuple[TrainedModelConfig, ...] = ()
    """Several trained models, each for some of the seats; empty: one for all (docs/several-models.md)."""
    sampling: SamplingConfig = SamplingConfig()
    lora: LoraConfig = LoraConfig()
    engine: EngineConfig = TransformersEngineConfig()
    collector: CollectorConfig = CollectorConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    model_pool: ModelPoolConfig = ModelPoolConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    rewards: RewardConfig = RewardConfig()
    processors: ProcessorsConfig = ProcessorsConfig()
    buffer: BufferConfig = BufferConfig()
    algorithm: AlgorithmConfig = ReinforceConfig()
    learner: LearnerConfig = LearnerConfig()
    consumers: tuple[Named, ...] = ()
    """Plug-in consumers that run beside the run."""
    trackers: tuple[Choice, ...] = ()
    """Receivers of every metric: ``jsonl``, ``tensorboard`` (files in the data directory), ``wandb``, or an
    extension.
    """
    directory: str = ""
    """Directory to search for modules of extensions; by default the one in which the run is started."""
    backend: Literal["ray", "inline"] = "ray"
    """``ray``: services are separate processes, on this machine or a Ray cluster; ``inline``: all run in this
    process, without Ray, for notebooks, debuggers and tests.
    """
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """Serve Prometheus metrics of the log on this port of 127.0.0.1; ``None``: not at all."""
    external: tuple[Literal["processors", "archiver"], ...] = ()
    """Services that are not started with the run, because they run elsewhere for all runs of the log."""
    max_restarts: int = Field(5, ge=0)
    """The most restarts of a dead service within an hour; one more death stops the run."""

    @pydantic.field_validator("name")
    @classmethod
    def _name_fits_a_file(cls, value: str) -> str:
        try:
            return path_part(value, "a name", longest=LONGEST_NAME)
        except ConfigError as error:
            raise ValueError(f"it becomes a part of file names: {error}") from error

    @property
    def max_pending_steps(self) -> int:
        """The back-pressure bound that applies."""
        return self.collector.max_pending_steps or 2 * self.learner.batch_size

    @property
    def model_names(self) -> tuple[str | None, ...]:
        """The names of the trained models; the only one of a run has none."""
        return tuple(model.name for model in self.trained_models) or (None,)

    @property
    def seats_by_model(self) -> dict[str, dict[str, Any]]:
        """Seats, environments and roles of each trained model, and its place in the order of the list."""
        return {
            each.name: {
                "place": place,
                "seats": each.seats,
                "env_ids": each.env_ids,
                "roles": each.roles,
            }
            for place, each in enumerate(self.trained_models)
        }

    def model_of(self, env_id: str, seat: int, role: str | None = None) -> str | None:
        """Return the name of the trained model that plays a seat; see :attr:`model_names`."""
        return next((model.name for model in self.trained_models if model.plays(env_id, seat, role)), None)

    def models_of(self, env: EnvConfig) -> set[str | None]:
        """Return the names of the trained models that play in an environment, in some role."""
        found: set[str | None] = set()
        for seat in range(env.num_players):
            found.add(self.model_of(env.env_id, seat))
            for model in self.trained_models:
                if not model.may_play(env.env_id, seat):
                    continue
                found.add(model.name)
                if not model.roles:
                    break  # no seat is left for those that follow
        return found

    def deals_roles(self, env_id: str) -> bool:
        """Return whether dealt roles decide which trained model plays in an environment."""
        return any(
            model.roles and (not model.env_ids or env_id in model.env_ids) for model in self.trained_models
        )

    def for_model(self, name: str | None) -> Self:
        """Return the configuration as it holds for one of the trained models."""
        own = next((model for model in self.trained_models if model.name == name), None)
        if own is None:
            return self
        changes = {
            key: value
            for key in ("learning_rate", "initial_lora_path")
            if (value := getattr(own, key)) is not None
        }
        return self.model_copy(update={"learner": self.learner.model_copy(update=changes)})

    @property
    def step_texts(self) -> bool:
        """Whether steps carry texts."""
        if self.rewards.step_texts is not None:
            return self.rewards.step_texts
        return any(
            kind in ("sampling_transformation", "buffer_strategy") and is_extension(KINDS[kind], reference)
            for kind, _, reference in self.references()
        )

    @property
    def max_buffer_size(self) -> int:
        """The buffer bound that applies."""
        return self.buffer.max_buffer_size or 4 * self.learner.batch_size

    @property
    def evaluated_envs(self) -> tuple[EnvConfig, ...]:
        """The evaluation environments that apply."""
        return self.eval_envs or self.train_envs

    @property
    def opponent_models(self) -> dict[str, OpponentConfig]:
        """The other models that play, each by its path with an opponent that it plays for."""
        opponents = (*self.model_pool.fixed, *self.evaluation.opponents)
        return {each.path: each for each in reversed(opponents) if each.kind == "model" and each.path}

    @property
    def measured_games(self) -> dict[str, str]:
        """The template of each game in which exploitability is measured.

        Raises:
            ConfigError: the game is none of the run's environments, and the section names no template.
        """
        section = self.evaluation.exploitability
        known = {env.env_id: env.template for env in (*self.evaluated_envs, *self.train_envs)}
        found = {}
        for game in section.games:
            template = known.get(game, section.template)
            if template is None:
                raise ConfigError(
                    f"evaluation.exploitability.games: {game} is none of the run's environments, so it has "
                    'no template: set evaluation.exploitability.template, e.g. to "answer-chat"'
                )
            found[game] = template
        return found

    @property
    def round_robin_games(self) -> int:
        """The number of all games of a round robin; 0 if this is none."""
        evaluation = self.evaluation
        if not evaluation.round_robin:
            return 0
        players = len(evaluation.opponents)
        each = evaluation.first_last_games or evaluation.max_eval_games_per_ckpt
        return each * players * (players - 1) // 2 * len(self.evaluated_envs)

    def check_trainable(self) -> None:
        """Refuse settings that may stand in a recorded run, but that no learner can train with.

        Raises:
            ConfigError: tokens were, or would be, sampled from a part of the distribution: their recorded
                log-probabilities belong to that part, and the learner's to the whole. Or the engine could
                not play the adapter, or checkpoints would be too old for their steps to be trained on.
        """
        if self.sampling.top_p < 1:
            raise ConfigError(
                f"sampling.top_p = {self.sampling.top_p}: the learner scores tokens under the whole "
                "distribution, so its importance ratios would be wrong. Set sampling.top_p = 1; a lower "
                "sampling.temperature, which the learner applies too, makes samples less random"
            )
        bound, save_every = self.buffer.max_staleness, self.learner.save_every
        if bound is not None and save_every > bound + 1:
            raise ConfigError(
                f"learner.save_every = {save_every}: games play checkpoints up to {save_every - 1} "
                f"updates old, and buffer.max_staleness = {bound} drops the steps of such games, so that no "
                f"update would be made. Set learner.save_every to at most {bound + 1}, or raise "
                "buffer.max_staleness"
            )
        adapts = self.learner.parameters == "lora"
        unsupported = heads_and_embeddings(self.lora.target_modules) if adapts else []
        if unsupported and not isinstance(self.engine, EngineExtensionConfig):
            raise ConfigError(
                f"lora.target_modules names {', '.join(unsupported)}: no engine adapts the output head or an "
                "embedding; leave it out and name projections, e.g. q_proj"
            )
        if isinstance(self.engine, VllmEngineConfig):
            check_extra_engine_args(self.engine.extra_engine_args)

    def references(self) -> list[tuple[str, str, Reference]]:
        """Return every reference as (kind of extension, key, reference), built-ins included."""
        listed: list[tuple[str, str, str | dict[str, Any]]] = []
        for key, envs in (("train_envs", self.train_envs), ("eval_envs", self.eval_envs)):
            for place, env in enumerate(envs):
                listed.append(("environment", f"{key}.{place}.env_id", env.env_id))
                listed.append(("template", f"{key}.{place}.template", env.template))
        for key, opponents in (
            ("evaluation.opponents", self.evaluation.opponents),
            ("model_pool.fixed", self.model_pool.fixed),
        ):
            for place, opponent in enumerate(opponents):
                if opponent.kind == "scripted":
                    listed.append(("opponent", f"{key}.{place}", opponent.scripted))
                elif opponent.kind in ("openai", "model"):
                    listed.append(("template", f"{key}.{place}.template", opponent.template))
        measured = self.evaluation.exploitability
        for place, game in enumerate(measured.games):
            listed.append(("environment", f"evaluation.exploitability.games.{place}", game))
        if measured.template is not None:
            listed.append(("template", "evaluation.exploitability.template", measured.template))
        for stage in ("final", "step", "sampling"):
            for place, transform in enumerate(getattr(self.rewards, stage)):
                listed.append((f"{stage}_transformation", f"rewards.{stage}.{place}", transform))
        listed.append(("opponent_sampling", "model_pool.sample_mode", self.model_pool.sample_mode))
        listed.append(("rating_system", "model_pool.rating_system", self.model_pool.rating_system))
        listed.append(("buffer_strategy", "buffer.strategy", self.buffer.strategy))
        listed.append(("algorithm", "algorithm", _spec_of(self.algorithm)))
        listed.append(("engine", "engine", _spec_of(self.engine)))
        for name, specs in (("consumer", self.consumers), ("tracker", self.trackers)):
            listed += [(name, f"{name}s.{place}", spec) for place, spec in enumerate(specs)]
        return [(kind, key, Reference.parse(spec, key)) for kind, key, spec in listed]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _resolve_preset(cls, value: Any) -> Any:
        return resolved(value) if isinstance(value, Mapping) else value

    @pydantic.field_validator("engine", mode="before")
    @classmethod
    def _default_engine(cls, value: Any) -> Any:
        # This lets `--set engine.max_loras=4` alone change the default engine.
        return as_table({"type": "transformers", **value} if isinstance(value, dict) else value)

    @pydantic.field_validator("algorithm", mode="before")
    @classmethod
    def _default_algorithm(cls, value: Any) -> Any:
        return as_table({"type": "reinforce", **value} if isinstance(value, dict) else value)

    @pydantic.model_validator(mode="after")
    def _check_combinations(self) -> Self:
        needed = int(self.learner.batch_size * self.learner.batch_delay_buffer)
        if self.max_buffer_size < needed:
            raise ValueError(
                f"buffer.max_buffer_size={self.max_buffer_size} can never hold the {needed} steps one update "
                "waits for (learner.batch_size x learner.batch_delay_buffer): raise it"
            )
        if self.max_pending_steps < needed:
            raise ValueError(
                f"collector.max_pending_steps={self.max_pending_steps} stops collection before the {needed} "
                "steps one update waits for are there: raise it"
            )
        if self.buffer.max_staleness is not None and self.max_pending_steps > self.max_buffer_size:
            raise ValueError(
                f"collector.max_pending_steps={self.max_pending_steps} exceeds "
                f"buffer.max_buffer_size={self.max_buffer_size}: a full buffer of stale steps "
                "(buffer.max_staleness) would wait for ever for games that are not started. Raise "
                "buffer.max_buffer_size, or lower collector.max_pending_steps"
            )
        system = Reference.parse(self.model_pool.rating_system).target
        if self.model_pool.sample_mode in ("match-quality", "ts-dist") and system != "trueskill":
            raise ValueError(
                f'model_pool.sample_mode="{self.model_pool.sample_mode}" compares ratings in points of '
                f'TrueSkill, found model_pool.rating_system="{system}": choose another mode, or trueskill'
            )
        if self.backend == "inline" and self.learner.num_learners > 1:
            raise ValueError(
                f'backend="inline" runs everything in one process, found '
                f"learner.num_learners={self.learner.num_learners}: set it to 1, or leave the backend out"
            )
        if self.backend != "inline" and (self.learner.ckpt_root or "").startswith(IN_THIS_PROCESS):
            raise ValueError(
                f'learner.ckpt_root="{self.learner.ckpt_root}" exists in one process only, and '
                'backend="ray" has several: name a store that all of them reach, or use backend="inline"'
            )
        if self.curriculum.mode != "fixed" and self.model_pool.sample_mode == "mirror":
            shared = [env.env_id for env in self.train_envs if env.num_players > 1]
            if shared:
                raise ValueError(
                    f'curriculum.mode="{self.curriculum.mode}" goes by results, and mirror self-play in '
                    f"{shared[0]} has none: choose another model_pool.sample_mode, with opponents"
                )
        if self.model_pool.sample_mode == "fixed" and not self.model_pool.fixed:
            raise ValueError(
                'model_pool.sample_mode="fixed" needs at least one entry in model_pool.fixed, '
                'e.g. fixed = [{ name = "random-legal" }]'
            )
        if self.processors.runtime == "faust" and self.log == "local":
            raise ValueError(
                'processors.runtime="faust" needs a Kafka log, found log="local": set log = '
                '"kafka://HOST:PORT", or use processors.runtime="generic"'
            )
        low, high = self.model_pool.lag_range
        if low > high:
            raise ValueError(f"model_pool.lag_range={[low, high]}: the first must not exceed the second")
        if self.learner.batch_size < self.learner.optimizer_steps:
            raise ValueError(
                f"learner.optimizer_steps={self.learner.optimizer_steps} exceeds "
                f"learner.batch_size={self.learner.batch_size}: nothing would be left for a step"
            )
        if self.learner.gradient_checkpointing and self.learner.activation_checkpointing:
            raise ValueError(
                "learner.gradient_checkpointing and learner.activation_checkpointing recompute the same "
                "activations: set one of them"
            )
        if self.evaluation.votes > 1 and self.evaluation.best_of > 1:
            raise ValueError(
                f"evaluation.votes={self.evaluation.votes} and evaluation.best_of={self.evaluation.best_of}: "
                "one answer of several is chosen by votes or by probability; set one of them to 1"
            )
        if self.evaluation.round_robin:
            self._check_round_robin()
        if self.trained_models:
            self._check_trained_models()
        _check_gpus(self.engine)
        if self.learner.parameters == "all" and isinstance(self.engine, VllmEngineConfig):
            raise ValueError(
                'learner.parameters="all": vLLM holds one whole model, and past checkpoints play beside the '
                'newest: use engine.type="transformers", or learner.parameters="lora"'
            )
        if self.learner.parameters == "all" and getattr(self.algorithm, "kl_coef", None):
            raise ValueError(
                'algorithm.kl_coef compares with the base model, which learner.parameters="all" changes: '
                'set it to 0, or learner.parameters="lora"'
            )
        begun_from = (
            self.learner.initial_lora_path,
            *(each.initial_lora_path for each in self.trained_models),
        )
        if self.learner.parameters == "all" and any(begun_from):
            raise ValueError(
                'initial_lora_path is an adapter, and learner.parameters="all" trains none: to begin '
                "from a checkpoint of all parameters, name its directory as the model"
            )
        if isinstance(self.engine, VllmEngineConfig) and self.lora.lora_rank not in VLLM_LORA_RANKS:
            ranks = ", ".join(map(str, VLLM_LORA_RANKS))
            raise ValueError(f"lora.lora_rank={self.lora.lora_rank}: vLLM takes one of {ranks}")
        return self

    def _check_round_robin(self) -> None:
        if self.learner.iterations:
            raise ValueError(
                f"evaluation.round_robin: found learner.iterations={self.learner.iterations}, and the "
                "checkpoints of a run do not take part: set it to 0"
            )
        if len(self.evaluation.opponents) < 2:
            raise ValueError(
                f"evaluation.round_robin: found {len(self.evaluation.opponents)} in evaluation.opponents, "
                "expected at least two who play each other"
            )
        games = self.evaluation.first_last_games or self.evaluation.max_eval_games_per_ckpt
        if games % 2:
            raise ValueError(
                f"evaluation.round_robin: found {games} games of each pair, expected an even number: every "
                "seed is played in both seat orders"
            )
        for env in self.evaluated_envs:
            if env.num_players < 2:
                raise ValueError(
                    f"evaluation.round_robin: {env.env_id} has one seat, expected two or more: name other "
                    "environments, on the command line with --env"
                )

    def _check_trained_models(self) -> None:
        names = [model.name for model in self.trained_models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"trained_models: {', '.join(twice)} is there twice: each needs its own name")
        played: set[str | None] = set()
        for env in (*self.train_envs, *self.evaluated_envs):
            for seat in range(env.num_players):
                name = self.model_of(env.env_id, seat)
                if name is None:
                    raise ValueError(
                        f"trained_models: none of {', '.join(names)} plays seat {seat} of {env.env_id}"
                        f"{' in any role' if self.deals_roles(env.env_id) else ''}: name the seat or the "
                        "environment in one, or add a model without seats, env_ids and roles"
                    )
            played |= self.models_of(env) if env in self.train_envs else set()
        idle = [name for name in names if name not in played]
        if idle:
            raise ValueError(
                f"trained_models: {', '.join(idle)} plays no seat of any of train_envs: a seat belongs to "
                "the first model that plays it"
            )
        for game in self.measured_games:
            if self.deals_roles(game) or None in (self.model_of(game, 0), self.model_of(game, 1)):
                raise ValueError(
                    f"evaluation.exploitability: no trained model plays each seat of {game}, whatever is "
                    "dealt: name another game, or models without roles"
                )
        if self.evaluation.round_robin:
            raise ValueError(
                "evaluation.round_robin: nothing is trained, so there is nobody for trained_models to name: "
                "leave it out. Checkpoints are players too: unstable-stream tournament RUN@MODEL/UPDATE ..."
            )


def _check_gpus(engine: EngineConfig) -> None:
    gpus = engine.num_gpus
    if gpus is not None and gpus > 1 and gpus != int(gpus):
        raise ValueError(f"engine.num_gpus={gpus:g}: expected a whole number, or a fraction of one GPU")
    if not isinstance(engine, VllmEngineConfig):
        return
    parts = engine.tensor_parallel_size
    if "tensor_parallel_size" in engine.extra_engine_args:
        raise ValueError(
            "engine.extra_engine_args.tensor_parallel_size: set engine.tensor_parallel_size instead, which "
            "also reserves the GPUs"
        )
    if parts > 1 and gpus not in (None, parts):
        raise ValueError(
            f"engine.num_gpus={gpus:g} and engine.tensor_parallel_size={parts}: an engine split over "
            f"{parts} GPUs has them for itself; leave engine.num_gpus out"
        )


def _spec_of(section: BaseModel) -> str | dict[str, Any]:
    return section.spec if isinstance(section, ExtensionConfig) else str(getattr(section, "type", ""))


_TOO_DEEP: Final = f"values nest deeper than {MOST_LEVELS} levels"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises :class:`ConfigError`."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path))  # some editors write a BOM
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """Return the content of a TOML document; ``origin`` names it in messages.

    Raises:
        ConfigError: it is no TOML, or its values nest too deep.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{origin}: {_TOO_DEEP}") from error
    except ValueError as error:  # also of a number with too many digits
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    _check(values, origin)
    return values


def _check(values: Mapping[str, Any], origin: str) -> None:
    problem = unfit(values)
    if problem is not None:
        raise ConfigError(f"{origin}: values {problem}")


def parse_config(
    values: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    origin: str = "configuration",
    recorded: bool = False,
) -> RunConfig:
    """Apply ``key.path=value`` overrides to nested mappings, and validate.

    Args:
        values: the configuration, section by section.
        overrides: what is in place of it.
        origin: names it in messages.
        recorded: it is what a run has recorded, whose relative paths begin where the run was started.

    Raises:
        ConfigError: one line per problem: the key, what was found and what to change.
    """
    _check(values, origin)
    tree = {
        key: named_table(value) if key in ("algorithm", "engine") else value
        for key, value in _deep_copy(values).items()
    }
    parted = [_parted(override) for override in overrides]
    for name, value in parted:
        section, _, leaf = name.partition(".")
        if name in ("algorithm", "algorithm.type"):
            tree = without_advantage(tree, value)
        if leaf == "type" and isinstance(tree.get(section), Mapping) and tree[section].get("type") != value:
            tree[section] = retyped(section, tree[section], value)
    for name, value in parted:
        _apply_override(tree, name, value)
    try:
        return _located(RunConfig.model_validate(tree), recorded=recorded)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(f"{origin}: {_explain(item)}" for item in error.errors())) from error


def _located(config: RunConfig, *, recorded: bool) -> RunConfig:
    """Return the configuration with absolute paths of models and adapters: it is read by processes, and by
    later commands, that stand elsewhere.

    A relative one begins at the working directory, or in what an earlier version has ``recorded``, at the one
    in which the run was started.
    """
    bases = (config.directory, Path.cwd()) if recorded and config.directory else (Path.cwd(),)

    def located(name: str | None, *, model: bool) -> Any:
        is_id = name == "tiny-player" or name in config.model_revisions
        if not name or is_address(name) or (model and is_id):
            return name
        path = Path(os.path.expanduser(name))  # pathlib raises where there is no such user,
        there = (Path(base) / path for base in bases)
        found = next((each for each in there if os.path.isdir(each)), None)  # or a path is too long
        # A model that is no directory is an id, or the error will say what was typed.
        return str(found.absolute() if found else name if model else path.absolute())

    def of_opponents(opponents: Sequence[OpponentConfig]) -> tuple[OpponentConfig, ...]:
        return tuple(
            each.model_copy(update={"path": located(each.path, model=each.kind == "model")})
            for each in opponents
        )

    def begun(section: Any) -> Any:  # LearnerConfig or TrainedModelConfig
        return section.model_copy(
            update={"initial_lora_path": located(section.initial_lora_path, model=False)}
        )

    pool, evaluation = config.model_pool, config.evaluation
    return config.model_copy(
        update={
            "model": located(config.model, model=True),
            "learner": begun(config.learner),
            "trained_models": tuple(map(begun, config.trained_models)),
            "model_pool": pool.model_copy(update={"fixed": of_opponents(pool.fixed)}),
            "evaluation": evaluation.model_copy(update={"opponents": of_opponents(evaluation.opponents)}),
        }
    )


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in values.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _deep_copy(value)
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def _parted(override: str) -> tuple[str, Any]:
    """Return key and value of an override."""
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise ConfigError(f"--set {override!r}: expected key=value, e.g. --set learner.iterations=50")
    try:
        values = tomllib.loads(f"value = {text}")
    except RecursionError as error:
        raise ConfigError(f"--set {name}: {_TOO_DEEP}") from error
    except ValueError:
        return name.strip(), text  # a bare word is a string, so that --set name=demo needs no quotes
    _check(values, f"--set {name}")
    return name.strip(), values["value"]


def _apply_override(tree: dict[str, Any], name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    node: Any = tree
    for parent in parents:
        child = _entry(node, parent, name) if isinstance(node, list) else node.setdefault(parent, {})
        if not isinstance(child, dict | list):
            raise ConfigError(f"--set {name}: {parent!r} is not a section")
        node = child
    if isinstance(node, list):
        raise ConfigError(f"--set {name}: name a key of the entry too, or set the whole list")
    node[leaf] = value


def _entry(entries: list[Any], part: str, name: str) -> Any:
    """Return the entry of a list that has this name or number."""
    named = [each for each in entries if isinstance(each, dict) and each.get("name") == part]
    if named:
        return named[0]
    if part.isdigit() and int(part) < len(entries):
        return entries[int(part)]
    known = [str(each.get("name", place)) for place, each in enumerate(entries) if isinstance(each, dict)]
    raise ConfigError(f"--set {name}: the list has no entry {part!r}; it has {', '.join(known) or 'none'}")


def _explain(item: Any) -> str:
    """Return one line for one of pydantic's error details."""
    where = ".".join(str(part) for part in item["loc"] if part not in _TAGGED)
    if item["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(item["loc"][:-1]))
        return f"unknown key {where!r}" + (f"; known here: {known}" if known else "")
    if item["type"] == "missing":
        return f"{where!r} is required"
    message = item["msg"].removeprefix("Value error, ")
    if not where or _may_hold_secret(item["input"]):
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, found {item['input']!r}"


def _may_hold_secret(value: object) -> bool:
    """Return whether a value is an address with what may be a password or a signature to keep quiet."""
    return isinstance(value, str) and bool(set(value.partition("://")[2]) & set("@?#"))


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    section: Any = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        if part in _TAGGED:
            section = _TAGGED[part]
            continue
        field = section.model_fields.get(part)
        if field is None:
            return []
        section = _section_of(field.annotation) or section  # for the engine the next part is its type
    return list(section.model_fields)


_TAGGED: dict[str, type[BaseModel]] = {
    "transformers": TransformersEngineConfig,
    "vllm": VllmEngineConfig,
    "reinforce": ReinforceConfig,
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "extension": ExtensionConfig,
}


def _section_of(annotation: Any) -> type[ConfigSection] | None:
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section_of(argument)
        if found is not None and found not in _TAGGED.values():
            return found
    return None

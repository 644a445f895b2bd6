"""The whole configuration of a run, with the checks across its sections, before any process starts."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import pydantic
from pydantic import BaseModel, Field, JsonValue

from unstable_stream.algorithms.settings import LoraSettings, PreferenceConfig, ReinforceConfig
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS, Reference, is_extension
from unstable_stream.extensions.sections import Choice, ConfigSection, ExtensionConfig, Named, as_table
from unstable_stream.inference.adapter_files import heads_and_embeddings
from unstable_stream.inference.vllm.client import VLLM_LORA_RANKS, check_extra_engine_args
from unstable_stream.log.stores.address import IN_THIS_PROCESS, LONGEST_NAME, path_part
from unstable_stream.runs.combinations import check_imitation, check_round_robin
from unstable_stream.runs.engine_sections import (
    EngineConfig,
    EngineExtensionConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
)
from unstable_stream.runs.evaluation_sections import EvaluationConfig
from unstable_stream.runs.overlay import resolved
from unstable_stream.runs.sections import (
    AlgorithmConfig,
    BufferConfig,
    CollectorConfig,
    CurriculumConfig,
    EnvConfig,
    ImitationConfig,
    LearnerConfig,
    ModelPoolConfig,
    OpponentConfig,
    ProcessorsConfig,
    RewardConfig,
    SamplingConfig,
    SweepConfig,
    TrainedModelConfig,
)


class RunConfig(ConfigSection):
    """Everything a run needs."""

    name: str = "run"
    """Display name; part of the run id, so of file names: at most 150 bytes of printable text."""
    note: str = ""
    """The purpose of the run, in your words: ``unstable-stream runs`` shows it, and finds the run by them."""
    seed: int = 0
    """Every seed of the run is derived from this one."""
    model: str
    """Base model: a directory, a Hugging Face id, or ``tiny-player``. A relative directory begins at the
    working directory; the run records it as an absolute one.
    """
    init_from: str = ""
    """A checkpoint to begin with, of a run in the same data directory and of the same base model: ``RUN@20``,
    ``RUN@last``, ``RUN@best``. The run records its place as ``learner.initial_lora_path``, or as ``model`` if
    all parameters are trained.
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
    """Several trained models, each for some of the seats; empty: one for all.
    See docs/how-to/several-models.md."""
    sampling: SamplingConfig = SamplingConfig()
    lora: LoraSettings = LoraSettings()
    engine: EngineConfig = TransformersEngineConfig()
    collector: CollectorConfig = CollectorConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    model_pool: ModelPoolConfig = ModelPoolConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    imitation: ImitationConfig = ImitationConfig()
    rewards: RewardConfig = RewardConfig()
    processors: ProcessorsConfig = ProcessorsConfig()
    buffer: BufferConfig = BufferConfig()
    algorithm: AlgorithmConfig = ReinforceConfig()
    learner: LearnerConfig = LearnerConfig()
    sweep: SweepConfig = SweepConfig()
    consumers: tuple[Named, ...] = ()
    """Plug-in consumers that run beside the run."""
    trackers: tuple[Choice, ...] = ()
    """Receivers of every metric: ``jsonl``, ``tensorboard`` (files in the data directory), ``wandb``,
    ``mlflow``, or an extension.
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
        return max(self.buffer.max_buffer_size or 4 * self.learner.batch_size, self.imitation.steps)

    @property
    def imitates(self) -> bool:
        """Whether it trains on turns of games that are played already."""
        return bool(self.imitation.where or self.imitation.pairs)

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
        players, envs = len(evaluation.opponents), len(self.evaluated_envs)
        pairs = envs if evaluation.seatings else players * (players - 1) // 2 * envs
        return pairs * (evaluation.first_last_games or evaluation.max_eval_games_per_ckpt)

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

    @pydantic.field_validator("engine", "algorithm", mode="before")
    @classmethod
    def _default_type(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        # This lets `--set engine.max_loras=4` alone change the default engine.
        default = "transformers" if info.field_name == "engine" else "reinforce"
        return as_table({"type": default, **value} if isinstance(value, dict) else value)

    @pydantic.model_validator(mode="after")
    def _check_combinations(self) -> Self:
        self._check_buffer()
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
        if self.evaluation.votes > 1 and self.evaluation.best_of > 1:
            raise ValueError(
                f"evaluation.votes={self.evaluation.votes} and evaluation.best_of={self.evaluation.best_of}: "
                "one answer of several is chosen by votes or by probability; set one of them to 1"
            )
        if self.evaluation.round_robin:
            check_round_robin(self.evaluation, self.learner, self.evaluated_envs)
        if self.trained_models:
            self._check_trained_models()
        if self.imitates:
            check_imitation(self.imitation, self.buffer, self.learner, several=bool(self.trained_models))
        if bool(self.imitation.pairs) != isinstance(self.algorithm, PreferenceConfig):
            raise ValueError(
                'imitation.pairs and algorithm.type="dpo" belong together: set both, or imitation.where for '
                "another algorithm"
            )
        _check_gpus(self.engine)
        self._check_training()
        return self

    def _check_buffer(self) -> None:
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

    def _check_training(self) -> None:
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
        if self.learner.parameters == "all" and isinstance(self.engine, VllmEngineConfig):
            raise ValueError(
                'learner.parameters="all": vLLM holds one whole model, and past checkpoints play beside the '
                'newest: use engine.type="transformers", or learner.parameters="lora"'
            )
        algorithm = self.algorithm
        based = getattr(algorithm, "kl_coef", None) and getattr(algorithm, "reference", None) == "base"
        if self.learner.parameters == "all" and based:
            raise ValueError(
                'algorithm.kl_coef compares with the base model, which learner.parameters="all" changes: '
                'set it to 0, algorithm.reference="past", or learner.parameters="lora"'
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

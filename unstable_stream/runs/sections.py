"""The sections of a run's configuration, frozen models; :mod:`unstable_stream.runs.config` is the whole.

The docstring under a field is its only description: docs/reference/configuration.md is made from them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias

import pydantic
from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from unstable_stream.algorithms.settings import BUILT_IN, BuiltInAlgorithmConfig
from unstable_stream.errors import ConfigError
from unstable_stream.events import is_checkpoint_uid
from unstable_stream.extensions import Reference
from unstable_stream.extensions.sections import (
    Choice,
    ConfigSection,
    ExtensionConfig,
    Named,
    Transform,
    by_type,
)
from unstable_stream.log.stores.address import checked_address
from unstable_stream.runs.engine_sections import EngineRange


def _as_location(value: str) -> str:
    try:
        return checked_address(value, "place")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("place: ")) from error


class EnvConfig(ConfigSection):
    """One environment: id, number of players, prompt template. As a string: its id, the rest by default."""

    env_id: Named
    """TextArena id, e.g. ``SimpleTak-v0-train``, or an extension."""
    num_players: PositiveInt = 2
    """The number of seats, including the model's own."""
    template: Named = "default"
    """Prompt template and its action extraction, by name or an extension."""
    weight: float = Field(1.0, gt=0)
    """Weight of the draw, relative to the other environments."""
    teams: tuple[tuple[Annotated[int, Field(ge=0)] | str, ...], ...] | None = None
    """Groups of seats, or of roles, that win together: ``[[0, 1], [2, 3]]``, ``[["Mafia"], ["Villager",
    "Doctor"]]``. Seats in none play for themselves; ``None``: as the environment declares."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _id_is_enough(cls, value: Any) -> Any:
        return {"env_id": value} if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _check_teams(self) -> "EnvConfig":
        members = [member for group in self.teams or () for member in group]
        twice = sorted({str(member) for member in members if members.count(member) > 1})
        if twice:
            raise ValueError(f"teams of {self.env_id}: {', '.join(twice)} is there twice")
        beyond = [member for member in members if isinstance(member, int) and member >= self.num_players]
        if beyond:
            raise ValueError(
                f"teams of {self.env_id}: there is no seat {beyond[0]} of {self.num_players}, counted from 0"
            )
        return self


_OWN_KEYS: Final = frozenset(
    {
        "model",
        "messages",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "chat_template_kwargs",
    }
)
"""Fields of a request that are not for ``extra_body``."""


class OpponentConfig(ConfigSection):
    """A fixed opponent."""

    name: str
    """Scripted: ``random-legal``, ``first-legal``, ``perfect``, …, or an extension; ``openai``: the
    endpoint's model name; ``adapter``, ``model``: any name. Events name the opponent by it."""
    kind: Literal["scripted", "openai", "adapter", "model"] = "scripted"
    """``openai``: behind an endpoint; ``adapter``: weights for the run's base model, played by its engine;
    ``model``: another model, played by an engine of its own."""
    player: Choice | None = None
    """Scripted: an extension that plays under ``name``; by default ``name`` itself is the player."""
    base_url: str = "https://openrouter.ai/api/v1"
    """OpenAI-compatible endpoint (kind ``openai``)."""
    api_key_env: str = "OPENROUTER_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never recorded."""
    template: Named = "default"
    """Kinds ``openai`` and ``model``: prompt template and its action extraction, by name or an extension."""
    max_tokens: PositiveInt = 1024
    """Longest answer; the thoughts of a model that reasons count, so it needs several thousand."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Kind ``openai``: the name of that limit in a request; OpenAI's o-series and GPT-5 want the second."""
    temperature: Annotated[float, Field(ge=0)] | Literal["default"] = 1.0
    """``"default"`` (kind ``openai``): none is sent, as models want that accept only their own."""
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)
    """Kind ``openai``: more fields of each request, e.g. ``{ reasoning_effort = "low" }``."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Kind ``model``: variables of its chat template, e.g. ``{ enable_thinking = false }``. Kind ``openai``:
    sent under this name, as servers of vLLM and SGLang take them."""
    weight: float = Field(1.0, gt=0)
    """In ``model_pool.fixed``: weight of the draw in the modes ``fixed`` and ``random``; checkpoints: 1."""
    path: str | None = None
    """Kind ``adapter``: directory of an adapter of the run's base model, or of a whole model where all
    parameters are trained; ``None``: the base model itself. It plays with the environment's template and the
    run's sampling. Kind ``model``: directory of the model, a Hugging Face id, or ``tiny-player``."""
    num_gpus: float = Field(0.0, ge=0, le=1)
    """Kind ``model``: a GPU for its engine, or a part of one; 0: it computes on the CPU; ignored where there
    are none."""
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
        of_kinds: dict[str, tuple[object, tuple[str, ...]]] = {
            "path": (self.path, ("adapter", "model")),
            "sha256": (self.sha256, ("adapter",)),
            "extra_body": (self.extra_body, ("openai",)),
            "max_tokens_name": (self.max_tokens_name != "max_tokens", ("openai",)),
            'temperature = "default"': (self.temperature == "default", ("openai",)),
            "chat_template_kwargs": (self.chat_template_kwargs, ("openai", "model")),
            "num_gpus": (self.num_gpus, ("model",)),
        }
        for key, (given, kinds) in of_kinds.items():
            if given and self.kind not in kinds:
                named = " or ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(f'{key} belongs to opponents of kind {named}, found "{self.kind}"')
        if self.kind == "model" and (self.path is None or is_checkpoint_uid(self.name)):
            raise ValueError(
                'an opponent of kind "model" needs a path, the directory of the model, and a name that is '
                f"none of the run's checkpoints: found path={self.path!r}, name={self.name!r}"
            )
        if own := _OWN_KEYS.intersection(self.extra_body):
            raise ValueError(f"extra_body.{min(own)}: other keys of the opponent decide on it; leave it out")
        return self

    @property
    def scripted(self) -> str:
        """The player as one string: an extension, or the name of a built-in."""
        return self.name if self.player is None else Reference.parse(self.player).text


class SamplingConfig(ConfigSection):
    """Settings for sampling the trained model's completions."""

    max_tokens: PositiveInt = 512
    """Longest completion; also the constant length normaliser of Dr. GRPO."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits where tokens are sampled and where the learner scores them; lower is less random."""
    top_p: float = Field(1.0, gt=0, le=1)
    """A run that trains takes only 1: the learner scores tokens under the whole distribution."""


# Further names of algorithms are presets: :mod:`unstable_stream.runs.overlay` replaces them by a built-in one
# with settings.
if TYPE_CHECKING:
    AlgorithmConfig: TypeAlias = BuiltInAlgorithmConfig | ExtensionConfig
else:
    AlgorithmConfig = by_type(BUILT_IN, ExtensionConfig)


class CollectorConfig(ConfigSection):
    """Settings of the collector."""

    num_actors: PositiveInt | EngineRange = 1
    """Number of inference engines, or ``{ min = 1, max = 16 }``: as many as the Ray cluster has room for,
    also if machines join or leave it while the run goes on."""
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
    env_step_timeout_s: PositiveFloat = 300.0
    """An environment that takes so many seconds for a move has hung: its game is abandoned, and the process
    that played it ends."""
    invalid_moves_allowed: int = Field(0, ge=0)
    """Number of invalid moves in a row that a player may make without losing."""
    filter_opponent_invalid: bool = False
    """Leave out training games that ended by the opponent's invalid move."""
    branches: int = Field(0, ge=0)
    """From one position of a training game, the newest checkpoint plays on so many times; the reward
    transformation ``BranchAdvantage`` compares its answers there. 0: no game is branched."""
    branch_share: float = Field(1.0, gt=0, le=1)
    """The share of training games that are branched; branches are not."""
    branch_at: Literal["random", "unsure"] = "random"
    """The position: before any turn that the trained model made, or before its least probable answer."""

    @property
    def fewest_engines(self) -> int:
        """The number of engines, or the least of a range."""
        return self.num_actors if isinstance(self.num_actors, int) else self.num_actors.min


class ModelPoolConfig(ConfigSection):
    """The opponents that the model trains against."""

    sample_mode: Choice = "mirror"
    """``mirror``, ``fixed``, ``lagged``, ``random``, ``match-quality``, ``ts-dist``, ``exploration``,
    ``pfsp-hard``, ``pfsp-variance``, or an extension: docs/explanation/ratings.md."""
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


class SweepConfig(ConfigSection):
    """The sweep that a run belongs to; train with --seeds or --grid records it."""

    name: str = ""
    """The sweep; empty: none."""
    varied: dict[str, JsonValue] = Field(default_factory=dict)
    """The keys that the sweep varies beside the seed, each with the value that this run has."""


class TrainedModelConfig(ConfigSection):
    """One of several trained models: an adapter of its own over the same base model, for some of the seats.

    A seat belongs to the first model in the list that plays it. Each model has its own learner state,
    batches, checkpoints, opponents and number of updates; ``learner.iterations`` and the other settings hold
    for each.
    """

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")
    """Name of the model, of letters, digits and ``_``; its checkpoints are ``ckpt-NAME-000012``."""
    seats: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The seats that it plays, counted from 0; empty: all."""
    env_ids: tuple[Named, ...] = ()
    """The environments that it plays in; empty: all."""
    roles: tuple[str, ...] = ()
    """The roles that it plays, as the environment names them when it deals them; empty: all."""
    learning_rate: float | None = Field(None, gt=0)
    """In place of ``learner.learning_rate``; ``None``: that one."""
    initial_lora_path: str | None = None
    """In place of ``learner.initial_lora_path``; ``None``: that one."""

    def plays(self, env_id: str, seat: int, role: str | None = None) -> bool:
        """Return whether the model plays a seat, if none before it in the list does."""
        return self.may_play(env_id, seat) and (not self.roles or role in self.roles)

    def may_play(self, env_id: str, seat: int) -> bool:
        """Return whether the model plays a seat if the right role is dealt to it."""
        return (not self.env_ids or env_id in self.env_ids) and (not self.seats or seat in self.seats)


class CurriculumConfig(ConfigSection):
    """The choice of the training environment."""

    mode: Literal["fixed", "win-rate", "learning-progress"] = "fixed"
    """``fixed``: by ``train_envs.weight``. ``win-rate``: more often where about half of the games are won.
    ``learning-progress``: more often where the results change. Both go by the latest 200 results of each
    environment, and multiply the weights."""
    floor: float = Field(0.1, ge=0, le=1)
    """This share of the games is drawn by the weights alone, so that no environment is forgotten."""


class ImitationConfig(ConfigSection):
    """Training on turns of games that are played already, in place of own games: ``unstable-stream imitate``.

    Where ``where`` or ``pairs`` is set, the run plays no training games.
    """

    where: str = ""
    """SQL over the archive's view ``moves``: the turns to train on, e.g. ``model_uid = 'perfect'``."""
    weight: str = "1"
    """SQL over the same: the weight of a turn in the loss, e.g. ``1 + reward``."""
    pairs: str = ""
    """A query of pairs of answers at one position, in place of ``where``: game and ``game_turn`` of the
    chosen move, and of the rejected one. For ``algorithm.type = "dpo"``."""
    turns: int = 0
    """Recorded by the run when it starts: the turns that were chosen."""
    made_anew: int = 0
    """Recorded likewise: of them, those whose tokens the run's own tokenizer and template made, because no
    model played them, or another one, or with another template."""
    steps: int = 0
    """Recorded likewise: the steps that were published. Each turn has one for each time that it is gone
    through."""


class RewardConfig(ConfigSection):
    """Reward transformations, in order: built-ins and extensions."""

    final: tuple[Transform, ...] = ({"type": "RoleAdvantageByEnvFormatter"},)
    """Once a game, on the rewards of all seats; what is built in: docs/how-to/change-the-reward.md."""
    step: tuple[Transform, ...] = ()
    """For each turn of a seat."""
    sampling: tuple[Transform, ...] = ({"type": "NormalizeRewardsByEnv", "z_score": True},)
    """On a batch, before it is trained on."""
    step_texts: bool | None = None
    """Whether steps carry observation and completion as text, for sampling transformations and buffer
    strategies that read them; ``None``: if one of these is an extension."""


class ProcessorsConfig(ConfigSection):
    """The stream processors: reward shaping and ratings."""

    runtime: Literal["generic", "faust"] = "generic"
    """The host of the processors: ``generic`` runs on any log, ``faust`` (faust-streaming) on Kafka."""


class BufferConfig(ConfigSection):
    """The step buffer."""

    max_buffer_size: PositiveInt | None = None
    """The most steps kept; ``None``: four batches."""
    strategy: Choice = "random"
    """``random``, ``fifo``, ``prioritised`` (steps with a large reward more often; takes ``exponent`` and
    ``floor``), ``paired`` (the steps of a preference pair together), or an extension."""
    max_staleness: int | None = Field(None, ge=0)
    """Steps sampled more than this many policy versions ago are dropped; ``None``: never."""
    overflow_draws: Literal["each-update", "once"] = "each-update"
    """``each-update``: which steps ``random`` and ``prioritised`` keep when there are too many is drawn again
    before each update; ``once``, as in runs recorded without a value: a step that was kept once always is,
    so that old ones gather."""


class LearnerConfig(ConfigSection):
    """The optimizer loop."""

    iterations: int = Field(200, ge=0)
    """Learner updates; N iterations make N updates. 0: only the initial policy is evaluated."""
    batch_size: PositiveInt = 384
    """Steps per update."""
    mini_batch_size: PositiveInt = 64
    """Most rows in one forward pass."""
    mini_batch_tokens: PositiveInt | None = None
    """Most tokens in one forward pass: rows times the longest row, prompt, completion and padding. A longer
    row is computed alone. The gradient stays that of the whole batch. ``None``: 4,096 on a GPU, 1,024 on a
    CPU.
    """
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per update; the batch is shuffled and split among them."""
    learning_rate: float = Field(1e-4, gt=0)
    """Step size of AdamW at its highest; ``lr_warmup_updates``, ``lr_final_fraction`` say how it changes."""
    lr_final_fraction: float = Field(1.0, ge=0, le=1)
    """The learning rate falls to this fraction at the last update; 1: constant."""
    lr_schedule: Literal["linear", "cosine"] = "linear"
    """The way it falls: on a line, or along half a cosine."""
    lr_warmup_updates: int = Field(0, ge=0)
    """First updates over which the learning rate rises from 0 to what it would be."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled decay: a step shrinks each weight by this times the learning rate."""
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
    """The parameters that are trained: those of a LoRA adapter, or all of the language model's (full
    fine-tuning). Encoders of images or sound that a model has beside it are not trained."""
    initial_lora_path: str | None = None
    """Directory or address of an adapter to begin with, as PEFT saves it or of a checkpoint."""
    ckpt_root: str | None = None
    """Place of the checkpoints: a directory, or the address of a store that all machines of the run reach,
    such as ``s3://bucket/runs`` (also ``gs``, ``az``, ``abfs``; credentials and endpoint from the
    environment). Each run has a directory in it. ``None``: the data directory."""
    on_collapse: Literal["warn", "stop", "lower-step"] = "warn"
    """The answer to a sign of collapse, beside the warning. ``warn``: nothing; ``stop``: the run stops, and
    can be resumed; ``lower-step``: the learning rate of all later updates is halved."""
    gradient_checkpointing: bool = False
    """Recompute activations with the model's own method; one of the two."""
    activation_checkpointing: bool = False
    """Recompute every decoder layer and the logits; this works with every model."""
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

    @pydantic.field_validator("ckpt_root", mode="after")
    @classmethod
    def _recorded_place(cls, value: str | None) -> str | None:
        return None if value is None else _as_location(value)

    @pydantic.model_validator(mode="after")
    def _check_learners(self) -> Self:
        if self.num_learners > 1 and self.num_gpus not in (None, 0, 1):
            raise ValueError(
                f"num_gpus={self.num_gpus:g} is a part of a GPU, and each of "
                f"num_learners={self.num_learners} learners needs a whole one: leave num_gpus out"
            )
        return self

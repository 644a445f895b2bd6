"""The settings of the adapter, and of the built-in algorithms, whose classes check arguments with them.

They are the keys of ``[lora]`` and ``[algorithm]``.

To add a built-in algorithm, write its settings here and its class in a module beside.

A configuration is read without torch, so this module loads none. The docstring under a field is its only
description: docs/reference/configuration.md is made from them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

import pydantic
from pydantic import Field, PositiveInt

from unstable_stream.extensions.sections import ConfigSection
from unstable_stream.log.stores.adapter_format import adapter_scale

ALL_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraSettings(ConfigSection):
    """The adapter that is trained, unless ``learner.parameters`` is ``all``."""

    lora_rank: PositiveInt = 16
    """Rank of the two matrices whose product is added to each weight."""
    lora_alpha: PositiveInt = 32
    """The product is scaled by this, divided by the rank."""
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of an adapted layer's inputs that is left out at random while it is trained."""
    use_rslora: bool = False
    """Scale the adapter by ``lora_alpha`` over the root of the rank (rsLoRA, arXiv:2312.03732), so that its
    steps do not shrink as the rank grows; for ranks above 32."""
    loraplus_lr_ratio: float = Field(1.0, ge=1)
    """Learning rate of the adapter's second factor, as a multiple of the first's (LoRA+, arXiv:2402.12354):
    wide models learn faster with 2 to 16, at a lower ``learner.learning_rate``."""
    target_modules: tuple[str, ...] = ALL_PROJECTIONS
    """Names of the linear layers that are adapted, as modules of the model end with them."""
    last_layers: PositiveInt | None = None
    """Only this many of the last decoder layers get the adapter; ``None``: all. Fewer train faster, because
    the backward pass ends at the first of them.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, as checkpoint events record them."""
        # Without those at their defaults that checkpoints from before these settings do not have.
        later = {"last_layers": None, "use_rslora": False, "loraplus_lr_ratio": 1.0}
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    @property
    def scale(self) -> float:
        """The factor of B A x."""
        config = {"lora_alpha": self.lora_alpha, "use_rslora": self.use_rslora}
        return adapter_scale(config, "", self.lora_rank)


class BuiltInAlgorithmConfig(ConfigSection):
    """The settings of a built-in algorithm."""

    implementation: ClassVar[str]
    """Its class, as ``module:Name``; imported at its first use."""
    type: str

    def arguments(self, updates: int) -> dict[str, Any]:
        """Return the name and the arguments of the algorithm of a run of so many updates."""
        return self.model_dump()


class ImportanceConfig(BuiltInAlgorithmConfig):
    """The weights of tokens of older policies: importance ratios, and the trust region."""

    is_clip: float | None = Field(2.0, gt=0)
    """Upper bound of the importance ratio; ``None``: no correction (ratio 1)."""
    ratio_of: Literal["token", "answer", "answer_mean"] = "token"
    """The unit that has an importance ratio: each token, the whole answer, or the answer to the power of one
    over its length, as GSPO has it. Answers matter where they are long and the learner's numbers differ from
    the engine's."""
    mask_below: float | None = Field(None, gt=0, le=1)
    """No gradient for tokens (answers) that became less likely than this factor; IcePop's is 0.5."""
    mask_above: float | None = Field(None, ge=1)
    """No gradient for tokens (answers) that became more likely than this factor; IcePop's is 5."""
    clip_low: float | None = Field(None, gt=0, le=1)
    """PPO's clipping: no gradient for a negative advantage and a ratio below 1 minus this; ``None``: off."""
    clip_high: float | None = Field(None, gt=0)
    """PPO's clipping: no gradient for a positive advantage and a ratio above 1 plus this; DAPO uses 0.28.
    ``None``: off."""
    trust_region: Literal["behaviour", "update"] = "behaviour"
    """The middle of the clipped region: the policy that played, or the one at the update's start, which
    suits stale batches with several optimizer steps and costs a forward pass more."""

    @property
    def clips(self) -> bool:
        """Whether there is a trust region."""
        return self.clip_low is not None or self.clip_high is not None

    @pydantic.model_validator(mode="after")
    def _check_trust_region(self) -> Self:
        if self.trust_region == "update" and not self.clips:
            raise ValueError("trust_region='update' needs clip_low or clip_high: without them there is none")
        return self


class PolicyGradientConfig(ImportanceConfig):
    """The settings that all built-in algorithms share: importance, entropy, divergence, the mean."""

    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus at the first update, falling linearly to 0 at the last."""
    loss_average: Literal["constant", "answer", "token"] = "constant"
    """The divisor of an optimizer step's tokens. ``constant``: the token limit, so that long answers are
    punished like short ones (Dr. GRPO); ``answer``: their answer's length, so that all answers weigh alike
    (GRPO, GSPO); ``token``: the number of tokens, so that all tokens weigh alike (DAPO)."""
    truncated_turns: Literal["train", "mask", "drop"] = "train"
    """Treatment of turns that were cut at the token limit, and in which no action was found. ``train``: like
    any other turn; ``mask``: they count in the batch mean but contribute nothing; ``drop``: they are left out
    and recorded as ``truncated``."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the divergence from the reference in the loss; 0: it is not computed."""
    reference: Literal["base", "past", "average"] = "base"
    """The policy that ``kl_coef`` pulls towards. ``base``: the base model; ``past``: the policy as it was,
    renewed now and then; ``average``: a moving average of the weights, which follows after each update."""
    reference_every: int = Field(40, ge=0)
    """``past``: renewed after so many updates; 0: never, the policy that the run began with. ``average``: the
    updates that it reaches back, 1 / so much of the way after each."""
    clip_cov_ratio: float = Field(0.0, ge=0, le=1)
    """Clip-Cov: share of an optimizer step's tokens that are left out of the gradient, rounded down; 0: off,
    the paper's is 2e-4. This and KL-Cov cost a forward pass more."""
    clip_cov_lb: float = 1.0
    """Clip-Cov leaves out only tokens whose part of the covariance is above this,"""
    clip_cov_ub: float = 5.0
    """and below this. Both suppose advantages with a standard deviation of 1."""
    kl_cov_ratio: float = Field(0.0, ge=0, le=1)
    """KL-Cov: share of the tokens that are penalised, likewise; 0: off, the paper's is 2e-4 to 2e-3."""
    kl_cov_coef: float = Field(1.0, ge=0)
    """KL-Cov: weight of the penalty, the absolute log ratio to the policy that sampled."""
    target_entropy: float | None = Field(None, gt=0)
    """The entropy bonus begins at ``entropy_coef`` and adapts to hold the mean entropy of the trained tokens
    at this many nats; ``None``: it falls linearly."""
    entropy_coef_step: float = Field(0.005, gt=0)
    """Change of the adaptive entropy bonus after each update."""
    epochs: PositiveInt = 1
    """Passes over the batch of an update. After the first the ratio has moved by the update itself: set
    ``clip_low`` and ``clip_high``."""

    @pydantic.model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError(f"clip_cov_lb={self.clip_cov_lb} must be below clip_cov_ub={self.clip_cov_ub}")
        if self.reference != "base" and not self.kl_coef:
            raise ValueError(f'reference="{self.reference}" pulls with the weight kl_coef: set it above 0')
        if self.reference == "average" and not self.reference_every:
            raise ValueError('reference="average" needs a reference_every of at least 1')
        return self

    def arguments(self, updates: int) -> dict[str, Any]:
        """Return the settings, and the update at which the entropy bonus ends."""
        return {**self.model_dump(), "entropy_decay_updates": updates}


class ReinforceConfig(PolicyGradientConfig):
    """REINFORCE, and what builds on it without a critic: one pass over each batch. The default."""

    implementation = "unstable_stream.algorithms.reinforce:Reinforce"
    type: Literal["reinforce"] = "reinforce"
    """This algorithm."""


class CriticConfig(PolicyGradientConfig):
    """The settings of algorithms with a critic and generalised advantage estimation."""

    discount: float = Field(1.0, ge=0, le=1)
    """Factor by which a turn discounts the next one; as that of ``Discount``, if it is among the rewards."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """1: the advantage is the return minus the value; 0: it trusts the critic's value of the next turn."""
    critic_learning_rate: float = Field(1e-2, gt=0)
    """The peak; it follows the schedule of ``learner.learning_rate``."""
    normalize_advantages: bool = False
    """Divide the advantages of an update by their standard deviation."""


class A2CConfig(CriticConfig):
    """A2C: REINFORCE with a critic and generalised advantage estimation."""

    implementation = "unstable_stream.algorithms.a2c:A2C"
    type: Literal["a2c"] = "a2c"
    """This algorithm."""


class PPOConfig(CriticConfig):
    """PPO: a critic, generalised advantage estimation, and several passes with the clipped objective."""

    implementation = "unstable_stream.algorithms.ppo:PPO"
    type: Literal["ppo"] = "ppo"
    """This algorithm."""
    epochs: PositiveInt = 4
    """Passes over the batch of an update."""
    clip_low: float | None = Field(0.2, gt=0, le=1)
    """No gradient for a negative advantage and a ratio below 1 minus this; ``None``: off."""
    clip_high: float | None = Field(0.2, gt=0)
    """No gradient for a positive advantage and a ratio above 1 plus this; ``None``: off."""
    is_clip: float | None = Field(3.0, gt=0)
    """Upper bound of the ratio; ``None``: no bound."""


class PreferenceConfig(PolicyGradientConfig):
    """Preferences: DPO and IPO on the pairs of ``imitation.pairs``. Settings of ratios have no effect."""

    implementation = "unstable_stream.algorithms.preference:Preference"
    type: Literal["dpo"] = "dpo"
    """This algorithm."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull to the reference: the larger, the nearer the policy stays."""
    loss: Literal["dpo", "ipo"] = "dpo"
    """``dpo``: the logistic loss of the margin; ``ipo``: its squared distance from ``1 / (2 beta)``."""
    is_clip: float | None = Field(None, gt=0)
    """As above; by default no ratio: the answers are not the policy's own."""
    reference: Literal["base", "past", "average"] = "past"
    """The policy that margins are measured from, by default the one that the run begins with."""
    reference_every: int = Field(0, ge=0)
    """As above."""

    @pydantic.model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.clip_cov_ratio or self.kl_cov_ratio or self.clips:
            raise ValueError("dpo has no trust region, Clip-Cov or KL-Cov: leave their keys out")
        return self


BUILT_IN: Final[Mapping[str, type[BuiltInAlgorithmConfig]]] = {
    settings.model_fields["type"].default: settings
    for settings in (ReinforceConfig, PreferenceConfig, PPOConfig, A2CConfig)
}
"""By the name that ``algorithm.type`` takes; the first is the default. Whatever names algorithms follows."""

IMPLEMENTATIONS: Final = {name: settings.implementation for name, settings in BUILT_IN.items()}

"""The kinds of extension, each with its configuration key, its built-in names and its signature.

Built-ins are written as ``module:Name`` and imported at their first use, so this table loads neither torch
nor games.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Kind:
    """One kind of extension."""

    name: str
    """The name in messages and in ``run-started``, e.g. ``buffer_strategy``."""
    key: str
    """The configuration key that names an extension of this kind."""
    expects: str
    """The signature, in one line."""
    names: Mapping[str, str] | str = field(default_factory=dict)
    """``module:Name`` by built-in name, or the ``module:Name`` of such a mapping."""
    presets: tuple[str, ...] = ()
    """Other names, which the configuration replaces by a built-in one with settings."""
    names_elsewhere: str = ""
    """The other source of names; empty: a name that is not built in is an error."""
    families: Mapping[str, str] = field(default_factory=dict)
    """``module:Name`` by family: ``openspiel:kuhn_poker`` is made by that of ``openspiel``, which is given
    ``kuhn_poker``."""

    @functools.cached_property
    def built_in(self) -> Mapping[str, str]:
        """``module:Name`` by built-in name."""
        if not isinstance(self.names, str):
            return self.names
        module, _, name = self.names.partition(":")
        names: Mapping[str, str] = getattr(importlib.import_module(module), name)
        return names

    @property
    def plural(self) -> str:
        """The plural: packages announce entry points in the group ``unstable_stream.<plural>``."""
        return f"{self.name.removesuffix('y')}ies" if self.name.endswith("y") else f"{self.name}s"

    @property
    def example(self) -> str:
        """A file of ``examples/extensions/``."""
        return f"{self.name}.py"

    def family_of(self, target: str) -> tuple[str, str] | None:
        """Return the maker of a built-in family and the member's name, ``None`` for any other target."""
        family, colon, member = target.partition(":")
        return (self.families[family], member) if colon and family in self.families else None


_POOL: Final = "unstable_stream.model_pool.pool"
_SAMPLE_MODES: Final = "fixed mirror lagged random match-quality ts-dist exploration pfsp-hard pfsp-variance"


def _in(module: str, *names: str) -> dict[str, str]:
    """Return the places of reward transformations in one module."""
    return {name: f"unstable_stream.reward_transformations.{module}:{name}" for name in names}


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            "algorithm",
            "algorithm",
            "a subclass of BaseAlgo with update(self, batch, *, scale: float, update: int) -> dict of sums",
            "unstable_stream.algorithms.settings:IMPLEMENTATIONS",
            presets=("spiral", "rloo", "grpo", "dr-grpo", "dapo", "gspo", "cross-entropy", "ipo"),
        ),
        Kind(
            "final_transformation",
            "rewards.final",
            "__call__(x: dict[int, float], env_id: str | None) -> dict[int, float]",
            _in("final", "WinDrawLossFormatter", "RoleAdvantageFormatter", "RoleAdvantageByEnvFormatter"),
        ),
        Kind(
            "step_transformation",
            "rewards.step",
            "__call__(trajectory: TrajectoryView, step_index: int, base_reward: float) -> float",
            _in("step", "RewardForFormat", "PenaltyForInvalidMove", "PenaltyForLength", "Discount"),
        ),
        Kind(
            "sampling_transformation",
            "rewards.sampling",
            "__call__(steps: list[Sample], env_id: str | None) -> list[Sample]",
            _in(
                "sampling",
                "NormalizeRewards",
                "NormalizeRewardsByEnv",
                "GroupRelativeAdvantage",
                "BranchAdvantage",
                "LeaveOneOutAdvantage",
            ),
        ),
        Kind(
            "opponent_sampling",
            "model_pool.sample_mode",
            "weight(pool: ModelPool, me: str, opponent: str, env_id: str | None) -> float, 0 or more",
            dict.fromkeys(_SAMPLE_MODES.split(), f"{_POOL}:ModelPool"),
        ),
        Kind(
            "buffer_strategy",
            "buffer.strategy",
            "rank(step: Step, update: int, seed: int) -> float, lowest first",
            dict.fromkeys(("random", "fifo"), "unstable_stream.algorithms.buffer:StepBuffer")
            | {"prioritised": "unstable_stream.algorithms.buffer:Prioritised"}
            | {"paired": "unstable_stream.algorithms.buffer:paired"},
        ),
        Kind(
            "template",
            "train_envs.template",
            "a PromptTemplate, a class with format(observation: str) -> str and "
            "extract(completion: str) -> (action: str, feedback: dict[str, bool]), or such a format function",
            names_elsewhere="unstable_stream.games.templates",
        ),
        Kind(
            "opponent",
            "evaluation.opponents",
            "player(observation: str) -> str, player(turn: TurnContext) -> str, or a class with "
            "move(self, turn: TurnContext) -> str",
            names_elsewhere="unstable_stream.games.opponents.scripted",
        ),
        Kind(
            "environment",
            "train_envs.env_id",
            "a class with TextArena's reset(num_players, seed), get_observation() -> (seat, text), "
            "step(action) -> (done, info) and close() -> (rewards, game_info)",
            names_elsewhere="TextArena",
            families={
                "openspiel": "unstable_stream.games.openspiel.games:OpenSpielGame",
                "disguise": "unstable_stream.games.disguises.game:DisguisedGame",
            },
        ),
        Kind(
            "engine",
            "engine",
            "engine(model_path: str, **arguments) -> Engine with async generate(request), stats() and "
            "async close()",
            {
                "transformers": "unstable_stream.inference.transformers.engine:TransformersEngine",
                "vllm": "unstable_stream.inference.vllm.engine:VllmEngine",
            },
        ),
        Kind(
            "rating_system",
            "model_pool.rating_system",
            "a class like unstable_stream.model_pool.systems.RatingSystem",
            {
                "trueskill": "unstable_stream.model_pool.skill:TrueSkill",
                "elo": "unstable_stream.model_pool.systems:Elo",
                "openskill": "unstable_stream.model_pool.systems:OpenSkill",
            },
        ),
        Kind(
            "tracker",
            "trackers",
            "a class with log(self, values: dict[str, float], *, run_id: str, source: str, step: int | None, "
            "time_ms: int) -> None",
            {
                "jsonl": "unstable_stream.services.streams.trackers:JsonLinesTracker",
                "tensorboard": "unstable_stream.services.tracking.tensorboard:TensorBoardTracker",
                "wandb": "unstable_stream.services.tracking.wandb:WandbTracker",
                "mlflow": "unstable_stream.services.tracking.mlflow:MlflowTracker",
                "otel": "unstable_stream.services.tracking.opentelemetry:OtelTracker",
                "openlineage": "unstable_stream.services.tracking.openlineage:OpenLineageTracker",
            },
        ),
        Kind(
            "consumer",
            "consumers",
            "a function (event, context) or a class with handle(event, context), decorated with @consumer",
        ),
    )
}
"""The kinds by name."""

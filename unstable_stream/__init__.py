"""Event-sourced self-play reinforcement learning for language models on text games.

``import unstable_stream as us``, then ``us.build(...)``; docs/python-api.md describes every name. Names are
loaded when they are first asked for, so that the import is quick and loads neither torch nor Ray.
"""

import importlib
from typing import TYPE_CHECKING

from unstable_stream.version import __version__

if TYPE_CHECKING:
    from unstable_stream import algorithms, reward_transformations
    from unstable_stream.algorithms import A2C, PPO, Reinforce
    from unstable_stream.api.build import build, list_runs, load, sql
    from unstable_stream.api.evaluation import evaluation
    from unstable_stream.api.exploitability import exploitability
    from unstable_stream.api.games import Game
    from unstable_stream.api.push import push
    from unstable_stream.api.run import Run, open_run
    from unstable_stream.api.shorthand import EvalEnvSpec, TrainEnvSpec
    from unstable_stream.api.tables import Table
    from unstable_stream.api.tournament import tournament
    from unstable_stream.api.unstable_baselines import (
        Collector,
        ModelPool,
        StandardLearner,
        StepBuffer,
        TerminalInterface,
        Tracker,
    )
    from unstable_stream.reward_transformations import (
        ComposeFinalRewardTransforms,
        ComposeSamplingRewardTransforms,
        ComposeStepRewardTransforms,
        Discount,
        FinalRewardTransform,
        GroupRelativeAdvantage,
        LeaveOneOutAdvantage,
        NormalizeRewards,
        NormalizeRewardsByEnv,
        PenaltyForInvalidMove,
        RewardForFormat,
        RoleAdvantageByEnvFormatter,
        RoleAdvantageFormatter,
        SamplingRewardTransform,
        StepRewardTransform,
        WinDrawLossFormatter,
    )
    from unstable_stream.services.streams.plugins import Context, consumer

__all__ = [
    "A2C",
    "PPO",
    "Collector",
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "Context",
    "Discount",
    "EvalEnvSpec",
    "FinalRewardTransform",
    "Game",
    "GroupRelativeAdvantage",
    "LeaveOneOutAdvantage",
    "ModelPool",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "PenaltyForInvalidMove",
    "Reinforce",
    "RewardForFormat",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageFormatter",
    "Run",
    "SamplingRewardTransform",
    "StandardLearner",
    "StepBuffer",
    "StepRewardTransform",
    "Table",
    "TerminalInterface",
    "Tracker",
    "TrainEnvSpec",
    "WinDrawLossFormatter",
    "__version__",
    "algorithms",
    "build",
    "consumer",
    "evaluation",
    "exploitability",
    "list_runs",
    "load",
    "open_run",
    "push",
    "reward_transformations",
    "sql",
    "tournament",
]

_REWARDS = "unstable_stream.reward_transformations"
_HOMES = {
    **dict.fromkeys(("build", "list_runs", "load", "sql"), "unstable_stream.api.build"),
    **dict.fromkeys(("Run", "open_run"), "unstable_stream.api.run"),
    "Game": "unstable_stream.api.games",
    "evaluation": "unstable_stream.api.evaluation",
    "exploitability": "unstable_stream.api.exploitability",
    "push": "unstable_stream.api.push",
    "Table": "unstable_stream.api.tables",
    "tournament": "unstable_stream.api.tournament",
    **dict.fromkeys(("TrainEnvSpec", "EvalEnvSpec"), "unstable_stream.api.shorthand"),
    **dict.fromkeys(
        ("Collector", "ModelPool", "StandardLearner", "StepBuffer", "TerminalInterface", "Tracker"),
        "unstable_stream.api.unstable_baselines",
    ),
    **dict.fromkeys(("A2C", "PPO", "Reinforce"), "unstable_stream.algorithms"),
    **dict.fromkeys(("Context", "consumer"), "unstable_stream.services.streams.plugins"),
}
_PACKAGES = ("algorithms", "reward_transformations")
_INSTEAD = {
    "VLLMActor": 'an engine is a setting, engine="vllm"',
    "BaseAlgo": "it is us.algorithms.BaseAlgo",
    "BaseTracker": "directories are those of run.place",
    "ExplorationTracker": "ask run.metrics('model-pool/')",
    "Opponent": "name opponents in ModelPool.add_fixed; ask run.sql('FROM rating_ladder')",
    "EpisodeResult": "ask run.sql('FROM game_outcomes')",
    **dict.fromkeys(("Trajectory", "Step"), "it is an event, in unstable_stream.events"),
    **dict.fromkeys(("PlaySpec", "AgentSpec", "TaskMeta"), "ask run.sql('FROM planned_seats')"),
}
"""Names of UnstableBaselines that are something else here."""


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, _REWARDS)), name)
    instead = f": {_INSTEAD[name]} (docs/from-unstable-baselines.md)" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return __all__

"""Event-sourced self-play reinforcement learning for language models on text games.

``import unstable_stream as us``, then ``us.build(...)``; docs/reference/python-api.md describes every name.
Names are loaded when they are first asked for, so that the import is quick and loads neither torch nor Ray.
"""

import importlib
from typing import TYPE_CHECKING

from unstable_stream.version import __version__ as __version__

if TYPE_CHECKING:
    from unstable_stream import algorithms as algorithms
    from unstable_stream import reward_transformations as reward_transformations
    from unstable_stream.algorithms import A2C as A2C
    from unstable_stream.algorithms import PPO as PPO
    from unstable_stream.algorithms import Reinforce as Reinforce
    from unstable_stream.api.bisecting import bisect as bisect
    from unstable_stream.api.branching import branch as branch
    from unstable_stream.api.branching import branch_values as branch_values
    from unstable_stream.api.build import build as build
    from unstable_stream.api.build import list_runs as list_runs
    from unstable_stream.api.build import load as load
    from unstable_stream.api.build import sql as sql
    from unstable_stream.api.comparing import compare as compare
    from unstable_stream.api.differing import diff as diff
    from unstable_stream.api.disguising import disguise_effects as disguise_effects
    from unstable_stream.api.environment_check import check_env as check_env
    from unstable_stream.api.evaluation import evaluation as evaluation
    from unstable_stream.api.exploitability import exploitability as exploitability
    from unstable_stream.api.exploiter import exploit as exploit
    from unstable_stream.api.exploiter import exploiter_bound as exploiter_bound
    from unstable_stream.api.games import Game as Game
    from unstable_stream.api.healing import heal as heal
    from unstable_stream.api.imitation import imitate as imitate
    from unstable_stream.api.learning import learn as learn
    from unstable_stream.api.push import push as push
    from unstable_stream.api.run import Run as Run
    from unstable_stream.api.run import open_run as open_run
    from unstable_stream.api.sharing import export_dataset as export_dataset
    from unstable_stream.api.sharing import import_games as import_games
    from unstable_stream.api.shorthand import EvalEnvSpec as EvalEnvSpec
    from unstable_stream.api.shorthand import TrainEnvSpec as TrainEnvSpec
    from unstable_stream.api.sweep import Sweep as Sweep
    from unstable_stream.api.sweep import sweep as sweep
    from unstable_stream.api.tables import Table as Table
    from unstable_stream.api.tournament import play as play
    from unstable_stream.api.tournament import tournament as tournament
    from unstable_stream.api.unstable_baselines import Collector as Collector
    from unstable_stream.api.unstable_baselines import ModelPool as ModelPool
    from unstable_stream.api.unstable_baselines import StandardLearner as StandardLearner
    from unstable_stream.api.unstable_baselines import StepBuffer as StepBuffer
    from unstable_stream.api.unstable_baselines import TerminalInterface as TerminalInterface
    from unstable_stream.api.unstable_baselines import Tracker as Tracker
    from unstable_stream.reward_transformations import BranchAdvantage as BranchAdvantage
    from unstable_stream.reward_transformations import (
        ComposeFinalRewardTransforms as ComposeFinalRewardTransforms,
    )
    from unstable_stream.reward_transformations import (
        ComposeSamplingRewardTransforms as ComposeSamplingRewardTransforms,
    )
    from unstable_stream.reward_transformations import (
        ComposeStepRewardTransforms as ComposeStepRewardTransforms,
    )
    from unstable_stream.reward_transformations import Discount as Discount
    from unstable_stream.reward_transformations import FinalRewardTransform as FinalRewardTransform
    from unstable_stream.reward_transformations import GroupRelativeAdvantage as GroupRelativeAdvantage
    from unstable_stream.reward_transformations import LeaveOneOutAdvantage as LeaveOneOutAdvantage
    from unstable_stream.reward_transformations import NormalizeRewards as NormalizeRewards
    from unstable_stream.reward_transformations import NormalizeRewardsByEnv as NormalizeRewardsByEnv
    from unstable_stream.reward_transformations import PenaltyForInvalidMove as PenaltyForInvalidMove
    from unstable_stream.reward_transformations import PenaltyForLength as PenaltyForLength
    from unstable_stream.reward_transformations import RewardForFormat as RewardForFormat
    from unstable_stream.reward_transformations import (
        RoleAdvantageByEnvFormatter as RoleAdvantageByEnvFormatter,
    )
    from unstable_stream.reward_transformations import RoleAdvantageFormatter as RoleAdvantageFormatter
    from unstable_stream.reward_transformations import SamplingRewardTransform as SamplingRewardTransform
    from unstable_stream.reward_transformations import StepRewardTransform as StepRewardTransform
    from unstable_stream.reward_transformations import WinDrawLossFormatter as WinDrawLossFormatter
    from unstable_stream.services.streams.plugins import Context as Context
    from unstable_stream.services.streams.plugins import consumer as consumer

_HOMES = {
    **dict.fromkeys(("build", "list_runs", "load", "sql"), "unstable_stream.api.build"),
    **dict.fromkeys(("Run", "open_run"), "unstable_stream.api.run"),
    "Game": "unstable_stream.api.games",
    "check_env": "unstable_stream.api.environment_check",
    "disguise_effects": "unstable_stream.api.disguising",
    "evaluation": "unstable_stream.api.evaluation",
    "exploitability": "unstable_stream.api.exploitability",
    **dict.fromkeys(("branch", "branch_values"), "unstable_stream.api.branching"),
    "bisect": "unstable_stream.api.bisecting",
    "compare": "unstable_stream.api.comparing",
    "diff": "unstable_stream.api.differing",
    "heal": "unstable_stream.api.healing",
    "learn": "unstable_stream.api.learning",
    **dict.fromkeys(("exploit", "exploiter_bound"), "unstable_stream.api.exploiter"),
    "imitate": "unstable_stream.api.imitation",
    "push": "unstable_stream.api.push",
    **dict.fromkeys(("export_dataset", "import_games"), "unstable_stream.api.sharing"),
    **dict.fromkeys(("Sweep", "sweep"), "unstable_stream.api.sweep"),
    "Table": "unstable_stream.api.tables",
    **dict.fromkeys(("play", "tournament"), "unstable_stream.api.tournament"),
    **dict.fromkeys(("TrainEnvSpec", "EvalEnvSpec"), "unstable_stream.api.shorthand"),
    **dict.fromkeys(
        ("Collector", "ModelPool", "StandardLearner", "StepBuffer", "TerminalInterface", "Tracker"),
        "unstable_stream.api.unstable_baselines",
    ),
    **dict.fromkeys(("A2C", "PPO", "Reinforce"), "unstable_stream.algorithms"),
    **dict.fromkeys(("Context", "consumer"), "unstable_stream.services.streams.plugins"),
    **dict.fromkeys(
        (
            "ComposeFinalRewardTransforms",
            "ComposeSamplingRewardTransforms",
            "ComposeStepRewardTransforms",
            "Discount",
            "FinalRewardTransform",
            "GroupRelativeAdvantage",
            "BranchAdvantage",
            "LeaveOneOutAdvantage",
            "NormalizeRewards",
            "NormalizeRewardsByEnv",
            "PenaltyForInvalidMove",
            "PenaltyForLength",
            "RewardForFormat",
            "RoleAdvantageByEnvFormatter",
            "RoleAdvantageFormatter",
            "SamplingRewardTransform",
            "StepRewardTransform",
            "WinDrawLossFormatter",
        ),
        "unstable_stream.reward_transformations",
    ),
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
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    instead = f": {_INSTEAD[name]} (docs/tutorials/from-unstable-baselines.md)" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_PACKAGES, "__version__"])


if not TYPE_CHECKING:  # type checkers see the imports above
    __all__ = __dir__()

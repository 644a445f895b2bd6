"""Rate models by a fold over game outcomes, and choose opponents."""

from unstable_stream.model_pool.pool import ModelPool, Opponent, PoolState
from unstable_stream.model_pool.ratings import RatingProcessor, Ratings
from unstable_stream.model_pool.results import ExplorationTracker
from unstable_stream.model_pool.skill import Skill, TrueSkill

__all__ = [
    "ExplorationTracker",
    "ModelPool",
    "Opponent",
    "PoolState",
    "RatingProcessor",
    "Ratings",
    "Skill",
    "TrueSkill",
]

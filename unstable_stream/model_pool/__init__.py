"""Rate models by a fold over game outcomes, and choose opponents."""

from unstable_stream.model_pool.exploration import ExplorationTracker
from unstable_stream.model_pool.pool import ModelPool, Opponent, PoolState
from unstable_stream.model_pool.rating_processor import RatingProcessor
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.skill import Skill, TrueSkillSettings, match_quality, rate_game, rate_pair

__all__ = [
    "ExplorationTracker",
    "ModelPool",
    "Opponent",
    "PoolState",
    "RatingProcessor",
    "Ratings",
    "Skill",
    "TrueSkillSettings",
    "match_quality",
    "rate_game",
    "rate_pair",
]

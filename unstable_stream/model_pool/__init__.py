"""Rate models by a fold over game outcomes, and choose opponents."""

from unstable_stream.model_pool.exploration import ExplorationTracker
from unstable_stream.model_pool.pool import ModelPool, Opponent
from unstable_stream.model_pool.ratings import RatingProcessor
from unstable_stream.model_pool.skill import Skill, TrueSkillSettings, match_quality, rate_game, rate_pair

__all__ = [
    "ExplorationTracker",
    "ModelPool",
    "Opponent",
    "RatingProcessor",
    "Skill",
    "TrueSkillSettings",
    "match_quality",
    "rate_game",
    "rate_pair",
]

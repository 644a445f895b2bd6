"""Rate models by a fold over game outcomes, and choose opponents."""

from unstable_stream.model_pool.pool import ModelPool as ModelPool
from unstable_stream.model_pool.pool import Opponent as Opponent
from unstable_stream.model_pool.pool import PoolState as PoolState
from unstable_stream.model_pool.ratings import RatingProcessor as RatingProcessor
from unstable_stream.model_pool.ratings import Ratings as Ratings
from unstable_stream.model_pool.results import ExplorationTracker as ExplorationTracker
from unstable_stream.model_pool.skill import Skill as Skill
from unstable_stream.model_pool.skill import TrueSkill as TrueSkill

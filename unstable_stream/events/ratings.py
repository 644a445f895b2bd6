"""Topic ``ratings``: written by the rating processor, read by the collector and the archive."""

from unstable_stream.events.envelope import Event

OVERALL = "*"
"""The ``env_id`` of a rating over all environments."""


class Rating(Event, frozen=True, kw_only=True, tag="rating"):
    """A model's rating after one game. Natural key: game id, environment, model."""

    TOPIC = "ratings"

    env_id: str
    """An environment, or ``*`` for all together."""
    model_uid: str
    """The rated model."""
    mu: float
    """Mean skill, points of the rating system."""
    sigma: float
    """Standard deviation of the skill, points of the rating system."""
    games: int
    """Rated games so far, this one included."""
    game_id: str
    """The game that led to this rating."""

    @property
    def key(self) -> str:
        return f"{self.run_id}/{self.env_id}/{self.model_uid}"

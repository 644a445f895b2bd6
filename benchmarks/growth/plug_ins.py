"""Plug-ins that count games."""

from unstable_stream import Context, consumer
from unstable_stream.events import GameOutcome


def _count(event: GameOutcome, context: Context) -> None:
    context.state["games"] = context.state.get("games", 0) + 1


for _number in range(16):
    globals()[f"counting_{_number}"] = consumer(name=f"counting_{_number}", state=dict)(_count)

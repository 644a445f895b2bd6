"""A consumer of your own, beside the run or on its own: how long the games of a run have been so far.

consumers = ["examples/extensions/consumer.py:mean_length"]
"""

from unstable_stream import Context, consumer
from unstable_stream.events import GameOutcome


@consumer(state=dict)
def mean_length(event: GameOutcome, context: Context) -> None:
    state = context.state
    state["games"] = state.get("games", 0) + 1
    state["turns"] = state.get("turns", 0) + event.num_turns
    context.emit("mean-length", state["turns"] / state["games"])

"""An inference engine of your own: this one answers with the same token each time, which is good for tests.

engine = { type = "examples/extensions/engine.py:Constant", token = 5 }
"""

from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest


class Constant:
    def __init__(self, model_path: str, token: int = 0) -> None:
        self.token = token
        self.asked = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return token ids and the log-probabilities they were sampled with: learners correct by these."""
        self.asked += 1
        return Completion([self.token], [0.0], "stop")

    def stats(self) -> EngineStats:
        return EngineStats(
            queued=0, running=0, tokens_per_s=0.0, completions=self.asked, completion_tokens=self.asked
        )

    async def close(self) -> None:
        """Let go of what the engine holds."""

"""A prompt template of your own, with the extraction that belongs to it.

[[train_envs]]
env_id = "TicTacToe-v0-train"
template = "examples/extensions/template.py:Terse"
"""

import re


class Terse:
    """Ask for the action alone, and take the last number of the answer."""

    def format(self, observation: str) -> str:
        return f"{observation.strip()}\nAnswer with one number.\nNumber:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        numbers = re.findall(r"\d+", completion)
        if not numbers:
            return completion.strip(), {"correct_answer_format": False}
        return f"[{numbers[-1]}]", {"correct_answer_format": True}

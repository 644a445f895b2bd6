"""A script that starts a run with a class of its own."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import unstable_stream as us
from unstable_stream.reward_transformations import FinalRewardTransform

class Mine(FinalRewardTransform):
    def __call__(self, x, env_id=None):
        return dict(x)

def main():
    run = us.build(
        model="tiny-player", train_envs=["TicTacToe-v0-train"], final_reward_transformation=Mine(),
        backend="inline", data={data!r},
    )
    run.start(iterations=1, live=False)

{start}
"""


def test_a_start_without_a_guard_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(data=str(tmp_path / "data"), start="main()"))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False
    )
    assert done.returncode != 0
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("unstable_stream.errors.ConfigError: ")
    assert str(path) in said
    assert 'guard the start of the run with if __name__ == "__main__":' in said
    assert not (tmp_path / "data" / "log.sqlite").exists(), "nothing was recorded"

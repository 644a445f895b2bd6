"""Objects in the place of names: what is recorded of them, and that the same can be made from it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import completed
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS, build, needs_this_process, reference_to, references_to, use_of
from unstable_stream.extensions.reference import Reference
from unstable_stream.reward_transformations import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    WinDrawLossFormatter,
)

FINAL = KINDS["final_transformation"]


class Shifted(FinalRewardTransform):
    def __init__(self, by: float, *, seats: tuple[int, ...] = (0,)) -> None:
        self.shift = by
        self.seats = seats

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return {seat: reward + self.shift * (seat in self.seats) for seat, reward in x.items()}


class MoreShifted(Shifted):
    def __init__(self, extra: float) -> None:
        super().__init__(by=1.0 + extra)


@dataclass
class Scaled:
    by: float = 2.0
    names: tuple[str, ...] = ()

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return {seat: self.by * reward for seat, reward in x.items()}


class Wrapping(FinalRewardTransform):
    def __init__(self, function: Any) -> None:
        self.function = function


def negated(x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
    return {seat: -reward for seat, reward in x.items()}


@pytest.mark.parametrize(
    ("obj", "spec"),
    [
        ("elo", "elo"),
        (WinDrawLossFormatter, "WinDrawLossFormatter"),
        (WinDrawLossFormatter(), "WinDrawLossFormatter"),
        (WinDrawLossFormatter(True), {"type": "WinDrawLossFormatter", "shared_win": True}),
        (RoleAdvantageByEnvFormatter(tau=0.5), {"type": "RoleAdvantageByEnvFormatter", "tau": 0.5}),
        (negated, f"{__name__}:negated"),
        (Shifted, f"{__name__}:Shifted"),
        (Shifted(3.0, seats=(1, 2)), {"type": f"{__name__}:Shifted", "by": 3.0, "seats": [1, 2]}),
        (MoreShifted(0.5), {"type": f"{__name__}:MoreShifted", "extra": 0.5}),
        (Scaled(), f"{__name__}:Scaled"),
        (Scaled(4.0), {"type": f"{__name__}:Scaled", "by": 4.0}),
    ],
)
def test_an_object_is_named_by_its_home_and_what_it_was_made_with(obj: Any, spec: Any) -> None:
    assert reference_to("final_transformation", obj) == spec
    if spec != "elo":
        assert not needs_this_process(spec)


def test_the_recorded_reference_makes_an_equal_object() -> None:
    made = build(FINAL, reference_to("final_transformation", Shifted(3.0, seats=(1,))))
    assert made({0: 1.0, 1: 1.0}) == {0: 1.0, 1: 4.0}


def test_a_composition_and_a_list_become_their_parts() -> None:
    parts: list[FinalRewardTransform] = [WinDrawLossFormatter(), Shifted(1.0)]
    expected = ["WinDrawLossFormatter", {"type": f"{__name__}:Shifted", "by": 1.0}]
    assert references_to("final_transformation", ComposeFinalRewardTransforms(parts)) == expected
    assert references_to("final_transformation", parts) == expected
    assert references_to("final_transformation", parts[0]) == expected[:1]


def test_what_has_no_home_stays_in_this_process() -> None:
    factor = 3.0

    def closure(x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return {seat: factor * reward for seat, reward in x.items()}

    name = reference_to("final_transformation", closure)
    assert isinstance(name, str)
    assert needs_this_process(name)
    assert reference_to("final_transformation", closure) == name, "one name for one object"
    assert build(FINAL, name)({0: 1.0}) == {0: 3.0}
    assert len(use_of(FINAL, Reference(name)).sha256) == 64
    for other in (lambda x, env_id: x, Wrapping(negated)):  # with a part that no configuration holds
        named = reference_to("final_transformation", other)
        assert needs_this_process(named)
        assert named != name


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown kind of extension 'optimizer'; expected one of algorithm"):
        reference_to("optimizer", negated)


SCRIPT = """
from unstable_stream.extensions import loading, reference_to

class Mine:
    def __init__(self) -> None: ...

if __name__ == "__main__":
    print(reference_to("final_transformation", Mine()))
    print(reference_to("final_transformation", lambda x: x))
"""


def test_a_class_of_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = completed(sys.executable, script)
    assert done.stdout.splitlines() == [f"{script}:Mine", "object:lambda"]
    assert type(build(FINAL, f"{script}:Mine")).__name__ == "Mine"


STARTING = """
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
    path.write_text(STARTING.format(data=str(tmp_path / "data"), start="main()"))
    done = completed(sys.executable, path, cwd=tmp_path)
    assert done.returncode != 0
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("unstable_stream.errors.ConfigError: ")
    assert str(path) in said
    assert 'guard the start of the run with if __name__ == "__main__":' in said
    assert not (tmp_path / "data" / "log.sqlite").exists(), "nothing was recorded"

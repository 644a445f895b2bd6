"""The processes around the GPUs: cores and partitions they need, and what brokers and archive store.

The costs come from a run in which all was real but the work of the model (``python -m benchmarks.ceiling``).
It was played with two sizes of turns. What a turn costs is taken to grow with its size on the line through
the two: a part for each turn, and a part for each byte.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.log.topics import load_topics

__all__ = [
    "ControlPlane",
    "Costs",
    "Need",
    "TopicNeed",
    "Traffic",
    "fitted",
    "measured_costs",
    "plan_control_plane",
    "usual_tokens_per_gpu_s",
    "work_of",
]

_REFERENCE_PARAMETERS: Final = 7.6e9
_REFERENCE_TOKENS_PER_S: Final = 5000.0
"""Tokens a second that a GPU is taken to generate with a model of so many parameters."""
_TURN_BYTES: Final = 390.0
_PROMPT_TOKEN_BYTES: Final = 13.3
_COMPLETION_TOKEN_BYTES: Final = 14.7
"""Of a turn in a trajectory: in base64 the token's number and, if it was generated, its log-probability; its
text of four characters, which stands in prompt and observation."""
_SECONDS_A_DAY: Final = 86_400
_REPLICAS: Final = 3
_SCALES_BY: Final = {
    "RolloutActor": "collector.num_rollout_workers",
    "EngineActor": "an engine for each GPU",
    "archiver": "runs or environments, in a shared archive",
    "processors": "runs or environments",
    "Ray: raylet": "one on each machine",
    "brokers": "partitions",
}
_BY_KEY: Final = {"archiver", "processors"}
"""They share the partitions of ``trajectories``: no more of them work than its records have keys."""
_BY_RUN_ALONE: Final = "runs"
_GROWING: Final = {
    "trajectories": ("archiver", "processors"),
    "steps": ("archiver",),
    "game-outcomes": ("archiver", "processors"),
    "games": ("archiver",),
}
"""The topics that get more records with more turns, and who shares their partitions. Others have few records;
the learner and the collector of a run read all partitions."""
_NAMES: Final = {
    "RolloutActor": "rollout workers",
    "EngineActor": "engines, beside the model's work",
    "LearnerActor": "learner, beside the model's work",
    "brokers": "brokers, all replicas",
}
"""Other processes keep their names; there is one of each for a run."""


@dataclass(frozen=True)
class Traffic:
    """The turns that the GPUs make, and the games that are played with them."""

    gpus: int
    tokens_per_gpu_s: float
    """Tokens that one GPU generates a second, all its requests together."""
    prompt_tokens: float = 700.0
    completion_tokens: float = 250.0
    """Means of a turn."""
    turns: float = 5.0
    """Of a seat in a game: of a trajectory."""
    trajectories: float = 2.0
    """Of a game: seats that the model plays."""
    runs: int = 1
    """Runs that share the GPUs evenly."""
    environments: int = 1
    """Environments of each run, which share its turns evenly."""

    def __post_init__(self) -> None:
        """Check; raises :class:`~unstable_stream.errors.ConfigError`."""
        for name in (
            "gpus",
            "tokens_per_gpu_s",
            "prompt_tokens",
            "completion_tokens",
            "turns",
            "trajectories",
            "runs",
            "environments",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a number above 0")

    @property
    def turns_per_s(self) -> float:
        """Turns of the model a second."""
        return self.gpus * self.tokens_per_gpu_s / self.completion_tokens

    @property
    def games_per_s(self) -> float:
        """Games a second."""
        return self.turns_per_s / self.turns / self.trajectories

    @property
    def turn_bytes(self) -> float:
        """Size of a turn in a trajectory, as it lies in the log."""
        return (
            _TURN_BYTES
            + _PROMPT_TOKEN_BYTES * self.prompt_tokens
            + _COMPLETION_TOKEN_BYTES * self.completion_tokens
        )


def usual_tokens_per_gpu_s(parameters: float | None) -> float:
    """Return what a GPU is taken to generate a second with a model of this size; ``None``: of 7.6 billion.

    A GPU that decodes many requests at once is held up by reading weights and computing with them, both in
    proportion to their number.
    """
    return _REFERENCE_TOKENS_PER_S * _REFERENCE_PARAMETERS / (parameters or _REFERENCE_PARAMETERS)


@dataclass(frozen=True)
class Costs:
    """The costs of one turn, as they were measured."""

    machine: str
    """The processor that it was measured on."""
    date: str
    cpu_s: Mapping[str, tuple[float, float]]
    """By process: CPU seconds of a turn, and of a byte of it."""
    log_bytes: tuple[float, float]
    """Bytes in the log, all topics together, of a turn and of a byte of it."""
    archive_bytes: tuple[float, float]


def measured_costs() -> Costs:
    """Return the costs that are kept with the package."""
    return fitted(json.loads(files(__package__).joinpath("control_plane.json").read_text(encoding="utf-8")))


def fitted(measured: Mapping[str, Any]) -> Costs:
    """Return the lines through two runs that ``benchmarks.ceiling`` measured."""
    small, large = sorted(measured["shapes"].values(), key=_turn_bytes)

    def line(small_y: float, large_y: float) -> tuple[float, float]:
        slope = max(0.0, (large_y - small_y) / (_turn_bytes(large) - _turn_bytes(small)))
        base = small_y - slope * _turn_bytes(small)
        # Below zero: it costs nothing but by size.
        return (base, slope) if base >= 0 else (0.0, large_y / _turn_bytes(large))

    names = small["seconds"].keys() | large["seconds"].keys()
    return Costs(
        machine=measured["machine"]["processor"],
        date=measured["date"],
        cpu_s={
            name: line(*(run["seconds"].get(name, 0.0) / work_of(name, run) for run in (small, large)))
            for name in sorted(names)
        },
        log_bytes=line(small["log_bytes_per_turn"], large["log_bytes_per_turn"]),
        archive_bytes=line(small["archive_bytes_per_turn"], large["archive_bytes_per_turn"]),
    )


def work_of(process: str, run: Mapping[str, Any]) -> int:
    """Return how many turns a process has worked on in a measured run.

    The learner may train on turns that were played before, so it counts its steps; runs that were measured
    before they were counted have turns alone.
    """
    steps = run.get("steps") if process == "LearnerActor" else None
    return int(steps or run["turns"])


def _turn_bytes(run: Mapping[str, Any]) -> float:
    return float(run["trajectory_bytes"] / run["turns_per_trajectory"])


@dataclass(frozen=True)
class Need:
    """The needs of one kind of process."""

    process: str
    cores: float
    turns_per_core_s: float
    """Turns of this size that one core is enough for, each second."""
    scales_by: str
    """The way to have more than one."""
    most: float
    """Of such processes that this traffic keeps busy; each has a core for its ceiling."""


@dataclass(frozen=True)
class TopicNeed:
    """The partitions of one topic."""

    topic: str
    key: str
    """Records of one key are in one partition."""
    partitions: int
    """That the processes which share them need, for each to have one."""
    of_a_new_log: int
    bytes_per_s: float | None = None
    """Of trajectories, in one partition, before compression; ``None``: not measured by topic."""


@dataclass(frozen=True)
class ControlPlane:
    """The needs of a number of GPUs."""

    traffic: Traffic
    needs: tuple[Need, ...]
    topics: tuple[TopicNeed, ...]
    """Those that get more records with more turns; all others need no more partitions than
    they have."""
    log_bytes_per_s: float
    """Once; brokers keep a copy each of their replicas."""
    archive_bytes_per_s: float
    costs: Costs

    @property
    def cores(self) -> float:
        """Cores of all processes together."""
        return sum(need.cores for need in self.needs)

    @property
    def warnings(self) -> list[str]:
        """Processes that stand in the way: no more of them can work, and each would need more than a core."""
        traffic = self.traffic
        told = []
        for need in self.needs:
            if need.cores <= need.most:
                continue
            carried = need.most * need.turns_per_core_s
            told.append(
                f"{need.process} would need {need.cores:.2f} cores, and there is work for {need.most:.0f}: "
                f"it carries {carried:,.0f} turns/s of {traffic.turns_per_s:,.0f}, the work of "
                f"{traffic.gpus * carried / traffic.turns_per_s:,.0f} GPUs; " + _remedy(need)
            )
        told += [
            f"{topic.topic} would need {topic.partitions} partitions and a new log has {topic.of_a_new_log}: "
            "put the runs into several logs"
            for topic in self.topics
            if topic.partitions > topic.of_a_new_log
        ]
        return told

    def table(self) -> str:
        """Return the plan as text."""
        traffic = self.traffic
        rows = [("process", "cores", "a core carries", "more than one by")]
        rows += [
            (
                need.process,
                f"{need.cores:.2f}",
                f"{need.turns_per_core_s:,.0f} turns/s",
                need.scales_by,
            )
            for need in self.needs
        ]
        width = max(len(row[0]) for row in rows)
        topics = [("topic", "key", "partitions it needs", "of a new log")]
        topics += [
            (topic.topic, topic.key, str(topic.partitions), str(topic.of_a_new_log)) for topic in self.topics
        ]
        lines = [
            f"{traffic.gpus} GPUs, {traffic.tokens_per_gpu_s:,.0f} generated tokens/s each: "
            f"{traffic.turns_per_s:,.0f} turns/s, {traffic.games_per_s:,.1f} games/s",
            f"a turn: {traffic.prompt_tokens:,.0f} tokens of prompt, {traffic.completion_tokens:,.0f} "
            f"generated, {traffic.turn_bytes / 1000:.1f} KB; a trajectory: {traffic.turns:g} turns, "
            f"{traffic.turns * traffic.turn_bytes / 1000:.1f} KB; runs: {traffic.runs}, environments of "
            f"each: {traffic.environments}",
            "",
            *_aligned(rows),
            f"{'together'.ljust(width)}  {self.cores:.2f}",
            "",
            *_aligned(topics),
            *(
                f"a partition of {topic.topic} would get {topic.bytes_per_s / 1e6:.1f} MB/s; what a broker "
                "carries of one is not measured"
                for topic in self.topics
                if topic.bytes_per_s is not None
            ),
            "",
            f"log: {self.log_bytes_per_s / 1e6:.1f} MB/s before compression; {_REPLICAS} replicas keep "
            f"{_size(_REPLICAS * self.log_bytes_per_s * _SECONDS_A_DAY)} a day",
            f"archive: {_size(self.archive_bytes_per_s * _SECONDS_A_DAY)} a day",
            f"measured on {self.costs.machine}, {self.costs.date} (python -m benchmarks.ceiling)",
        ]
        return "\n".join(lines)


def plan_control_plane(traffic: Traffic, costs: Costs | None = None) -> ControlPlane:
    """Return what the GPUs need around them, by ``costs`` or those that are kept with the package."""
    costs = costs or measured_costs()

    def of_a_turn(line: tuple[float, float]) -> float:
        base, slope = line
        return base + slope * traffic.turn_bytes

    seconds = {name: of_a_turn(line) for name, line in costs.cpu_s.items()}
    needs = [
        Need(
            process=_NAMES.get(name, name),
            cores=traffic.turns_per_s * spent,
            turns_per_core_s=1 / spent,
            scales_by=_SCALES_BY.get(name, _BY_RUN_ALONE),
            most=_most(name, traffic),
        )
        for name, spent in seconds.items()
        if spent > 0
    ]
    return ControlPlane(
        traffic=traffic,
        needs=tuple(sorted(needs, key=lambda need: -need.cores)),
        topics=_topic_needs(traffic, {need.process: need for need in needs}),
        log_bytes_per_s=traffic.turns_per_s * of_a_turn(costs.log_bytes),
        archive_bytes_per_s=traffic.turns_per_s * of_a_turn(costs.archive_bytes),
        costs=costs,
    )


def _most(process: str, traffic: Traffic) -> float:
    if process in _BY_KEY:
        return traffic.runs * traffic.environments
    return math.inf if process in _SCALES_BY else traffic.runs


def _remedy(need: Need) -> str:
    if need.process == "archiver":
        return "several archivers of a shared archive help several runs or environments"
    if need.process == "processors":
        return "several hosts help several runs or environments"
    return "make several runs"


def _topic_needs(traffic: Traffic, needs: Mapping[str, Need]) -> tuple[TopicNeed, ...]:
    specs = load_topics()
    keys = {"run": traffic.runs, "run/env": traffic.runs * traffic.environments}
    found = []
    for name, shared_by in _GROWING.items():
        sharing = [needs[process] for process in shared_by if process in needs]
        wanted = max((math.ceil(min(need.cores, need.most)) for need in sharing), default=1)
        # More partitions than keys stay empty.
        partitions = max(1, min(wanted, keys.get(specs[name].key, wanted)))
        found.append(
            TopicNeed(
                topic=name,
                key=specs[name].key,
                partitions=partitions,
                of_a_new_log=specs[name].partitions,
                bytes_per_s=traffic.turns_per_s * traffic.turn_bytes / partitions
                if name == "trajectories"
                else None,
            )
        )
    return tuple(found)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _size(count: float) -> str:
    return f"{count / 1e12:,.1f} TB" if count >= 1e12 else f"{count / 1e9:,.1f} GB"

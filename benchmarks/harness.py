"""Compare two ways of doing the same thing, fairly: both sides in turn, several times, after a warm-up.

The machine's mood (a busy neighbour, a slow disk) then falls on both sides alike, so the ratio of the
medians says more than either rate. A benchmark is run from the repository root, for example
``python -m benchmarks.log_append --rounds 7 --json results.json``.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra.kafka.brokers import KafkaCluster
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE, ArchiveAddress

_KAFKA_PORT = 21_892


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rates both sides reached, in the order measured."""

    name: str
    unit: str
    """What is counted each second, e.g. ``records/s``; higher is better."""
    ours: tuple[float, ...]
    baseline: tuple[float, ...]
    target: float | None = None
    """The least ratio that the project set itself; ``None``: the row is for comparison only."""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        return None if self.target is None else self.ratio >= self.target

    @property
    def ratio(self) -> float:
        """Median of ours over median of the baseline."""
        return statistics.median(self.ours) / statistics.median(self.baseline)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest ratio of a single round."""
        ratios = [ours / base for ours, base in zip(self.ours, self.baseline, strict=True)]
        return min(ratios), max(ratios)


def compare(
    name: str,
    ours: Callable[[], float],
    baseline: Callable[[], float],
    *,
    unit: str,
    rounds: int = 5,
    warmup: int = 1,
    target: float | None = None,
) -> Comparison:
    """Measure both sides alternately.

    Args:
        name: what is compared.
        ours: sets up, does the work once and returns its rate, timing only the part that counts.
        baseline: the same for what we are compared with.
        unit: of the rates; higher is better.
        rounds: measured rounds.
        warmup: rounds before, thrown away.
        target: the least ratio to reach.
    """
    measured: list[tuple[float, float]] = []
    for turn in range(warmup + rounds):
        # Who goes first changes, so that neither side always inherits the other's dirty caches.
        if turn % 2:
            theirs = baseline()
            own = ours()
        else:
            own = ours()
            theirs = baseline()
        if turn >= warmup:
            measured.append((own, theirs))
    own_rates, their_rates = (tuple(rates) for rates in zip(*measured, strict=True))
    return Comparison(name, unit, own_rates, their_rates, target)


def parser(description: str) -> argparse.ArgumentParser:
    """Return the command line every benchmark has; add to it what the benchmark needs."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    arguments.add_argument("--json", type=Path, default=None, help="also write the results to this file")
    return arguments


@contextlib.contextmanager
def kafka_broker(given: str | None, *, brokers: int = 1) -> Iterator[str]:
    """Return ``host:port`` of a broker, or of several: given, or started on loopback while this lasts.

    Raises:
        KafkaUnavailableError: Java or Maven is missing, or the broker did not start.
    """
    if given is not None:
        yield given
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaCluster(Path(directory), brokers=brokers, port=_KAFKA_PORT) as cluster,
    ):
        yield cluster.bootstrap


def duckdb_file(archive: ArchiveAddress) -> Path:
    """Return the archive if it is a DuckDB file, for a benchmark that measures this kind only.

    Raises:
        SystemExit: the environment names a shared archive, which everything started here would use, too.
    """
    if isinstance(archive, Path):
        return archive
    raise SystemExit(f"a DuckDB file is measured, not {archive}: unset {ARCHIVE_VARIABLE}")


def machine() -> dict[str, str | int]:
    """Return what a rate depends on."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cpus": os.cpu_count() or 0,
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the processor's name, where the system tells it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'processor'} {platform.machine()}"


def target_text(target: float | None, *, met: bool | None) -> str:
    """Return how a target stands, for a table."""
    return "" if target is None else f"{target:g} {'met' if met else 'missed'}"


def report(
    title: str,
    comparisons: Sequence[Comparison],
    json_path: Path | None = None,
    *,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Print a table of medians and ratios; write everything measured to ``json_path``."""
    table = Table(title=title, title_justify="left")
    for heading in ("what", "ours", "baseline", "unit", "ratio", "lowest … highest", "target"):
        table.add_column(heading, justify="left" if heading in ("what", "unit") else "right", no_wrap=True)
    for one in comparisons:
        low, high = one.spread
        table.add_row(
            one.name,
            f"{statistics.median(one.ours):,.0f}",
            f"{statistics.median(one.baseline):,.0f}",
            one.unit,
            f"{one.ratio:.2f}",
            f"{low:.2f} … {high:.2f}",
            target_text(one.target, met=one.met),
        )
    Console(width=None if Console().is_terminal else 150).print(table)
    if json_path is not None:
        results = [asdict(one) | {"ratio": round(one.ratio, 3), "met": one.met} for one in comparisons]
        content = {"title": title, "machine": machine() | dict(versions or {}), "results": results}
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

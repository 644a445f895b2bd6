"""The whole quickstart on Kafka, against the same on the local log: games and trained steps per second.

Run ``python -m benchmarks.quickstart_logs``. Both sides are the command ``unstable-stream quickstart`` with
the same seed and settings, each in a fresh data directory; only ``--log`` differs. Rates are taken from the
archive, between the first and the last update, so that starting Ray and the final evaluation are left out.
The broker is started on loopback (Java and Maven needed) and shares this machine's cores with the run, as it
would for a researcher with one box; ``--kafka host:port`` takes one that is there.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Comparison, parser, report
from infra.kafka.brokers import KafkaCluster, why_unavailable
from unstable_stream.archive import query

_RATES = """
WITH span AS (
    SELECT min(occurred_at) AS first, max(occurred_at) AS last,
           (epoch_ms(max(occurred_at)) - epoch_ms(min(occurred_at))) / 1000 AS seconds
    FROM updates
)
SELECT (SELECT count(*) FROM game_outcomes WHERE finished_at BETWEEN first AND last) / seconds,
       (SELECT sum(trained_steps) FROM updates WHERE update > 1) / seconds
FROM span
"""


def _quickstart(log: str, updates: int) -> tuple[float, float]:
    """Run it once; return finished games/s and trained steps/s."""
    data = Path(tempfile.mkdtemp(prefix="quickstart-logs-"))
    try:
        subprocess.run(
            [sys.executable, "-c", "from unstable_stream.ui.cli import main; main()", "quickstart", "--quiet",
             "--updates", str(updates), "--set", "evaluation.first_last_games=8",
             "--data", str(data), "--log", log],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (rates,) = query(data / "archive.duckdb", _RATES).rows
        return float(rates[0]), float(rates[1])
    finally:
        shutil.rmtree(data)


@contextmanager
def _kafka(bootstrap: str | None) -> Iterator[str]:
    """Give a broker that holds no other run: a fresh one for each measurement, unless one is named."""
    if bootstrap is not None:
        yield f"kafka://{bootstrap}"
        return
    directory = Path(tempfile.mkdtemp(prefix="quickstart-logs-kafka-"))
    try:
        with KafkaCluster(directory, port=_free_port()) as cluster:
            yield f"kafka://{cluster.bootstrap}"
    finally:
        shutil.rmtree(directory)


def _free_port() -> int:
    # Below those given to outgoing connections; the broker says so if one of the two is taken after all.
    for port in range(21_092, 32_000, 2):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError("no free port between 21092 and 32000")


def main() -> None:
    """Measure both sides in turn and report the ratios."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--updates", type=int, default=8, help="learner updates of each run")
    arguments.add_argument("--kafka", default=os.environ.get("UNSTABLE_STREAM_TEST_KAFKA"), help="HOST:PORT")
    options = arguments.parse_args()
    reason = why_unavailable()
    if options.kafka is None and reason is not None:
        print(f"not measured: {reason}")
        return
    kafka: list[tuple[float, float]] = []
    local: list[tuple[float, float]] = []
    for turn in range(options.rounds):
        # Who goes first changes, so that neither side always inherits the other's warm caches.
        for side in ("kafka", "local") if turn % 2 == 0 else ("local", "kafka"):
            if side == "local":
                local.append(_quickstart("local", options.updates))
            else:
                with _kafka(options.kafka) as location:
                    kafka.append(_quickstart(location, options.updates))
    results = [
        Comparison(
            f"quickstart, {what}", unit, tuple(one[i] for one in kafka), tuple(one[i] for one in local)
        )
        for i, (what, unit) in enumerate((("games", "games/s"), ("trained steps", "steps/s")))
    ]
    report(f"The quickstart on Kafka against the local log, {options.updates} updates", results, options.json)


if __name__ == "__main__":
    main()

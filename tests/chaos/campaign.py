"""Do faults to runs, one after the other, until there were enough; write down what was done after each run.

A campaign that was interrupted goes on where it was: it counts what its file holds. A run that fails is kept,
with its data, and the campaign goes on with the next one.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from infra.kafka.brokers import KafkaCluster
from tests.chaos.endpoint import BadEndpoint
from tests.chaos.faults import Orders, faults_for
from tests.chaos.runs import KINDS, RunResult, Setting, do_faults_to_one_run
from tests.chaos.table import RESULTS, read_results, write_table
from tests.conftest import free_port_pair
from tests.whole_run.processes import History

_PER_UPDATE = 2 / 3
"""Faults of one run, for each of its updates."""
_KINDS = tuple(KINDS)
"""Of the runs that follow each other in a data directory: each restart meets the history of others, too."""


async def do_faults(
    wanted: int,
    results: Path,
    work: Path,
    *,
    log: str = "local",
    backend: str = "ray",
    seed: int = 0,
    small_disk: bool = False,
    only: Sequence[str] = (),
    updates: int = 60,
    until: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
) -> list[RunResult]:
    """Do ``wanted`` faults to real runs, and prove each run with ``audit`` and ``verify``.

    Args:
        wanted: the number of faults, those of earlier campaigns in the same directory included.
        results: where the results are, and the data of the runs that failed.
        work: the directory of data and brokers.
        log: ``local`` or ``kafka``, with three brokers of its own.
        backend: ``ray``, or ``inline``: each run is a single process, killed and resumed in seconds.
        seed: of the first run; each further one has the next. It gives the order and times of the faults.
        small_disk: ``work`` is on a small file system, which may be filled.
        only: words in the names of the faults to do; empty: all.
        updates: updates of one run.
        until: Unix time after which no further fault is done.
        say: called with a line after each fault.
    """
    results.mkdir(parents=True, exist_ok=True)
    done = read_results(results)
    with contextlib.ExitStack() as stack:
        orders = Orders(work / "orders")
        kafka = None
        if log == "kafka":
            kafka = stack.enter_context(KafkaCluster(work / "kafka", brokers=3, port=free_port_pair(3)))
        possible = faults_for(orders, kafka, work if small_disk else None, inline=backend == "inline")
        faults = [fault for fault in possible if not only or any(words in fault.name for words in only)]
        assert faults, f"no fault is called {only}; there are {[fault.name for fault in possible]}"
        setting = Setting(
            data=work / "data",
            location="local" if kafka is None else f"kafka://{kafka.bootstrap}",
            backend=backend,
            faults=faults,
            orders=orders,
            endpoint=stack.enter_context(BadEndpoint(seed)),
            updates=updates,
            until=until,
            say=say,
        )
        history = None
        try:
            for number in _numbers(done, wanted, until):
                kind = _KINDS[number % len(_KINDS)]
                if kind == _KINDS[0] and history is not None:
                    await history.close()
                    history = None
                    shutil.rmtree(setting.data)
                if history is None:
                    history = History(setting.data, setting.location)
                    await history.read_all()
                history.events.clear()  # it holds the next run alone
                before = sum(result.done.total() for result in done)
                most = min(round(_PER_UPDATE * updates), wanted - before)
                result = await do_faults_to_one_run(setting, history, kind, seed + number, most)
                done.append(result)
                with (results / RESULTS).open("a") as file:
                    file.write(result.model_dump_json() + "\n")
                write_table(results)
                if result.failure:
                    await history.close()
                    history = None
                    kept = shutil.move(setting.data, results / f"failed-{result.seed}-{time.time():.0f}")
                    say(f"FAILED, its data is in {kept}: {result.failure[:2000]}")
                else:
                    say(f"run {result.run_id}, {kind}: {result.updates} updates, found nothing")
                say(f"{sum(each.done.total() for each in done)} of {wanted} faults in {len(done)} runs")
        finally:
            if history is not None:
                await history.close()
    return done


def _numbers(done: Sequence[RunResult], wanted: int, until: float) -> Iterator[int]:
    while sum(result.done.total() for result in done) < wanted and time.time() < until:
        yield len(done)

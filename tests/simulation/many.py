"""Run many seeds in several processes, with progress, and say how to replay what was found."""

import logging
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence

import structlog

from tests.simulation.scenario import draw_scenario
from tests.simulation.simulate import Outcome, simulate

_REPORT_S = 10.0


def quiet() -> None:
    """Silence what services say about faults, thousands of which happen."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of what killed processes have left open


def run_one(seed: int, *, traced: bool) -> int:
    """Run one seed and print what came of it; return the exit code."""
    quiet()
    print(draw_scenario(seed))
    outcome = simulate(seed, traced=traced)
    print(_line(outcome))
    print("faults:", dict(sorted(outcome.faults.items())))
    if outcome.found is not None:
        print(outcome.found)
    return int(outcome.found is not None)


def run_many(seeds: Sequence[int], *, jobs: int, keep_going: bool) -> int:
    """Run seeds and print what came of them; return the exit code."""
    quiet()
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    findings: list[Outcome] = []
    done, simulated_s = 0, 0.0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        for outcome in pool.imap_unordered(simulate, seeds):
            done += 1
            simulated_s += outcome.simulated_s
            faults.update(outcome.faults)
            if outcome.found is not None:
                findings.append(outcome)
                print(f"\nseed {outcome.seed}: {outcome.found[:2000]}")
                print(f"replay it: python -m tests.simulation --seed {outcome.seed} --trace", flush=True)
                if not keep_going:
                    pool.terminate()
                    break
            if time.monotonic() - told >= _REPORT_S:
                told = time.monotonic()
                print(f"{done} of {len(seeds)} seeds, {len(findings)} found", file=sys.stderr, flush=True)
    print(
        f"{done} seeds in {time.monotonic() - began:.0f} s: {simulated_s / 3600:.1f} simulated hours, "
        f"{sum(faults.values())} faults ({', '.join(f'{n} {kind}' for kind, n in faults.most_common())})"
    )
    print(f"found: {len(findings)}" + (f" {sorted(one.seed for one in findings)}" if findings else ""))
    return int(bool(findings))


def _line(outcome: Outcome) -> str:
    return (
        f"seed {outcome.seed}: {'nothing found' if outcome.found is None else 'FOUND'}; "
        f"{outcome.simulated_s:.0f} simulated s, {outcome.steps} steps, "
        f"{outcome.changes} changes of the log, {outcome.seconds:.2f} s; trace {outcome.digest}"
    )

"""Run seeds: ``python -m tests.simulation --seeds 1000``, or one with its story: ``--seed 17 --trace``."""

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first finding")
    parser.add_argument(
        "--mistake", nargs="+", default=[], metavar="NAME",
        help="put this one of tests/simulation/broken.py into the code first, or several in turn, "
        "and begin with the seed that is known to find it",
    )  # fmt: skip
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings depends on it: a seed must be the same story everywhere.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation.broken import MISTAKES, replaced
    from tests.simulation.simulate import run_many, run_one

    def run(start: int) -> int:
        if arguments.seed is not None:
            return run_one(arguments.seed, traced=arguments.trace)
        seeds = range(start, start + arguments.seeds)
        return run_many(seeds, jobs=arguments.jobs, keep_going=arguments.keep_going)

    codes = []
    for name in arguments.mistake:
        print(f"mistake: {name}", flush=True)
        start, mistake = MISTAKES[name]
        with replaced(mistake()):
            codes.append(run(start))
    return max(codes) if codes else run(arguments.start)


if __name__ == "__main__":
    sys.exit(main())

"""A sweep on the command line: read its seeds and values, run it, print what it came to."""

import sys
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from unstable_stream.api.output import plain, plain_console
from unstable_stream.api.summary import numbers_table
from unstable_stream.errors import ConfigError
from unstable_stream.ui.cli.running import PIPED_WIDTH

if TYPE_CHECKING:
    from unstable_stream.api.sweep import SeedsResult, Sweep


def listed_seeds(text: str | None) -> list[int]:
    """Return the seeds of ``--seeds 0,1,2``; none without the option."""
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise ConfigError(
            f"--seeds {text}: expected whole numbers with commas, e.g. --seeds 0,1,2"
        ) from error


def listed_grid(texts: Sequence[str] | None) -> dict[str, list[object]]:
    """Return keys and values of ``--grid KEY=VALUE,VALUE``: values of TOML, or bare words."""
    grid: dict[str, list[object]] = {}
    for text in texts or ():
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise ConfigError(
                f"--grid {text}: expected KEY=VALUE,VALUE, e.g. learner.learning_rate=1e-3,5e-4"
            )
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice: give all of its values at once")
        try:
            grid[key] = tomllib.loads(f"values = [{values}]")["values"]
        except (ValueError, RecursionError):
            grid[key] = [value.strip() for value in values.split(",")]
    return grid


def run_sweep(
    sweep: "Sweep",
    *,
    jobs: int | None,
    stop_worse: bool,
    allow_code: Sequence[str],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run a sweep and print its results; exits with status 130 if it was interrupted, 1 if a run failed."""
    planned = sweep.planned()
    left = sum(state.startswith("to ") for _, state, _ in planned)
    print(plain(f"sweep {sweep.name}: {len(planned)} runs, {len(planned) - left} of them have ended"))
    if dry_run:
        for number, (cell, state, run) in enumerate(planned, 1):
            print(plain(f"{number}/{len(planned)} {cell}: {state} {run}".rstrip()))
        print(_foretold(sweep.seconds_of_a_run(), left))
        return

    def say(line: str) -> None:
        if not quiet:
            print(plain(line), flush=True)

    end = sweep.start(jobs=jobs, stop_worse=stop_worse, allow_code=allow_code, report=say)
    if results := sweep.results():
        _print_results(results)
        print(plain(f"\ncurves: unstable-stream report {sweep.name}{sweep.place.data.options()}"))
    if end.interrupted or end.failed:
        failed = f"; failed: {', '.join(end.failed)}" if end.failed else ""
        done = f"{end.ended} of {len(planned)} runs of sweep {sweep.name} have ended"
        print(plain(f"{done}{failed}; the same command goes on"), file=sys.stderr)
        raise typer.Exit(130 if end.interrupted else 1)


def _foretold(seconds: float | None, left: int) -> str:
    if seconds is None:
        return "how long a run takes is known when one has ended"
    return f"a run took {seconds / 60:.1f} minutes; one by one the rest takes about {seconds * left / 60:.0f}"


def _print_results(results: "Sequence[SeedsResult]") -> None:
    names = ["configuration", "against"]
    numbers = ("seeds", "before", "won", "95 % interval", "each seed")
    table = numbers_table(*names, *numbers, names=[*names, "each seed"])
    for each in results:
        table.add_row(
            Text(each.configuration),
            Text(each.opponent),
            str(len(each.by_seed)),
            f"{each.before:.1%}",
            f"[bold]{each.won:.1%}[/]",
            f"{each.low:.1%} to {each.high:.1%}" if len(each.by_seed) > 1 else "–",
            " ".join(f"{rate:.1%}" for rate in each.by_seed.values()),
        )
    console = plain_console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print("\n[bold]Over seeds[/]: evaluation games won, the mean of the seeds and its interval")
    console.print(table)

"""The commands, by name: the module of one is imported when it is called, or its own help is asked for.

A new command is a module with ``register(app)`` and a line in :data:`COMMANDS`.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["COMMANDS", "LazyCommands"]

COMMANDS: Final[Mapping[str, str]] = {
    "quickstart": "Train a tiny player on SimpleTak, live, and show how much it learned.",
    "train": "Train a model by self-play until its updates are done; Ctrl-C stops it, --resume goes on.",
    "plan": "Show where each process of a run would compute, and its memory; start nothing.",
    "watch": "Follow a run live: progress, throughput, win rates, ratings.",
    "scale": "Give a run that is going on more or fewer engines.",
    "fork": "Start a new run from a checkpoint of another, with other settings.",
    "eval": "Play a checkpoint or a model against opponents on fixed seeds, and show the results.",
    "tournament": "Let every player meet every other one on fixed seeds, and show who is strongest.",
    "exploitability": "Measure exactly how far a policy is from optimal play in a game of OpenSpiel.",
    "processors": "Shape rewards and rate models of all runs, until SIGTERM or Ctrl-C.",
    "runs": "List the runs, newest first, with the evaluated win rate of each one's latest checkpoint.",
    "games": "List games, the latest first; 'games show ID' tells one move by move.",
    "ui": "Show runs, games and what-ifs as live pages in a browser, until Ctrl-C.",
    "report": "Write one HTML page about a run: results, curves, ratings and games to read.",
    "why": "Walk from a gradient step back to games, tokens, adapters and seeds.",
    "sql": "Query every game, turn, step, rating and update, also while a run trains.",
    "export": "Write a run to Parquet files, one per table and one of its raw events.",
    "push": "Write a checkpoint as files that transformers, PEFT and vLLM load, with a model card.",
    "archive": "Archive what the log holds and the archive does not.",
    "backup": "Copy a data directory while runs write to it.",
    "prune": "Forget what the stream processors have saved of runs that are over.",
    "audit": "Prove from the log that a run's games and steps add up.",
    "collapse": "Look at a run's updates for signs of a collapse.",
    "verify": "Recompute a run's steps, ratings and batches from their causes.",
    "rerate": "Rate a run's games anew and compare with the ratings that were used.",
    "rederive": "Shape a run's rewards anew and compare them, stage by stage, with those it was trained on.",
    "replay": "Stream a slice of history in its original order; without a target, as JSON lines.",
    "consume": "Run a plug-in consumer: all history first, then every event as it comes, until Ctrl-C.",
    "track": "Give the metrics of a run, live or finished, to TensorBoard, Weights & Biases or a file.",
    "topics": "List the topics: key, partitions, retention, events, and how many records they hold here.",
    "log": "Read the event log.",
    "monitor": "Serve Prometheus metrics of a log: lag, throughput, dead letters, learner updates, services.",
}
"""Name to what ``unstable-stream --help`` says of it: the beginning of its own help."""


class LazyCommands(TyperGroup):
    """Imports ``unstable_stream.cli.NAME`` for the command ``NAME``.

    ``Any``: of click, of which newer versions of Typer have a copy of their own.
    """

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of :data:`COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while the list of all is shown, one that only has a summary."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], rich_markup_mode="rich")
        app = typer.Typer(rich_markup_mode="rich")
        importlib.import_module(f"unstable_stream.cli.{cmd_name}").register(app)
        group = typer.main.get_group(app)
        return group.get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the list of commands without importing any."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

"""Compare two runs: the first difference, and what followed from it."""

from pathlib import Path

from unstable_stream.api.place import Place
from unstable_stream.archive import find_archived_run, open_archive
from unstable_stream.history.hindsight.diff import RunDiff, diff_runs


def diff(one: str, other: str, *, data: str | Path | None = None) -> RunDiff:
    """Compare two runs in the order of causes; the first difference is the one that explains the others.

    Settings and code, packages, games planned, observations, prompts, tokens, log-probabilities, moves,
    results, rewards by stage, draws and batches, metrics, weights and ratings: each as far as both runs went,
    by policy version. Of a fork and its parent, or of two forks of one run, only what came after the fork.

    Args:
        one: a run, by its name or the beginning of its id; ``latest``.
        other: the run that it is compared with.
        data: the data directory of both.

    Raises:
        ConfigError: one run twice.
        RunError: no such run, or several.
        ArchiveError: there is no archive.
    """
    archive = Place.at(data).archive
    with open_archive(archive) as connection:
        ids = [find_archived_run(connection, run) for run in (one, other)]
    return diff_runs(archive, *ids)

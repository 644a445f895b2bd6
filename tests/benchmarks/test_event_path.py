"""The benchmark of the event path does the path of a recorded run again, whole."""

import tarfile
from pathlib import Path

from benchmarks.event_path import measure, read_run
from tests.recordings.test_commands import RECORDINGS
from unstable_stream.runs.data_dir import DataDir


async def test_every_stage_of_a_recorded_run_is_measured(tmp_path: Path) -> None:
    with tarfile.open(RECORDINGS["0.1"]) as bundle:
        bundle.extractall(tmp_path, filter="data")
    run = await read_run(DataDir(tmp_path), None)
    assert (len(run.results), run.steps, len(run.updates)) == (43, 83, 3)
    assert 0 < run.games_between <= 43
    seconds = await measure(run)  # refuses to measure if the processors do not make the same steps
    assert len(seconds) == 5
    assert all(second > 0 for second in seconds.values())

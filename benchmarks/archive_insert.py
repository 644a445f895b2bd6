"""Archive insert against bare DuckDB: the same rows, but already decoded and already in Arrow tables.

``python -m benchmarks.archive_insert --games 3000``

Ours starts from stored records: decode, recognise what is known, build columns, take the file's lock, insert,
store positions, let go; the next batch is prepared meanwhile, as the archiver does. The baseline gets the
finished Arrow tables of the very same batches and only inserts them, a transaction a batch, on one connection
that stays open. Twice: with DuckDB's default settings, and with the archive's (row group size, checkpoint
threshold), which is the harder comparison.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np

from benchmarks.harness import compare, parser, report
from unstable_stream.archive import ArchiveWriter, Written
from unstable_stream.archive.batch import EVENTS, RowBatch, build_batch
from unstable_stream.archive.store import WritableArchive
from unstable_stream.archive.tables import TABLES
from unstable_stream.events import (
    Action,
    Event,
    GameOutcome,
    SeatResult,
    Step,
    Trajectory,
    Turn,
    event_id,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import record_from_event

_TURNS = 5
_PROMPT_TOKENS = 250
_COMPLETION_TOKENS = 60
_OPENINGS = ("Let me think about", "Since the opponent took", "The centre is free, so", "I should block")


def _game(index: int, words: Sequence[str], rng: np.random.Generator) -> list[Event]:
    """Return one self-play game: outcome, two trajectories, ten steps; some 70 kB as JSON."""
    game = game_id("bench", "train", index)
    moment = 1_700_000_000_000 + index * 100
    events: list[Event] = []
    for seat in (0, 1):
        trajectory = trajectory_id(game, seat)
        turns = tuple(_turn(number, seat, words, rng) for number in range(_TURNS))
        events.append(
            Trajectory(
                event_id=trajectory,
                run_id="bench",
                occurred_at_ms=moment,
                game_id=game,
                game_index=index,
                split="train",
                env_id="SimpleTak-v0-train",
                seed=index,
                seat=seat,
                model_uid="ckpt-000010",
                policy_version=10,
                trained=True,
                trained_seats=(0, 1),
                turns=turns,
                rewards={0: 1.0, 1: -1.0},
                reward=1.0 - 2 * seat,
                reason="win",
            )
        )
        events += [
            Step(
                event_id=step_id(trajectory, turn.turn_index),
                run_id="bench",
                occurred_at_ms=moment,
                trajectory_id=trajectory,
                game_id=game,
                game_index=index,
                env_id="SimpleTak-v0-train",
                seat=seat,
                turn_index=turn.turn_index,
                num_turns=_TURNS,
                model_uid="ckpt-000010",
                policy_version=10,
                prompt_token_ids=turn.prompt_token_ids,
                completion_token_ids=turn.completion_token_ids,
                logprobs=turn.logprobs,
                raw_reward=1.0 - 2 * seat,
                final_reward=1.0 - 2 * seat,
                reward=0.5 - seat,
            )
            for turn in turns
        ]
    events.append(
        GameOutcome(
            event_id=event_id("bench", "game-outcome", game),
            run_id="bench",
            occurred_at_ms=moment,
            game_id=game,
            game_index=index,
            split="train",
            env_id="SimpleTak-v0-train",
            seed=index,
            seats=tuple(
                SeatResult(
                    seat=seat, model_uid="ckpt-000010", kind="checkpoint", reward=1.0 - 2 * seat, rank=seat
                )
                for seat in (0, 1)
            ),
            reason="win",
            actions=tuple(Action(turn % 2, f"[{turn}]") for turn in range(2 * _TURNS)),
            num_turns=2 * _TURNS,
        )
    )
    return events


def _turn(number: int, seat: int, words: Sequence[str], rng: np.random.Generator) -> Turn:
    observation = " ".join(words[i] for i in rng.integers(0, len(words), 180))
    completion = f"{_OPENINGS[number % 4]} " + " ".join(words[i] for i in rng.integers(0, len(words), 45))
    return Turn(
        turn_index=number,
        game_turn=2 * number + seat,
        observation=observation,
        prompt=f"<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n",
        prompt_token_ids=pack_tokens(rng.integers(0, 150_000, _PROMPT_TOKENS)),
        completion=completion,
        completion_token_ids=pack_tokens(rng.integers(0, 150_000, _COMPLETION_TOKENS)),
        logprobs=pack_floats(-rng.exponential(0.5, _COMPLETION_TOKENS)),
        finish_reason="stop",
        action=f"[{number}]",
        format_feedback={"correct_answer_format": True},
    )


def made_up_records(games: int) -> list[StoredRecord]:
    """Return the records of ``games`` games as a consumer would read them."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 9, 2000)]
    offsets: dict[str, int] = {}
    records = []
    for index in range(games):
        for event in _game(index, words, rng):
            record = record_from_event(event)
            offset = offsets[record.topic] = offsets.get(record.topic, -1) + 1
            records.append(
                StoredRecord(
                    record.topic, 0, offset, record.key, record.value, record.headers, record.timestamp_ms
                )
            )
    return records


def _insert_all(connection: duckdb.DuckDBPyConnection, batches: Sequence[RowBatch]) -> None:
    for batch in batches:
        connection.execute("BEGIN")
        for name, table in batch.tables.items():
            connection.register("batch", table)
            connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * FROM batch')
            connection.unregister("batch")
        connection.execute("COMMIT")
    connection.execute("CHECKPOINT")


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--games", type=int, default=2000, help="games; 13 records each")
    arguments.add_argument("--batch", type=int, default=7000, help="records of one transaction")
    arguments.add_argument(
        "--cpu", action="store_true", help="count processor time of all threads, for a machine that is busy"
    )
    options = arguments.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    unit = "records/CPU s" if options.cpu else "records/s"
    records = made_up_records(options.games)
    chunks = [records[start : start + options.batch] for start in range(0, len(records), options.batch)]
    batches = [build_batch(chunk, lambda ids: [True] * len(ids)) for chunk in chunks]
    directory = Path(tempfile.mkdtemp(prefix="archive-bench-"))

    def ours() -> float:
        path = directory / "ours.duckdb"
        began = clock()
        with ArchiveWriter(path) as writer, ThreadPoolExecutor(1) as storing:
            under_way: list[Future[Written]] = []
            for chunk in chunks:
                prepared = writer.prepare(chunk)
                for batch in under_way:
                    batch.result()
                under_way = [storing.submit(writer.store, prepared)]
            for batch in under_way:
                batch.result()
        return _rate(began, path)

    def bare() -> float:
        path = directory / "bare.duckdb"
        began = clock()
        with duckdb.connect(str(path)) as connection:
            for table in (EVENTS, *TABLES):
                connection.execute(table.create_sql())
            _insert_all(connection, batches)
        return _rate(began, path)

    def bare_tuned() -> float:
        path = directory / "tuned.duckdb"
        began = clock()
        with WritableArchive(path).held() as connection:
            _insert_all(connection, batches)
        return _rate(began, path)

    def _rate(began: float, path: Path) -> float:
        rate = len(records) / (clock() - began)
        path.unlink()
        return rate

    try:
        comparisons = [
            compare("insert, DuckDB as it comes", ours, bare, unit=unit, rounds=options.rounds, target=0.85),
            compare(
                "insert, DuckDB tuned alike", ours, bare_tuned, unit=unit, rounds=options.rounds, target=0.85
            ),
        ]
    finally:
        shutil.rmtree(directory)
    size = sum(len(record.value) for record in records) / len(records)
    report(
        f"archive insert: {len(records):,} records of {size:,.0f} bytes in {len(chunks)} batches",
        comparisons,
        options.json,
        versions={"duckdb": duckdb.__version__},
    )


if __name__ == "__main__":
    main()

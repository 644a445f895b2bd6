"""Write the games of a run as a data set that ``datasets.load_dataset`` reads: Parquet files and a card."""

import json
from pathlib import Path
from typing import Final

from unstable_stream.archive.dropping import find_archived_run
from unstable_stream.archive.export import written_beside
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.store import quoted
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.version import __version__

_MAPPING: Final = "mapping.toml"
_COLUMNS: Final = {
    "game": ("o.game_id", "The game; its moves are the rows with this value"),
    "env_id": ("o.env_id", "The environment"),
    "seed": (
        "coalesce(CAST(o.position->>'$.seed' AS BIGINT), o.seed)",
        "The seed of its environment; with the actions it plays the game again",
    ),
    "game_turn": ("a.game_turn", "The number of the move in the game, from 0"),
    "seat": ("a.seat", "The seat that moved"),
    "observation": ("t.observation", "What the seat was shown; NULL for scripted players"),
    "prompt": ("t.prompt", "The same in the model's template"),
    "completion": ("t.completion", "What the model wrote"),
    "action": ("a.action", "What was passed to the environment"),
    "valid": ("a.valid", "Whether the environment accepted it"),
    "finish_reason": ("a.finish_reason", "Why the completion ended: stop, or length"),
    "prompt_token_ids": ("t.prompt_token_ids", "Exactly the tokens that the model was given"),
    "completion_token_ids": ("t.completion_token_ids", "Exactly the tokens that it sampled"),
    "logprobs": ("t.logprobs", "Their log-probabilities when they were sampled"),
    "temperature": ("j.temperature", "The temperature that they were sampled at"),
    "reward": ("p.rewards", "The final reward of each seat"),
    "model": ("p.models", "The player of each seat"),
    "kind": ("p.kinds", "The kind of each: checkpoint, adapter, model, openai, scripted or human"),
    "policy_version": ("p.versions", "For checkpoints the update that made them"),
    "role": ("p.roles", "The environment's name for each seat, where it has one"),
    "team": ("p.teams", "The team of each seat, where there are teams"),
    "reason": ("o.reason", "How the game ended: win, draw, invalid-move or truncated"),
    "reason_text": ("o.reason_text", "The environment's words about it"),
    "invalid_seat": ("o.invalid_seat", "The seat whose invalid move ended the game"),
}
"""By column its SQL and its meaning; the names are those of an import."""
_SELECTED: Final = ", ".join(f"{sql} AS {name}" for name, (sql, _) in _COLUMNS.items())
_ROWS: Final = f"""
WITH p AS (
    SELECT game_id, list(reward ORDER BY seat) AS rewards, list(model_uid ORDER BY seat) AS models,
        list(kind ORDER BY seat) AS kinds, list(policy_version ORDER BY seat) AS versions,
        list(role ORDER BY seat) AS roles, list(team ORDER BY seat) AS teams
    FROM seats WHERE run_id = getvariable('run') GROUP BY game_id
)
SELECT {_SELECTED}
FROM game_outcomes AS o JOIN actions AS a USING (game_id) JOIN p USING (game_id)
LEFT JOIN turns AS t USING (game_id, game_turn) LEFT JOIN trajectories AS j USING (trajectory_id)
WHERE o.run_id = getvariable('run') AND o.split = getvariable('split')
ORDER BY o.game_index, a.game_turn
"""


def write_dataset(
    archive: ArchiveAddress, run: str, directory: Path | str, *, force: bool = False
) -> dict[str, int]:
    """Write the finished games of a run, a row for each move and a file for each split.

    Arguments, result and errors are those of :func:`unstable_stream.api.sharing.export_dataset`.
    """
    target = Path(directory).absolute()
    with written_beside(target) as partial, open_archive(archive, files=True) as connection:
        run_id = find_archived_run(connection, run)
        connection.execute("SET VARIABLE run = ?", [run_id])
        splits = [
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT split FROM game_outcomes WHERE run_id = ? ORDER BY split DESC", [run_id]
            ).fetchall()
        ]
        if not splits:
            raise ArchiveError(f"run {run_id} has no finished game to export")
        rows = {}
        (partial / "data").mkdir()
        for split in splits:
            file = partial / "data" / f"{split}-00000-of-00001.parquet"
            if not split.isidentifier():  # it becomes a file's name
                raise ArchiveError(f"run {run_id} has games of a split {split!r}, expected a word")
            connection.execute("SET VARIABLE split = ?", [split])
            copied = connection.execute(
                f"COPY ({_ROWS}) TO {quoted(file)} (FORMAT parquet, COMPRESSION zstd)"
            )
            ((rows[split],),) = copied.fetchall()
        (partial / "README.md").write_text(_card(run_id, rows), encoding="utf-8")
        columns = "".join(f'{name} = "{name}"\n' for name in _COLUMNS if name != "game_turn")
        (partial / _MAPPING).write_text(f"[columns]\n{columns}", encoding="utf-8")
        made = [path.relative_to(partial) for path in sorted(partial.rglob("*")) if path.is_file()]
        there = [target / name for name in made if (target / name).exists()]
        if there and not force:
            raise ArchiveError(f"{there[0]} is there already; replace it with --force")
        (target / "data").mkdir(parents=True, exist_ok=True)
        for split in (target / "data").glob("*-00000-of-00001.parquet"):
            split.unlink()  # of a run that had other splits
        for name in made:
            (partial / name).replace(target / name)
    return rows


def _card(run_id: str, rows: dict[str, int]) -> str:
    files = "".join(f"      - split: {name}\n        path: data/{name}-*.parquet\n" for name in rows)
    columns = "".join(f"| `{name}` | {meaning} |\n" for name, (_, meaning) in _COLUMNS.items())
    counts = ", ".join(f"{count:,} moves in `{name}`" for name, count in rows.items())
    return f"""---
pretty_name: {json.dumps(run_id)}
tags:
  - text-games
  - self-play
  - reinforcement-learning
configs:
  - config_name: default
    data_files:
{files}---

# {run_id}

Games of text, move by move: {counts}. Recorded by unstable_stream {__version__}.

```python
from datasets import load_dataset

moves = load_dataset("DIRECTORY")
```

| Column | |
|---|---|
{columns}
`unstable-stream import data/{next(iter(rows))}-00000-of-00001.parquet --mapping mapping.toml` reads the games
back.
"""

"""The verdicts of ``check-env`` in a data directory, and what a run records of its environments.

A verdict is a file ``verdicts/ENV/PLAYERS-SHA256.json``: one for each version of an environment's code.
None of it keeps a run from starting: what cannot be read is told.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from unstable_stream.errors import UnstableStreamError
from unstable_stream.events import EnvironmentUse
from unstable_stream.extensions import KINDS, Reference, is_extension
from unstable_stream.games.court.verdict import EnvironmentVersion, Verdict, version_of
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir, write_whole


def keep_verdict(verdict: Verdict, data: DataDir) -> Path:
    """Write a verdict, and return its file; an older one about the same version is replaced.

    Raises:
        ConfigError: it cannot be written.
    """
    digest = verdict.version.sha256[:16] or "unknown"
    path = data.verdicts(verdict.env_id) / f"{verdict.num_players}-{digest}.json"
    write_whole(path, verdict.to_json())
    return path


def environments_in_use(config: RunConfig, data: DataDir) -> tuple[tuple[EnvironmentUse, ...], list[str]]:
    """Return the environments that a run plays, with their versions and the verdicts about these.

    And a line for each that failed, that has changed since it was checked, or of which something is damaged.
    """
    envs = (*config.train_envs, *config.evaluated_envs)
    used, doubts = [], []
    for env_id, num_players in dict.fromkeys((env.env_id, env.num_players) for env in envs):
        version, known = EnvironmentVersion(), []
        try:
            version = version_of(env_id)
        except (UnstableStreamError, OSError) as error:
            doubts.append(f"{env_id}: the version of its code is not recorded: {error}")
        for path in data.verdicts(env_id).glob(f"{num_players}-*.json"):
            try:
                known.append(msgspec.json.decode(path.read_bytes(), type=Verdict))
            except (msgspec.DecodeError, OSError) as error:
                doubts.append(f"{path} is no verdict ({error}): delete it, and run check-env again")
        verdict = next((each for each in known if each.version == version), None)
        again = f"unstable-stream check-env {env_id} --players {num_players}{data.options()}"
        if verdict is None and known:
            doubts.append(f"{env_id} has changed since it was checked: {again} checks what is here now")
        elif verdict is not None and verdict.status == "failed":
            doubts.append(f"{env_id} failed its check: {again} says what is wrong with it")
        used.append(
            EnvironmentUse(
                env_id=env_id,
                num_players=num_players,
                **msgspec.structs.asdict(version),
                verdict=verdict.status if verdict else "",
                judged_at_ms=verdict.judged_at_ms if verdict else 0,
            )
        )
    return tuple(used), doubts


_CODE: Final = KINDS["environment"]


def changed_environments(recorded: Sequence[EnvironmentUse]) -> list[str]:
    """Return a line for each environment of which the code is another than a run recorded.

    Extensions are left to :func:`~unstable_stream.runs.code.changed_code`.
    """
    lines = []
    for env_id, was in {use.env_id: _version(use) for use in recorded if use.sha256}.items():
        try:
            if is_extension(_CODE, Reference.parse(env_id, "env_id")):
                continue
            now = version_of(env_id)
        except (UnstableStreamError, OSError) as error:
            lines.append(f"not compared with what the run used: {error}")
            continue
        if now != was:
            lines.append(f"{env_id} is another than the run used: {was}, here {now}")
    return lines


def _version(use: EnvironmentUse) -> EnvironmentVersion:
    return EnvironmentVersion(use.distribution, use.version, use.sha256)

"""The verdict of the court about an environment, and the version of the code that it judged."""

import hashlib
import importlib
import inspect
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from unstable_stream.extensions import KINDS, Reference, use_of
from unstable_stream.games import disguises, openspiel
from unstable_stream.games.disguises.naming import plain_id
from unstable_stream.games.environments import entry_point_of

Status: TypeAlias = Literal["failed", "warned", "passed", "not judged"]

ORDER: Final[tuple[Status, ...]] = ("failed", "warned", "passed", "not judged")
"""From the worst: a verdict is the worst of its findings."""


class GameExample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The smallest game that shows a finding."""

    seed: int
    moves: tuple[str, ...] = ()
    invalid_moves_allowed: int = 0


class Finding(msgspec.Struct, frozen=True):
    """The answer to one question."""

    check: str
    """The question, by its name in :data:`~unstable_stream.games.court.judge.CHECKS`."""
    status: Status
    says: str
    """One sentence."""
    example: GameExample | None = None


class EnvironmentVersion(msgspec.Struct, frozen=True):
    """The identity of the code and data of an environment."""

    distribution: str = ""
    """The installed package that holds it; empty for a file."""
    version: str = ""
    sha256: str = ""
    """Digest of its source, and of the files beside it; empty: no source."""

    def __str__(self) -> str:
        package = f"{self.distribution} {self.version}, " if self.distribution else ""
        return f"{package}sha256 {self.sha256[:12] or 'unknown'}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to all questions about one environment."""

    env_id: str
    num_players: int
    seed: int
    """Every game of the trial is derived from it."""
    version: EnvironmentVersion
    games: int
    """Games that were played."""
    seconds: float
    findings: tuple[Finding, ...]
    judged_at_ms: int = 0
    """Unix time."""
    package_version: str = ""
    """The version of unstable_stream that judged."""

    @property
    def status(self) -> Status:
        """``failed``, ``warned`` or ``passed``: the worst of the findings."""
        found = {finding.status for finding in self.findings}
        return next((status for status in ORDER[:2] if status in found), "passed")

    def of(self, status: Status) -> list[Finding]:
        """Return the findings with this answer."""
        return [finding for finding in self.findings if finding.status == status]

    def play_command(self, example: GameExample) -> str:
        """Return the command that plays an example again."""
        told = msgspec.json.encode(example).decode()
        return shlex.join(
            ["unstable-stream", "check-env", self.env_id, "--players", str(self.num_players), "--play", told]
        )

    def page(self) -> str:
        """Return the verdict as one page of text."""
        counts = ", ".join(f"{len(self.of(status))} {status}" for status in ORDER if self.of(status))
        lines = [
            f"{self.env_id}: {self.status}",
            f"  {self.num_players} player(s), {self.games} games in {self.seconds:.0f} s, seed {self.seed}; "
            f"{counts}",
            f"  code: {self.version}",
        ]
        for status in ORDER:
            lines += [f"{status}:"] if self.of(status) else []
            for finding in self.of(status):
                lines.append(f"  {finding.check}: {finding.says}")
                if finding.example is not None and len(finding.example.moves) < _MOST_MOVES:
                    lines.append(f"    {self.play_command(finding.example)}")
        return "\n".join(lines)

    def to_json(self) -> bytes:
        """Return the verdict as one JSON object."""
        told = msgspec.to_builtins(self) | {"status": self.status}
        return msgspec.json.format(msgspec.json.encode(told), indent=1)


_MOST_MOVES: Final = 100


def version_of(env_id: str) -> EnvironmentVersion:
    """Return the version of an environment's code and data, without playing it.

    TextArena's are identified by all files of their folder, an extension by its source, a game of OpenSpiel
    by that of the package that plays it, and a disguise also by what words it.

    Raises:
        ConfigError: an extension that cannot be loaded here.
        EnvironmentUnavailableError: no such environment.
    """
    if (plain := plain_id(env_id)) != env_id:
        found = version_of(plain)
        digest = _version("", _sources(Path(disguises.__path__[0]))).sha256
        both = hashlib.sha256(f"{found.sha256}{digest}".encode()).hexdigest()
        return msgspec.structs.replace(found, sha256=both)
    entry_point = entry_point_of(env_id)
    if env_id.startswith("openspiel:"):
        return _version("open_spiel", _sources(Path(openspiel.__path__[0])))
    if entry_point is None:
        used = use_of(KINDS["environment"], Reference.parse(env_id, "env_id"), "env_id")
        return EnvironmentVersion(used.distribution, used.version, used.sha256)
    module = importlib.import_module(entry_point.partition(":")[0])
    path = Path(inspect.getfile(module))
    if module.__name__.startswith("textarena.envs."):
        return _version("textarena", _sources(path.parent))
    return _version("", [path])  # registered by somebody else: what is beside it may be anything


def _version(distribution: str, paths: Sequence[Path]) -> EnvironmentVersion:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    try:
        return EnvironmentVersion(
            distribution, version(distribution) if distribution else "", digest.hexdigest()
        )
    except PackageNotFoundError:
        return EnvironmentVersion(distribution, "", digest.hexdigest())


def _sources(folder: Path) -> list[Path]:
    """Return the files of a folder but those that Python writes there, which come and go."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

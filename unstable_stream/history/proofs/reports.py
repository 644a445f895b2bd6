"""The result of a proof of a run: counts, problems in words, and a table for people."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from unstable_stream.console import plain

_LONGEST_VALUE: Final = 200
_SHOWN_BEFORE: Final = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a record and its causes."""

    where: str
    """``topic[partition]@offset`` of the record, or of its cause if there is no record."""
    event_id: str
    what: str
    """The difference in words."""
    field: str | None = None
    """Path of the first field that differs, e.g. ``$.turns[3].observation``."""
    recorded: str | None = None
    """The recorded value as JSON, shortened."""
    recomputed: str | None = None
    """The recomputed value as JSON, shortened."""

    def __str__(self) -> str:
        text = f"{self.where} (event {self.event_id}): {self.what}"
        if self.field is None:
            return text
        return f"{text}: {self.field} is {self.recorded}, recomputed {self.recomputed}"


def differing_fields(recorded: bytes, recomputed: bytes) -> list[tuple[str, str, str]]:
    """Return the path, the recorded and the recomputed value of each difference of two JSON bodies.

    The result is empty if the values are equal and only their spelling differs.
    """
    found: list[tuple[str, str, str]] = []
    _walk("$", msgspec.json.decode(recorded), msgspec.json.decode(recomputed), found)
    return found


def _walk(path: str, recorded: Any, recomputed: Any, found: list[tuple[str, str, str]]) -> None:
    if isinstance(recorded, Mapping) and isinstance(recomputed, Mapping):
        for name in [*recorded, *(name for name in recomputed if name not in recorded)]:
            _walk(f"{path}.{name}", recorded.get(name), recomputed.get(name), found)
    elif (
        isinstance(recorded, list)
        and isinstance(recomputed, list)
        and len(recorded) == len(recomputed)
        and len(recorded) > 0
    ):
        for index, (one, other) in enumerate(zip(recorded, recomputed, strict=True)):
            _walk(f"{path}[{index}]", one, other, found)
    elif recorded != recomputed:
        same = 0
        if isinstance(recorded, str) and isinstance(recomputed, str):
            # Two long texts are shown from shortly before their first difference.
            pairs = zip(recorded, recomputed, strict=False)
            same = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        found.append((path, _shown(recorded, same), _shown(recomputed, same)))


def _shown(value: Any, same: int) -> str:
    if isinstance(value, str) and same > _LONGEST_VALUE // 2:
        value = "…" + value[same - _SHOWN_BEFORE :]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


SHOWN: Final = 10
"""The most differences of a kind that are shown; all are counted."""
_PROBLEMS_OF_A_KIND: Final = 20


class Problem(NamedTuple):
    """Something that does not add up."""

    kind: str
    text: str
    """Says where and what, with both values."""


def abridged(problems: Iterable[Problem]) -> tuple[str, ...]:
    """Return one line per problem: of each kind the first few, and a count of the rest."""
    by_kind: dict[str, list[str]] = {}
    for kind, text in problems:
        by_kind.setdefault(plain(kind), []).append(plain(text))
    lines = []
    for kind, texts in by_kind.items():
        lines += [f"{kind}: {text}" for text in texts[:_PROBLEMS_OF_A_KIND]]
        if len(texts) > _PROBLEMS_OF_A_KIND:
            lines.append(f"{kind}: and {len(texts) - _PROBLEMS_OF_A_KIND} more")
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """A proof of one run. As text it is the table that the command prints, and the verdict."""

    run_id: str
    state: str
    """``running``, ``lost``, ``completed``, ``stopped`` or ``failed``."""
    silence: str = ""
    """For how long a lost run has been silent, in words."""
    problems: tuple[str, ...]
    """All that is wrong, a line each; of many of a kind the first, and a count."""

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """The result in a word or two."""
        raise NotImplementedError

    def table(self) -> str:
        """Return the counts as text for people."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join((self.table(), f" {self.verdict}", *(f"   {problem}" for problem in self.problems)))

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class GameCounts:
    """The games of one split."""

    started: int
    finished: int
    abandoned: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """The counts of the training steps."""

    expected: int
    """Steps expected from the outcomes of the finished games."""
    produced: int
    """Steps that are on topic ``steps``."""
    set_aside: int
    """Expected steps of trajectories that are on ``dead-letters``."""
    unshaped: int
    """Expected steps of trajectories that the reward processor has not read yet."""
    trained: int
    dropped: Mapping[str, int]
    """By reason."""
    pending: int
    """Steps produced, but neither trained nor dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditReport(Report):
    """The result of an audit: the counts of the games and the steps of a run."""

    games: Mapping[str, GameCounts]
    """By split."""
    steps: StepCounts
    updates: int
    checkpoints: int
    redelivered: int
    replayed: int
    """Records of games that were played a second time, with other content."""
    rejected: int
    """Records on ``dead-letters``."""

    @property
    def verdict(self) -> str:
        return "balanced" if self.ok else f"{len(self.problems)} problems"

    def table(self) -> str:
        steps = self.steps
        dropped = "".join(f" + {count:,} {reason}" for reason, count in steps.dropped.items())
        rows = [
            (
                f"{split} games started",
                f"{games.started:,}",
                f"= {games.finished:,} finished + {games.abandoned:,} abandoned "
                f"+ {games.in_flight:,} in flight",
            )
            for split, games in self.games.items()
        ]
        rows += [
            (
                "steps expected",
                f"{steps.expected:,}",
                f"= {steps.produced:,} produced + {steps.set_aside:,} set aside "
                f"+ {steps.unshaped:,} to be shaped",
            ),
            (
                "steps produced",
                f"{steps.produced:,}",
                f"= {steps.trained:,} trained{dropped or ' + 0 dropped'} + {steps.pending:,} pending",
            ),
            ("updates", f"{self.updates:,}", f"{self.checkpoints:,} checkpoints"),
            ("redelivered", f"{self.redelivered:,}", f"counted once; {self.replayed:,} played again"),
            ("dead letters", f"{self.rejected:,}", ""),
        ]
        state = f"{self.state}, {self.silence}" if self.silence else self.state
        return _table(f"{self.run_id} ({state})", rows)


@dataclass(slots=True)
class Check:
    """The result for one kind of derived event."""

    name: str
    compared: int = 0
    """Events recomputed and compared, same or different."""
    differing: int = 0
    pending: int = 0
    """Events whose causes are in the log but are not processed yet."""
    gone: int = 0
    """Events that retention or compaction has deleted, so they are not compared."""
    skipped: str | None = None
    """The reason why nothing was compared."""
    first: list[Difference] = field(default_factory=list)
    """The first few differences."""

    @property
    def wants_more(self) -> bool:
        """True if a further difference would still be shown."""
        return len(self.first) < SHOWN

    @property
    def problems(self) -> list[str]:
        """The first differences, and how many more there are."""
        more = self.differing - len(self.first)
        told = [plain(f"{self.name}: {difference}") for difference in self.first]
        return [*told, f"{self.name}: and {more:,} more"] if more > 0 else told

    def differs(self, where: str, event_id: str, what: str, *values: str) -> None:
        """Count a difference; keep it if it is one of the first. ``values``: field, recorded, recomputed."""
        self.differing += 1
        if self.wants_more:
            self.first.append(Difference(where, event_id, what, *values))

    def compare(
        self, where: str, event_id: str, recorded: bytes, recomputed: bytes, *, of: str = "", source: str
    ) -> bool:
        """Count and describe a difference of two JSON bodies; return false if only their spelling differs.

        ``of`` says what differs, if it is not the record as a whole, and ``source`` from what it differs.
        """
        fields = differing_fields(recorded, recomputed)
        if fields:
            more = f" in {len(fields)} fields, first" if len(fields) > 1 else ""
            self.differs(where, event_id, f"{of}differs{more} from {source}", *fields[0])
        return bool(fields)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VerifyReport(Report):
    """The result of a verification: first the books, then everything that can be recomputed."""

    audit: AuditReport
    """The result of the ledger, without checkpoint files: the existing ones are compared."""
    checks: Sequence[Check]
    notes: Sequence[str] = ()
    """Facts that may explain differences: records are missing, the code here is not the recorded code."""
    trained: str | None = None
    """The result of training again, in a line; ``None``: it was not asked for."""

    @property
    def verdict(self) -> str:
        if self.ok:
            return "verified"
        books = "" if self.audit.ok else f", {self.audit.verdict} of the ledger"
        return f"{sum(check.differing for check in self.checks):,} difference(s){books}"

    def table(self) -> str:
        rows: list[tuple[str, ...]] = [("", "compared", "differ", "pending", "gone", "")]
        for check in self.checks:
            counts = (check.compared, check.differing, check.pending, check.gone)
            rows.append((check.name, *(f"{count:,}" for count in counts), check.skipped or ""))
        table = _table(f"{self.run_id} ({self.state})", rows)
        return table if self.trained is None else f"{table}\n {self.trained}"

    def to_json(self) -> bytes:
        """Return the report as one JSON object."""
        return msgspec.json.encode(
            {
                "run_id": self.run_id,
                "state": self.state,
                "clean": self.ok,
                "checks": self.checks,
                "ledger": self.audit.problems,
                "notes": self.notes,
                "trained": self.trained,
            }
        )


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Lay rows out: names and remarks to the left, the numbers between them to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [title]
    for name, *numbers, remark in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=False)]
        lines.append(f" {'  '.join((name.ljust(widths[0]), *cells, remark))}".rstrip())
    return plain("\n".join(lines))

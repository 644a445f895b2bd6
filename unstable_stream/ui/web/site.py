"""Know the places whose runs are shown, read their archives so that whoever writes them gets its turn, and
fill templates. All values are escaped; what models wrote stays text, control characters included.
"""

import contextvars
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from starlette.responses import HTMLResponse

from unstable_stream.api.human_play import HumanGame
from unstable_stream.api.place import Place
from unstable_stream.archive import DroppedRun, dropped_runs, held
from unstable_stream.console import get_logger, plain
from unstable_stream.errors import ConfigError, RunError, UnstableStreamError
from unstable_stream.history.views.boards import spelled
from unstable_stream.history.views.report.reading import sweeps
from unstable_stream.history.views.results import Point
from unstable_stream.history.views.run_list import RunLine, RunStanding, list_runs, read_standing
from unstable_stream.history.views.written import templates
from unstable_stream.log.stores.archive_address import ArchiveAddress, archive_state
from unstable_stream.version import __version__

_AT_ONCE: Final = 2
_KEPT: Final = 50
_log = get_logger(__name__)


@dataclass(eq=False)
class Job:
    """One piece of work."""

    title: str
    kind: str
    """Names the part of the page that shows its result."""
    run_id: str = ""
    """The run that it is about; empty for none."""
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    asked: Mapping[str, str] = field(default_factory=dict)
    """The form that began it."""
    result: Any = None
    """``Any``: whatever the work returns."""
    error: str | None = None
    done_of: tuple[int, int] | None = None
    """The number done and the number in all, once they are known."""
    done: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The time that it has taken so far, or took."""
        return self.took_s if self.done.is_set() else time.monotonic() - self.begun

    def tell(self, done: int, of: int) -> None:
        """Say how far it is."""
        self.done_of = (done, of)


class Jobs:
    """The work of one site."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def start(
        self, kind: str, title: str, work: Callable[[Job], Any], *, run_id: str = "", asked: Mapping[str, str]
    ) -> Job:
        """Begin work in a thread; it may tell its job how far it is.

        Raises:
            ConfigError: as much as may go on at once does.
        """
        job = Job(title, kind, run_id, asked=asked)
        with self._lock:
            if sum(not each.done.is_set() for each in self._jobs.values()) >= _AT_ONCE:
                raise ConfigError("two such computations are under way already: wait for one of them")
            self._jobs[job.id] = job
            while len(self._jobs) > _KEPT:
                self._jobs.popitem(last=False)
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(_do, job, work), daemon=True).start()
        return job

    def find(self, id_: str) -> Job | None:
        """Return a job, if it is not forgotten."""
        return self._jobs.get(id_)


def _do(job: Job, work: Callable[[Job], Any]) -> None:
    try:
        job.result = work(job)
    except UnstableStreamError as error:
        job.error = str(error)
    except Exception as error:
        job.error = f"{type(error).__name__}: {error}"
        _log.exception("what-if failed")
        raise
    finally:
        job.took_s = time.monotonic() - job.begun
        job.done.set()


T = TypeVar("T")

_TOGETHER_S: Final = 1.0
"""Pages may read the archive together for so long; then all let go of it, so that it can be written."""
_LET_GO_S: Final = 0.03
"""An archiver that waits tries again every 0.01 s."""
_REMEMBERED: Final = 64
_ENDED_GAMES: Final = 20


@dataclass(eq=False)
class Shelf:
    """One place: its archive, and what was read of it last."""

    slug: str
    """Its name in addresses."""
    place: Place
    _free: threading.Condition = field(default_factory=threading.Condition)
    _readers: int = 0
    _since: float = 0.0
    _free_from: float = 0.0
    _answers: OrderedDict[Hashable, tuple[str, Any]] = field(default_factory=OrderedDict)
    """``Any``: whatever was computed, with the state of the archive that it is of."""
    _remembering: threading.RLock = field(default_factory=threading.RLock)

    @property
    def archive(self) -> ArchiveAddress:
        """The archive."""
        return self.place.archive

    def state(self) -> str:
        """Return what changes whenever the archive is written; it opens nothing."""
        return archive_state(self.archive)

    @contextmanager
    def reading(self) -> Iterator[ArchiveAddress]:
        """Hold the archive: the queries within see one state of it.

        Raises:
            ArchiveError: there is none, or another process holds it past the deadline.
        """
        self._enter()
        try:
            with held(self.archive):
                yield self.archive
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._free:
            while True:
                now = time.monotonic()
                if self._readers and now - self._since > _TOGETHER_S:
                    self._free.wait()
                elif not self._readers and now < self._free_from:
                    self._free.wait(self._free_from - now)
                else:
                    break
            if not self._readers:
                self._since = now
            self._readers += 1

    def _leave(self) -> None:
        with self._free:
            self._readers -= 1
            if not self._readers:
                self._free_from = time.monotonic() + _LET_GO_S
            self._free.notify_all()

    def remember(self, key: Hashable, find: Callable[[ArchiveAddress], T]) -> T:
        """Return ``find(archive)``, found anew only if the archive has changed since.

        Several pages that want something at once wait for each other: not within :meth:`reading`.
        """
        with self._remembering:
            state, known = self.state(), self._answers.get(key)
            if known is None or known[0] != state:
                with self.reading() as archive:
                    known = (state, find(archive))
            self._answers[key] = known
            self._answers.move_to_end(key)
            while len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
            return known[1]

    def runs(self) -> Sequence[RunLine]:
        """Return its runs, the newest first; none if there is no archive yet."""
        return self.remember("runs", list_runs) if self.place.has_archive else []

    def sweeps(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the runs of each sweep, the newest sweep first."""
        return self.remember("sweeps", sweeps) if self.place.has_archive else {}

    def dropped(self) -> Sequence[DroppedRun]:
        """Return the runs that were dropped from its archive, the latest first."""
        return self.remember("dropped", dropped_runs) if self.place.has_archive else []

    def run(self, run_id: str) -> RunStanding:
        """Return how far one run is.

        Raises:
            RunError: there is none of this id.
        """
        found = (
            self.remember(("standing", run_id), partial(read_standing, run_id=run_id))
            if self.place.has_archive
            else None
        )
        if found is None:
            self.place.refuse_dropped(run_id)
            raise RunError(
                f"{self.place.root} has no run {run_id!r}; its first games may not be archived yet"
            )
        return found

    def href(self, *parts: str | int) -> str:
        """Return the address of a page of this place."""
        return "/".join(["", self.slug, *(quote(str(part), safe="") for part in parts)])


class Site:
    """All places."""

    def __init__(self, places: Sequence[Place]) -> None:
        """``places``: at least one; each needs a data directory of its own."""
        self.jobs = Jobs()
        self.games: dict[str, HumanGame] = {}
        """Those that persons play, by id, and the last that they played."""
        self.begun_from: dict[str, str] = {}
        """The queries of the pages that they were begun from, by id."""
        self._adding = threading.Lock()
        shelves: dict[str, Shelf] = {}
        for place in places:
            name = "".join(
                each if each.isalnum() or each in "-_" else "-" for each in place.root.resolve().name
            )
            slug = name = name.strip("-") or "data"
            count = 1
            while slug in shelves or slug == "static":
                count += 1
                slug = f"{name}-{count}"
            shelves[slug] = Shelf(slug, place)
        self.shelves: Mapping[str, Shelf] = shelves

    def add_game(self, make: Callable[[], HumanGame], *, most: int, begun_from: str = "") -> HumanGame:
        """Begin a game and return it; games that have ended are forgotten beyond the last few.

        Raises:
            ConfigError: ``most`` are being played already.
        """
        with self._adding:
            ended = [id_ for id_, game in self.games.items() if game.state in ("over", "failed")]
            if len(self.games) - len(ended) >= most:
                raise ConfigError(f"{most} games are being played already: end one of them")
            for id_ in ended[:-_ENDED_GAMES]:
                del self.games[id_], self.begun_from[id_]
            game = make()
            self.games[game.game_id] = game
            self.begun_from[game.game_id] = begun_from
            return game.start()


_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 28


def page(
    template: str, site: Site, shelf: Shelf | None = None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a page. ``Any``: what its template asks for."""
    text = _TEMPLATES.get_template(template).render(site=site, shelf=shelf, version=__version__, **values)
    return HTMLResponse(text, status)


def _spark(points: Sequence[Point]) -> dict[str, str]:
    """Return a curve by update and its band of intervals, as points of an SVG of 120 by 28."""
    first, last = points[0].update, max(points[-1].update, points[0].update + 1)

    def place(point: Point, share: float) -> str:
        x = 1 + (_SPARK_WIDTH - 2) * (point.update - first) / (last - first)
        return f"{x:.1f},{1 + (_SPARK_HEIGHT - 2) * (1 - share):.1f}"

    edge = [place(each, each.high) for each in points] + [place(each, each.low) for each in reversed(points)]
    return {"line": " ".join(place(each, each.share) for each in points), "band": " ".join(edge)}


_TEMPLATES: Final = templates("unstable_stream.ui.web")
_TEMPLATES.filters |= {"plain": plain, "spark": _spark, "spelled": spelled}

"""Judge an environment in a process of its own: what it prints, breaks or never ends harms nobody.

The child plays; for "another process plays the same game" it starts a second one with another hash seed. Both
note each attempt to reach the network, and refuse it.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from unstable_stream.errors import ConfigError, EnvironmentUnavailableError, UnstableStreamError
from unstable_stream.extensions import Reference, needs_this_process
from unstable_stream.games.court.judge import Progress, judge
from unstable_stream.games.court.playing import MOST_MOVES, Play, TrialGame, limited
from unstable_stream.games.court.repeats import portable
from unstable_stream.games.court.trial import Elsewhere, Reader
from unstable_stream.games.court.verdict import Finding, GameExample, Verdict
from unstable_stream.games.environments import environment_status, probe
from unstable_stream.games.templates import get_template

_MODULE: Final = "unstable_stream.services.launch.environment_trial"
_PATIENCE: Final = 8.0
"""A check may take so many times as long as is planned for all: each plays at least a little."""
_START_S: Final = 60.0
"""Time for a process to import what an environment needs."""


class Task(msgspec.Struct, frozen=True):
    """The work of a child process: judge, or play ``games`` again."""

    env_id: str
    num_players: int = 0
    """Seats; 0: two, or the fewest that it takes."""
    seed: int = 0
    games: int = 40
    seconds: float = 60.0
    model: str = ""
    """The model whose tokens are counted; empty: they are estimated."""
    template: str = ""
    """The template that words prompts of the texts; empty: the texts themselves are counted."""
    examples: tuple[GameExample, ...] | None = None


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a child's standard output."""

    progress: tuple[str, int, int] | None = None
    verdict: Verdict | None = None
    plays: tuple[Play, ...] | None = None
    refused: str = ""
    unavailable: str = ""


def try_environment(task: Task, progress: Progress = lambda what, done, of: None) -> Verdict:
    """Return the verdict about an environment; an object of this process is judged here.

    Raises:
        EnvironmentUnavailableError: it cannot run here.
        ConfigError: it cannot be loaded.
        UnstableStreamError: the process that played it ended without a verdict.
    """
    if needs_this_process(Reference.parse(task.env_id, "env_id").target):
        return _judged(task, progress)
    said = _run(task, progress)
    assert said.verdict is not None
    return said.verdict


def _judged(task: Task, progress: Progress, elsewhere: Callable[[Task], Elsewhere] | None = None) -> Verdict:
    reached: list[str] = []
    reader = _reader(task.model, task.template) if task.model else None
    with _offline(reached):
        seats = seats_of(task.env_id, task.num_players)
        task = msgspec.structs.replace(task, num_players=seats)
        verdict = judge(
            task.env_id,
            seats,
            seed=task.seed,
            games=task.games,
            seconds=task.seconds,
            elsewhere=elsewhere(task) if elsewhere else None,
            reader=reader,
            progress=progress,
        )
    says = f"it tries to reach {', '.join(dict.fromkeys(reached)) or 'nothing on the network'}"
    network = Finding("network", "warned" if reached else "passed", says)
    return msgspec.structs.replace(verdict, findings=(*verdict.findings, network))


def _reader(model: str, template: str) -> Reader:
    """Return how a model reads texts; its weights are not needed."""
    from unstable_stream.inference.base_model import resolve_model
    from unstable_stream.inference.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(model, weights=False))
    worded = get_template(template or "observation")
    encode = tokenizer.encode_chat if worded.chat else tokenizer.encode
    return Reader(
        f"{model}, template {template}" if template else model,
        tokenizer.context_tokens,
        prompt=lambda text: worded.format(tokenizer.without_control_tokens(text)),
        tokens=lambda prompt: len(encode(prompt)),
        spells_control=lambda text: tokenizer.without_control_tokens(text) != text,
    )


def seats_of(env_id: str, num_players: int = 0) -> int:
    """Return the number of seats that an environment is checked with; raises if it cannot run here.

    One that begins and then fails is judged all the same.
    """
    with limited():
        seats, found = (
            (num_players, environment_status(env_id, num_players)) if num_players else probe(env_id)
        )
    if found is not None and found.kind != "error":
        remedy = f". Remedy: {found.remedy}" if found.remedy else ""
        raise EnvironmentUnavailableError(f"{env_id} cannot run here: {found.reason}{remedy}")
    return seats or 2


def _run(task: Task, progress: Progress) -> _Said:
    """Run a child to its last word, and return that."""
    hash_seed = {"PYTHONHASHSEED": "1"} if task.examples is not None else {}
    patience_s = task.seconds * _PATIENCE + _START_S
    last = _Said()
    heard = time.monotonic()
    with tempfile.TemporaryFile() as complaints, tempfile.TemporaryFile() as told:
        told.write(msgspec.json.encode(task))
        told.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdout=subprocess.PIPE,
            stderr=complaints,
            stdin=told,
            env={**os.environ, **hash_seed},
        ) as child:
            assert child.stdout is not None
            timer = threading.Timer(patience_s, child.kill)
            timer.start()
            try:
                for line in child.stdout:
                    timer.cancel()
                    timer, heard = threading.Timer(patience_s, child.kill), time.monotonic()
                    timer.start()
                    last = msgspec.json.decode(line, type=_Said)
                    if last.progress is not None:
                        progress(*last.progress)
            finally:
                timer.cancel()
                child.kill()  # it has said its last word, or nobody listens any more
        complaints.seek(0)
        complained = complaints.read().decode(errors="replace").strip().splitlines()
    if last.unavailable:
        raise EnvironmentUnavailableError(last.unavailable)
    if last.refused:
        raise ConfigError(last.refused)
    if last.verdict is None and last.plays is None:
        doing = f" at {last.progress[0]!r}" if last.progress else ""
        late = time.monotonic() - heard >= patience_s
        why = f"it took more than {patience_s:.0f} s" if late else (complained or ["it said nothing"])[-1]
        raise UnstableStreamError(
            f"{task.env_id}: the process that plays it ended{doing} without a verdict: {why}"
        )
    return last


def _elsewhere(task: Task) -> Elsewhere:
    def play(examples: Sequence[GameExample]) -> list[Play]:
        again = msgspec.structs.replace(task, examples=tuple(examples))
        return list(_run(again, lambda what, done, of: None).plays or ())

    return play


def _played(task: Task) -> tuple[Play, ...]:
    games = [
        TrialGame(
            task.env_id,
            task.num_players,
            each.seed,
            moves=each.moves,
            allowance=each.invalid_moves_allowed,
            most=max(MOST_MOVES, len(each.moves) + 1),
        )
        for each in task.examples or ()
    ]
    return tuple(portable(game.play()) for game in games)


@contextmanager
def _offline(reached: list[str]) -> Iterator[None]:
    """Refuse every connection but to this machine's own files, and note where it was to go."""
    original, resolve = socket.socket.connect, socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> Any:
        if self.family == socket.AF_UNIX:
            return original(self, address)
        reached.append(f"{address[0]}:{address[1]}")
        raise ConnectionRefusedError(f"no network while an environment is judged: {address}")

    def getaddrinfo(host: Any, *rest: Any, **named: Any) -> Any:
        reached.append(str(host))
        raise socket.gaierror(f"no network while an environment is judged: {host}")

    socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect, socket.getaddrinfo = original, resolve  # type: ignore[method-assign]


def main() -> None:
    """Do what the task on standard input says, and say so in lines of JSON on standard output."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # environments print

    def say(said: _Said) -> None:
        out.write(msgspec.json.encode(said) + b"\n")
        out.flush()

    try:
        if task.examples is not None:
            say(_Said(plays=_played(task)))
        else:
            told = lambda what, done, of: say(_Said(progress=(what, done, of)))  # noqa: E731
            say(_Said(verdict=_judged(task, told, elsewhere=_elsewhere)))
    except EnvironmentUnavailableError as error:
        say(_Said(unavailable=str(error)))
    except ConfigError as error:
        say(_Said(refused=str(error)))


if __name__ == "__main__":
    main()

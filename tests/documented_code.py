"""Find code in pages: fenced blocks, and the ``unstable-stream`` commands that shell blocks show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "unstable-stream"
_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
# Words of the shell that end a command.
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """1-based line of its first line of code."""
    language: str
    code: str
    not_run: str | None
    """The reason why it is not run, as the comment before it says; ``None``: it is run."""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the page's blocks in these languages, in order."""
    lines = page.read_text(encoding="utf-8").split("\n")
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened = number, fence[1], fence[2]
        elif opened is not None and line.strip() == "```":
            begin, indent, language = opened
            opened = None
            if language in languages:
                code = "\n".join(text.removeprefix(indent) for text in lines[begin + 1 : number])
                before = [text for text in lines[:begin] if text.strip()]
                reason = _NOT_RUN.search(before[-1]) if before else None
                yield Block(page, begin + 2, language, code, reason and reason[1])


def script_of(page: Path) -> str:
    """Return the page's Python blocks as one script that keeps the page's line numbers; empty: none."""
    script: list[str] = []
    for block in blocks_of(page, "python"):
        if block.not_run is None:
            script += [""] * (block.line - 1 - len(script)) + block.code.split("\n")
    return "\n".join(script)


def commands_in(code: str, language: str = "bash") -> list[list[str]]:
    """Return the arguments of every ``unstable-stream`` command that a shell block shows.

    A block ``console`` shows output too: only lines after ``$`` are commands.

    Raises:
        ValueError: a quotation is not closed.
    """
    if language == "console":
        code = "\n".join(_typed_lines(code.split("\n")))
    lexer = shlex.shlex(_COMMENT.sub("", code), posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[list[str]] = []
    current: list[str] | None = None
    for word in lexer:
        if word == PROGRAM:
            current = []
            found.append(current)
        elif word in _ENDS or not word.strip("|&;<>\n"):
            current = None
        elif current is not None:
            current.append(word)
    return found


def _typed_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines a person typed: those after ``$``, and those that follow while a quotation is open."""
    quoted = False
    for line in lines:
        if quoted or line.startswith("$ "):
            yield line if quoted else line[2:]
            quoted ^= line.count('"') % 2 == 1

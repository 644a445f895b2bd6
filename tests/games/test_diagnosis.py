"""Exceptions of environments become a reason and a remedy."""

import pytest

from unstable_stream.games.diagnosis import diagnose

NLTK = """
**********************************************************************
  Resource 'words' not found.
  Please use the NLTK Downloader to obtain the resource:

  >>> import nltk
  >>> nltk.download('words')
"""


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (LookupError(NLTK), "nltk-data", "run: python -m nltk.downloader words"),
        (SyntaxError("invalid syntax"), "python-3.12", "run on Python 3.12, or choose another environment"),
        (
            ValueError("OpenRouter API key not found. Please set OPENROUTER_API_KEY"),
            "openrouter-key",
            "OPENROUTER_API_KEY",
        ),
        (FileNotFoundError(2, "No such file", "blue_book.txt"), "missing-files", "source repository"),
        (ModuleNotFoundError("No module named 'chess'"), "missing-package", "run: pip install chess"),
        (
            ImportError("Could not import x. Error: No module named 'textarena.envs.X'"),
            "missing-files",
            "source repository",
        ),
        (
            AssertionError("The number of players has to be 2, received 1"),
            "player-count",
            "change the number of players",
        ),
        (
            ValueError("Missing required observation types: PROMPT or GAME_BOARD"),
            "broken-wrapper",
            "use 'Some-v0'",
        ),
        (KeyError("x"), "error", "choose another environment"),
    ],
)
def test_kind_and_remedy(error: Exception, kind: str, remedy: str) -> None:
    found = diagnose("Some-v0-train", error)
    assert found.kind == kind
    assert remedy in found.remedy
    assert found.reason


def test_an_unforeseen_error_is_quoted() -> None:
    assert diagnose("Some-v0-train", KeyError("deck")).reason == "KeyError: 'deck'"

"""Exceptions of environments become a reason and a remedy."""

import pytest

from unstable_stream.games.environments import diagnose

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
            ValueError("OpenRouter API key not found. Set OPENROUTER_API_KEY"),
            "openrouter-key",
            "set OPENROUTER",
        ),
        (FileNotFoundError(2, "No such file", "blue_book.txt"), "missing-files", "source repository"),
        (ModuleNotFoundError("No module named 'chess'"), "missing-package", "run: pip install chess"),
        (ImportError("No module named 'textarena.envs.X'"), "missing-files", "source repository"),
        (AssertionError("The number of players has to be 2"), "player-count", "change the number of players"),
        (ValueError("Missing required observation types: PROMPT"), "broken-wrapper", "use 'Some-v0'"),
        (KeyError("x"), "error", "choose another environment"),
    ],
)
def test_kind_and_remedy(error: Exception, kind: str, remedy: str) -> None:
    found = diagnose("Some-v0-train", error)
    assert found.kind == kind
    assert remedy in found.remedy
    assert found.reason
    assert kind != "error" or found.reason == "KeyError: 'x'", "an unforeseen one is quoted"

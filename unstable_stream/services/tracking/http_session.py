"""The HTTP sessions of trackers that send: a redirect is an error.

A client that follows one may send an empty GET instead, or take it for a success: what was sent is lost.
"""

from typing import Any

from requests import Response, Session

from unstable_stream.console import without_logins
from unstable_stream.errors import RunError


def session() -> Session:
    """Return a session that raises :class:`RunError` where it is told to ask elsewhere."""
    made = Session()
    made.hooks["response"].append(_refuse_redirect)
    return made


def _refuse_redirect(answer: Response, *_: Any, **__: Any) -> None:
    if 300 <= answer.status_code < 400:
        asked, other = (without_logins(str(url)) for url in (answer.url, answer.headers.get("location")))
        raise RunError(f"{asked} redirects to {other}: name the address that takes what is sent")

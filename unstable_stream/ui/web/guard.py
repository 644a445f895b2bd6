"""Let in whoever has the link, from this machine's own pages only, and forbid pages to load anything else.

A browser sends requests to a loopback port for any page that asks it to, and a page of a foreign name may be
made to lead here (DNS rebinding). So besides the token, the ``Host`` must be one of ours, a request of
another origin is refused, and only our own pages may change something.
"""

import hmac
from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "unstable_stream_ui"
"""Begins the cookie's name; the port follows, since a browser gives a host's cookies to all its ports."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Addresses stay here. After "no-referrer" a browser would send our own forms with Origin: null.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_NEEDS_LINK: Final = (
    "403: open the link that unstable-stream ui printed; this browser has not shown its token\n"
)


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str]) -> None:
        """Guard ``app``.

        Args:
            app: sees only requests that are let in.
            token: what the link has.
            hosts: the values of ``Host`` that are ours, e.g. ``127.0.0.1:8787``.
        """
        self._app = app
        self._token = token
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there is no web socket here

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_safely)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that does not reach the application."""
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            return PlainTextResponse(refusal, 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and scope["method"] == "GET":
            return self._first_visit(scope, headers, query, given[-1])
        if not self._has_cookie(headers):
            return PlainTextResponse(_NEEDS_LINK, 403)
        return None

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            return f"403: this page is not called {host!r} here; open it as {sorted(self._hosts)[0]!r}\n"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "403: a page of another origin asked\n"
        site = headers.get("sec-fetch-site", "")
        foreign = site not in ("", "none", "same-origin")
        if foreign and (scope["method"] != "GET" or headers.get("sec-fetch-mode") != "navigate"):
            return "403: a page of another site asked\n"
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return "403: only GET, HEAD and POST\n"
        if origin is None and site != "same-origin":
            return "403: a change must come from one of these pages\n"
        return None

    def _first_visit(
        self, scope: Scope, headers: Headers, query: list[tuple[str, str]], token: str
    ) -> Response:
        """Give the cookie to who has the token, and take the token out of the address."""
        if not _equal(token, self._token):
            return PlainTextResponse(_NEEDS_LINK, 403)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # Two slashes in front would make a path the name of a host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self._cookie_name(headers), self._token, httponly=True, samesite="lax", path="/")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        # Not by http.cookies: it takes nothing of a header in which another program's cookie is odd.
        found = cookie_parser(headers.get("cookie", "")).get(self._cookie_name(headers))
        return found is not None and _equal(found, self._token)

    def _cookie_name(self, headers: Headers) -> str:
        return f"{COOKIE}_{headers.get('host', '').rpartition(':')[2]}"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())

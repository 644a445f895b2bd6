"""A real Chromium without a window, steered over its DevTools protocol, to use pages as a person does."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import ClientConnection, connect

BROWSER: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NEEDS_BROWSER: Final = pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install -y chromium")
_DEADLINE_S: Final = 60.0
_BETWEEN_LOOKS_S: Final = 0.03
"""Who looks without a pause keeps browser and server from what is waited for."""


class Tab:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """What the console was told, and what was refused."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol. ``Any``: JSON."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=_DEADLINE_S))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        kind, facts = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(facts["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(facts["args"]))
        elif kind == "Log.entryAdded":
            self.complaints.append(facts["entry"]["text"] + " " + facts["entry"].get("url", ""))

    def go(self, address: str) -> None:
        """Open a page and wait until it is there."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return the value of JavaScript. ``Any``: JSON."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str, *, within_s: float = _DEADLINE_S) -> None:
        """Wait until JavaScript is true."""
        deadline = time.monotonic() + within_s
        while True:
            # A page that is on its way has no value to give yet.
            with contextlib.suppress(RuntimeError):
                if self.ask(expression):
                    return
            time.sleep(_BETWEEN_LOOKS_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}; complaints: {self.complaints}")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def resize(self, width: int, height: int) -> None:
        """Give the page so much room, CSS pixels."""
        screen = {"deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **screen)

    def prefer(self, scheme: str) -> None:
        """Prefer the ``light`` or the ``dark`` theme."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """Save what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def opened_tab(profile: Path) -> Iterator[Tab]:
    """Start a browser, whose files are in ``profile``, and end it."""
    assert BROWSER is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")
    command = [BROWSER, *flags, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = json.load(answer)
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with connect(address, max_size=None) as connection:
            yield Tab(connection)
    finally:
        process.terminate()
        process.wait(30)


def _port(file: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            return int(file.read_text().splitlines()[0])
        time.sleep(_BETWEEN_LOOKS_S)
    raise TimeoutError("the browser did not start")


def mouse(figure: str, *events: tuple[str, float]) -> str:
    """Return what does this over a plot, each at a share of its width."""
    return (
        f"(() => {{ const over = {figure}.querySelector('.u-over'), box = over.getBoundingClientRect();"
        f"for (const [kind, share] of {json.dumps(events)})"
        "{ over.dispatchEvent(new MouseEvent(kind, { bubbles: true, button: 0, view: window,"
        "  clientX: box.left + share * box.width, clientY: box.top + box.height / 2,"
        "  movementX: 1, movementY: 1 })); } })()"
    )

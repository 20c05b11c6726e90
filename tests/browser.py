"""Headless Chromium, driven over its DevTools protocol: what a page asks for, says and measures."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
START_SECONDS = LOAD_SECONDS = 60.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0",
          "--disable-background-networking", "--disable-component-update")  # fmt: skip


class Page:
    """One page of a browser.

    Attributes:
        requests: addresses that it asked for.
        problems: what its console, its log and uncaught exceptions said.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._count = connection, 0
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded = False
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def open(self, path: Path, width: int, height: int = 800) -> None:
        """Show a file in a window of that size, and wait until it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self._loaded = False
        self.ask("Page.navigate", {"url": path.resolve().as_uri()})
        deadline = time.monotonic() + LOAD_SECONDS
        while not self._loaded:
            assert time.monotonic() < deadline, "the page did not load"
            self._receive()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        answer = self.ask("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._ask(method, parameters or {}, self._session)

    def _ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._connection.recv(timeout=LOAD_SECONDS))
        details = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
            case "Log.entryAdded":
                self.problems.append(details["entry"]["text"])
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.problems.append(str(details["args"]))
            case "Runtime.exceptionThrown":
                self.problems.append(str(details["exceptionDetails"]))
            case "Page.loadEventFired":
                self._loaded = True
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, whose profile is kept in ``profile``; ended on leaving."""
    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = profile / "DevToolsActivePort"
        deadline = time.monotonic() + START_SECONDS
        while not (port.is_file() and len(port.read_text().splitlines()) == 2):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.05)
        number, path = port.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

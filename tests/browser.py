"""A headless Chromium, driven over its debugging pipe: real keys, real screens, and every error the page makes.

No driver and no websocket are needed: with `--remote-debugging-pipe` the browser reads commands of the DevTools
protocol from file descriptor 3 and writes answers to 4, each ended by a zero byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
NAMED_KEYS = {"Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38, "Enter": 13}


class Browser:
    """One tab, with a profile in a folder. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        self.errors: list[str] = []  # warnings and errors on the page's console, and uncaught exceptions
        self._number = 0
        ours = [os.pipe(), os.pipe()]
        # Out of the way of 3 and 4, which the child overwrites.
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ours[0][0], ours[1][1]))

        def place() -> None:
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [CHROMIUM, *SWITCHES.split(), f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe"]
        with (folder / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                command, preexec_fn=place, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        for fd in (ours[0][0], ours[1][1], read, write):
            os.close(fd)
        self._to, self._from = os.fdopen(ours[0][1], "wb"), os.fdopen(ours[1][0], "rb")
        self._buffer = b""
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        self.send("Browser.close")
        self._process.wait(30)
        self._to.close()
        self._from.close()

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._from.fileno(), 1 << 16)
            assert part, "the browser is gone"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        params, method = message.get("params", {}), message.get("method")
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(params))
        return message

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 800, dark: bool = False, touch: bool = False
    ) -> None:
        """Load a page, a file or an address, on a screen of this size, in pixels."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.send("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self.js("document.readyState") != "complete" or self.js("location.href") == "about:blank":
            pass

    def js(self, expression: str) -> Any:
        """Evaluate an expression in the page, after what is under way has been done."""
        wrapped = f"new Promise((done) => setTimeout(() => done({expression}), 20))"
        result = self.send("Runtime.evaluate", expression=wrapped, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """Return the visible text of each element."""
        found: list[str] = self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")
        return found

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            typed = {} if key in NAMED_KEYS else {"text": key}
            code = {"windowsVirtualKeyCode": NAMED_KEYS[key]} if key in NAMED_KEYS else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **typed, **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)
            self.js("0")

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        where = "(r => [r.x + r.width / 2, r.y + r.height / 2])(e.getClientRects()[0])"
        x, y = self.js(
            f"(e => (e.scrollIntoView({{block: 'nearest'}}), {where}))(document.querySelector({json.dumps(selector)}))"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.js("0")

"""One headless Chromium for all environments of a process, and a tab of it for each of them.

Playwright's event loop has a thread, and an environment waits in its own: while one page loads, others are played. A
browser that died fails the episodes that use it, and the next episode starts another one. Pages have no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mimetypes
import os
import random
import shutil
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agent_gym.errors import ConfigError, EnvFailure, message_of, require

SIZE = (160, 210)  # width and height of the part of the window that MiniWoB's pages draw on, in CSS pixels
TURN_MS = 1000  # of the page's time, with each action
_WINDOW = {"width": 480, "height": 320}
_ORIGIN = "http://miniwob.invalid"  # a name that no server has (RFC 2606)
_PATIENCE_S, _AT_ONCE = 60.0, 4  # pages that work at a time: on few cores more only make each other late
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A proxy that does not exist, for loopback as well, closes what routing does not see, such as web sockets.
_SWITCHES = [
    *("--disable-gpu", "--no-sandbox"),  # its sandbox does not start as root, as in most containers
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
]
_SCRIPT = Path(__file__).with_name("page.js")


class ActionRefused(Exception):
    """An action that the page does not allow: the policy's mistake, in words for it."""


def program_of(browser: str | Path | None) -> str:
    """Return the path of the browser's program.

    Raises:
        ConfigError: without playwright, or without a browser.
    """
    require("playwright.async_api", "miniwob")
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "~/.cache/ms-playwright")).expanduser()
    fetched = sorted(map(str, cache.glob("chromium-*/chrome-linux*/chrome")))
    tried = [*_PROGRAMS, *fetched[-1:]] if browser is None else [str(Path(browser).expanduser())]
    found = next(filter(None, map(shutil.which, tried)), None)
    if found is None:
        cure = "run: playwright install --with-deps chromium, or apt-get install chromium, or give browser=PATH"
        raise ConfigError(f"there is no Chromium here (looked for {', '.join(tried)}); {cure}")
    return found


@functools.lru_cache(maxsize=512)
def _read(folder: Path, path: str) -> tuple[bytes, str] | None:
    """Return the content and type of a file below the folder; None where there is none."""
    file = (folder / path.lstrip("/")).resolve()
    if not (file.is_relative_to(folder.resolve()) and file.is_file()):
        return None
    return file.read_bytes(), f"{mimetypes.guess_type(file.name)[0]}; charset=utf-8"


class Chromium:
    """A running browser and the thread of its event loop. `shared` gives the one of this process."""

    def __init__(self, program: str) -> None:
        self.tabs = 0
        self.loop = asyncio.new_event_loop()
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._thread = threading.Thread(target=self.loop.run_forever, name="agent-gym-browser", daemon=True)
        self._thread.start()
        try:
            self.wait(self._launch(program))
        except BaseException:
            self.stop()
            raise

    async def _launch(self, program: str) -> None:
        from playwright.async_api import async_playwright

        before, starting = random.getstate(), asyncio.ensure_future(async_playwright().start())
        await asyncio.sleep(0)  # until it first waits: by then it has drawn from the global generator
        random.setstate(before)
        self._driver = await starting
        self.browser = await self._driver.chromium.launch(executable_path=program, args=_SWITCHES)

    @property
    def alive(self) -> bool:
        return hasattr(self, "browser") and self.browser.is_connected()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the browser's loop and return its result.

        Raises:
            EnvFailure: if the browser fails, or takes longer than a minute.
        """
        from playwright.async_api import Error

        async def in_turn() -> Any:
            async with self._free:
                return await asyncio.wait_for(work, _PATIENCE_S)

        future = asyncio.run_coroutine_threadsafe(in_turn(), self.loop)
        while self._thread.is_alive():
            try:
                return future.result(1.0)
            except TimeoutError:
                if future.done() and future.exception():
                    raise EnvFailure(f"the browser did not answer within {_PATIENCE_S:.0f} s") from None
            except (Error, CancelledError) as error:
                raise EnvFailure(f"the browser failed: {' '.join(message_of(error).split())[:200]}") from error
        raise EnvFailure("the browser failed: it ended")

    def stop(self) -> None:
        """End the browser and the thread. One that is dead or hangs is left alone: a new one does not depend on it."""

        async def end() -> None:
            with contextlib.suppress(Exception):
                if self.alive:
                    await self.browser.close()
                await self._driver.stop()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            self.loop.call_later(0.1, self.loop.stop)

        asyncio.run_coroutine_threadsafe(end(), self.loop)
        if threading.current_thread() is not self._thread:  # where a collected tab may be closed
            self._thread.join(10)


_lock = threading.RLock()  # a tab may be collected, and closed, wherever memory is asked for
_running: dict[str, Chromium] = {}


def shared(program: str) -> Chromium:
    """Return the browser of this process, which is started, or started again, where it does not run."""
    with _lock:
        if (found := _running.get(program)) is not None and not found.alive:
            found.stop()
        if found is None or not found.alive:
            found = _running[program] = Chromium(program)
        found.tabs += 1
        return found


def _leave(chromium: Chromium, context: Any) -> None:
    """Close a tab; the browser ends with its last tab."""
    if context is not None and chromium.alive:
        asyncio.run_coroutine_threadsafe(context.close(), chromium.loop)
    with _lock:
        chromium.tabs -= 1
        last = [name for name, one in _running.items() if one is chromium and not one.tabs]
        for name in last:
            _running.pop(name).stop()


os.register_at_fork(after_in_child=_running.clear)  # the thread of the loop stays in the parent


class Tab:
    """A page with cookies and storage of its own, which is loaded anew for each episode."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self.chromium = shared(program)
        self._waiting, self._loading = 0, True
        try:
            self._context, self._page = self.chromium.wait(self._make())
        except BaseException:
            _leave(self.chromium, None)
            raise
        self.close = weakref.finalize(self, _leave, self.chromium, self._context)

    def __reduce__(self) -> Any:
        raise TypeError("a page in a browser cannot be copied")

    async def _make(self) -> tuple[Any, Any]:
        context = await self.chromium.browser.new_context(
            viewport=_WINDOW, timezone_id="UTC", locale="en-US", service_workers="block", accept_downloads=False
        )
        # By a weak reference, so that a tab that nobody holds is closed.
        tab = weakref.ref(self)

        async def serve(route: Any) -> None:
            one = tab()
            await (one._serve(route) if one is not None else route.abort())

        context.set_default_timeout(0)  # `wait` has the limit
        await context.route("**/*", serve)
        await context.add_init_script(path=_SCRIPT)
        page = await context.new_page()
        context.on("page", lambda other: asyncio.ensure_future(other.close()))
        return context, page

    async def _serve(self, route: Any) -> None:
        address = urlsplit(route.request.url)
        ours = f"{address.scheme}://{address.netloc}" == _ORIGIN
        file = _read(self.folder, unquote(address.path)) if ours else None
        self._waiting += 1
        try:
            if route.request.is_navigation_request() and not self._loading:
                # A link or a form that leads away would end the page in the middle of its episode: it stays.
                await route.fulfill(status=204)
            else:
                await (route.abort() if file is None else route.fulfill(body=file[0], content_type=file[1]))
        finally:
            self._waiting -= 1

    def open(self, name: str, seed: str) -> dict[str, Any]:
        """Load a page of the folder and start its episode; returns how it looks (`look` of page.js)."""

        async def work() -> dict[str, Any]:
            self._loading = True
            await self._context.clear_cookies()
            await self._page.goto(f"{_ORIGIN}/miniwob/{name}.html")
            self._loading = False
            await self._page.mouse.move(_WINDOW["width"] - 1, _WINDOW["height"] - 1)
            await self._page.evaluate("seed => { agentGym.advance(500); agentGym.start(seed); }", seed)
            await self._page.evaluate("agentGym.settle()")
            while self._waiting:  # for images, by which elements have their size
                await asyncio.sleep(0.005)
                await self._page.evaluate("agentGym.settle()")
            return dict(await self._page.evaluate("agentGym.look()"))

        return dict(self.chromium.wait(work()))

    def act(self, deed: str, *arguments: Any) -> dict[str, Any]:
        """Do something, let a second of the page's time pass, and return how it looks.

        Raises:
            ActionRefused: if the page does not allow it.
        """

        async def work() -> dict[str, Any]:
            await self._do(deed, *arguments)
            await self._page.evaluate("agentGym.settle()")
            return dict(await self._page.evaluate(f"agentGym.advance({TURN_MS}), agentGym.look()"))

        return dict(self.chromium.wait(work()))

    async def _do(self, deed: str, first: Any, *rest: Any) -> None:
        mouse, keyboard = self._page.mouse, self._page.keyboard
        if deed == "press":
            return await keyboard.press(first)
        if deed == "click_at":
            return await mouse.click(first, *rest)
        aim = await self._page.evaluate("given => agentGym.aim(...given)", [first, deed, *rest[:1]])
        if "error" in aim:
            raise ActionRefused(aim["error"])
        if deed == "drag":
            await mouse.move(aim["x"], aim["y"])
            await mouse.down()
            await mouse.move(*rest, steps=8)
            await mouse.up()
        elif deed in ("click", "type") and "done" not in aim:
            await mouse.click(aim["x"], aim["y"])
            if deed == "type":
                await self._page.evaluate("number => agentGym.mark(number)", first)
                await (keyboard.type(rest[0]) if rest[0] else keyboard.press("Delete"))

    def picture(self) -> bytes:
        """Return a PNG file of the page, of `SIZE`."""
        clip = {"x": 0, "y": 0, "width": SIZE[0], "height": SIZE[1]}
        return bytes(self.chromium.wait(self._page.screenshot(clip=clip)))

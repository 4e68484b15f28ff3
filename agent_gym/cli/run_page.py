"""The page of a run, written as a folder or served while the run goes on: `agent-gym view RUN`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gym.cli.runs import status_of
from agent_gym.errors import writing
from agent_gym.rollout import read_trajectories
from agent_gym.trainers.run_file import FILE, LOG, history, read
from agent_gym.viewer import render_html
from agent_gym.viewer.run import render_run, trajectory_files

if TYPE_CHECKING:
    from agent_gym.serve.server import Server

_TRAINING = 20  # the last rollouts of training that the written page leads to; the served one has all


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, and not one of trajectory files."""
    return any((folder / name).exists() for name in (FILE, LOG, "trajectories"))


class RunPage:
    """The pages of one run, read anew each time."""

    def __init__(self, folder: Path, title: str | None = None, most: int | None = None) -> None:
        self.folder, self.title = folder, title or folder.resolve().name
        found = trajectory_files(folder)
        trained = [key for key in found if key[0] == "train"]
        left_out = set() if most is None else set(trained[:-most])
        self.files = {key: paths for key, paths in found.items() if key not in left_out}

    def overview(self, address: Callable[[str], str]) -> str:
        """Return the page that leads to the others."""
        about, card = read(self.folder / FILE), read(self.folder / "card.json")
        if about:
            about["status"] = status_of(about)
        training = card.get("training", {})
        return render_run(self.title, about, training, history(self.folder), self.files, address)

    def episodes(self, name: str) -> str:
        """Return the page of one rollout, "eval_3" or "train_0", or of the "change" between two evaluations.

        Raises:
            KeyError: if there is none of this name.
        """
        if name == "change":
            steps = [step for mode, step in self.files if mode == "eval"]
            ends = {f"step {step}": self._records("eval", step) for step in (steps[0], steps[-1])}
            return render_html(ends, f"{self.title}: what has changed")
        mode, _, step = name.partition("_")
        return render_html(self._records(mode, int(step)), f"{self.title}: {mode}, step {step}")

    @property
    def names(self) -> list[str]:
        """What `episodes` has a page of."""
        names = [f"{mode}_{step}" for mode, step in self.files]
        return [*names, "change"] if sum(mode == "eval" for mode, _ in self.files) > 1 else names

    def _records(self, mode: str, step: int) -> list[Any]:
        return list(chain.from_iterable(map(read_trajectories, self.files[mode, step])))


def write_page(folder: Path, title: str | None, output: Path) -> Path:
    """Write the pages into a folder, and return the one to open."""
    page = RunPage(folder, title, _TRAINING)
    with writing(output, "name another folder with --output"):
        output.mkdir(parents=True, exist_ok=True)
        for name in page.names:
            (output / f"{name}.html").write_text(page.episodes(name), encoding="utf-8")
        index = output / "index.html"
        index.write_text(page.overview("{}.html".format), encoding="utf-8")
    return index


def page_server(folder: Path, title: str | None, port: int) -> Server:
    """Make the server of the pages, on this machine alone; `ConfigError` if the port is taken."""
    # Imported here: its packages are an extra, and the page that is written needs none of them.
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    from agent_gym.serve.server import Server, bind, in_thread, refusal

    def answer(name: str) -> Response:
        page = RunPage(folder, title)
        if not name:
            return HTMLResponse(page.overview("/{}".format))
        if name in page.names:
            return HTMLResponse(page.episodes(name))
        return refusal(404, f"no episodes of {json.dumps(name)}")

    async def endpoint(request: Request) -> Response:
        return await in_thread(lambda: answer(request.path_params.get("name", "")))

    return Server(bind(port=port), [Route("/", endpoint), Route("/{name}", endpoint)])


def serve_page(folder: Path, title: str | None, port: int) -> int:
    """Serve the pages on this machine alone, until Ctrl-C; over SSH: `ssh -L PORT:127.0.0.1:PORT HOST`."""
    with page_server(folder, title, port) as server:
        at = server.address[1]
        print(f"{server.url}\nfrom elsewhere: ssh -L {at}:127.0.0.1:{at} HOST; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0

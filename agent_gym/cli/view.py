"""Commands that show runs: `agent-gym view`, as pages or in the terminal, and `agent-gym figure`."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from agent_gym.cli.parser import CommandParser, check_output, left_out, positive
from agent_gym.cli.runs import status_of
from agent_gym.errors import ConfigError, require, write_whole, writing
from agent_gym.rollout import read_trajectories, scan_trajectories
from agent_gym.trainers.run_file import FILE, LOG, history, read, rl_part
from agent_gym.untrusted import read_json
from agent_gym.viewer import render_html
from agent_gym.viewer.curve import holds_something, render_run, trajectory_files

if TYPE_CHECKING:
    from agent_gym.serve.server import Server

_TRAINING = 20  # the last rollouts of training that the written page leads to; the served one has all


def read_files(files: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of trajectory files, with a bar on a terminal; lines that are left out are named on stderr."""

    def warn(text: str) -> None:
        tqdm.write(f"agent-gym: {text}", file=sys.stderr)

    records = chain.from_iterable(read_trajectories(file, left_out=warn) for file in files)
    return iter(tqdm(records, desc="reading", unit=" episodes", leave=False, disable=None, file=sys.stderr))


def check_new(output: str | Path) -> None:
    """Do as `check_output`, and refuse a file that holds episodes, which nothing brings back."""
    if Path(output).is_file() and any(isinstance(found, dict) for *_, found in scan_trajectories(output)):
        raise ConfigError(f"{output} holds episodes, which would be lost: name another file")
    check_output(output)


def named(files: Sequence[str]) -> list[tuple[str, str]]:
    """Name each file by its stem, or by its path where two have one stem."""
    stems = [_plain(file).name for file in files]
    return [(stem if stems.count(stem) == 1 else file, file) for stem, file in zip(stems, files, strict=True)]


def _plain(file: str) -> Path:
    """Return an input without the ending of a file; the name of a folder is whole, whatever dots are in it."""
    path = Path(file)
    path = path.resolve() if path.name in ("", "..") else path
    return path if path.is_dir() else path.with_suffix("")


def view(argv: Sequence[str]) -> int:
    """Turn trajectories, or a run, into HTML pages that open anywhere, without a server or a network."""
    parser = CommandParser("view", view.__doc__)
    help_text = (
        "a trajectory file (.jsonl) or a folder of them; two are two runs, compared task by task; or a run's folder"
    )
    parser.flag("files FILE", help_text, nargs="+")
    parser.flag("--output FILE", "the page; default: next to the first input, ending in .html; of a run: RUN/page")
    parser.flag("--title", "heading of the page; default: the name of the input")
    parser.flag("--open", "open the page in the browser", action="store_true")
    parser.flag("--web", "serve the page of a run that may still go on, on this machine alone", action="store_true")
    parser.flag("--port PORT", "with --web; default: a free one", type=int, default=0)
    parser.flag("--terminal", "browse the episodes here, by keys, and write no page", action="store_true")
    parser.flag("--episode N", "with --terminal: show the Nth episode and end", type=positive)
    arguments = parser.parse(argv)
    if arguments.episode and not arguments.terminal:
        raise ConfigError("--episode belongs to --terminal; on the page an episode is found by search")
    way = "web" if arguments.web else "terminal"
    for other in ("terminal", "output", "open") if getattr(arguments, way) else ():
        if other != way and getattr(arguments, other):
            raise ConfigError(f"--{way} writes no page, and does not go with --{other}: leave one of them out")
    run = Path(arguments.files[0])
    if len(arguments.files) == 1 and is_run(run) and not arguments.terminal:
        if arguments.web:
            return serve_page(run, arguments.title, arguments.port)
        return _done(write_page(run, arguments.title, Path(arguments.output or run / "page")), arguments.open)
    if arguments.web:
        raise ConfigError(f"--web serves the page of one run, and {arguments.files[0]} is none: name a run's folder")
    if arguments.terminal:
        _show(dict(_played_together(arguments.files)), arguments.episode)
        return 0
    runs = {name: _jsonl_files(Path(path)) for name, path in named(arguments.files)}
    first = _plain(arguments.files[0])
    output = Path(arguments.output or first.with_name(f"{first.name}.html"))
    check_new(output)
    page = render_html({name: read_files(files) for name, files in runs.items()}, arguments.title or " and ".join(runs))
    write_whole(output, page)
    return _done(output, arguments.open)


def _done(page: Path, opened: bool) -> int:
    print(page)
    if opened and not webbrowser.open(page.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open; the page is at {page}")
    return 0


def _jsonl_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / "trajectories").is_dir():
        path = path / "trajectories"
    # A run that was killed before its first episode ended leaves an empty file.
    files = sorted(filter(holds_something, path.glob("*.jsonl")))
    if not files:
        raise ConfigError(f"{path} holds no .jsonl file with episodes")
    return files


def _played_together(inputs: Sequence[str]) -> Iterator[tuple[str, list[Path]]]:
    """Yield each step of a run, or each file, with a name."""
    for name, path in named(inputs):
        within = f"{name}: " if len(inputs) > 1 else ""
        if steps := trajectory_files(Path(path)):
            yield from ((f"{within}{mode} {step}", files) for (mode, step), files in steps.items())
        else:
            found = _jsonl_files(Path(path))
            yield from ((name if file == Path(path) else within + file.stem, [file]) for file in found)


def _show(runs: Mapping[str, Sequence[Path]], number: int | None) -> None:
    require("rich", "terminal")
    from rich.console import Console

    from agent_gym.viewer.terminal import episode_table, episode_view

    console = Console(highlight=False)
    if number is None and console.is_terminal and sys.stdin.isatty():
        require("textual", "terminal")
        from agent_gym.viewer.browser import TrajectoryBrowser

        TrajectoryBrowser(runs).run()
        return
    records = list(read_files(chain.from_iterable(runs.values())))
    if number is None:
        console.print(episode_table(records))
    elif number > len(records):
        raise ConfigError(f"--episode is {number}, but there are {len(records)} episodes")
    else:
        console.print(episode_view(records[number - 1], number, len(records)))


def figure(argv: Sequence[str]) -> int:
    """Draw the runs of a speedrun as one picture: success over steps with its band, controls, tool calls, tokens."""
    parser = CommandParser("figure", figure.__doc__)
    parser.flag("folder FOLDER", "what `agent-gym speedrun --seeds 0,1,2 --output_dir FOLDER` has left")
    parser.flag("--output FILE.png", "the picture, and beside it the same as .svg; default: FOLDER/figure.png")
    arguments = parser.parse(argv)
    from agent_gym.speedrun.figure import draw_figure

    found, files = draw_figure(arguments.folder, arguments.output)
    seeds = ", ".join(map(str, found["seeds"]))
    print(f"seeds {seeds}" if len(found["seeds"]) > 1 else f"one seed, {seeds}: the picture has no band")
    print(*files, sep="\n")
    return 0


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, and not one of trajectory files."""
    return any((folder / name).exists() for name in (FILE, LOG, "trajectories"))


def last_evaluation(folder: Path) -> list[Path]:
    """Return the files of a run's last evaluation.

    Raises:
        ConfigError: if the run keeps none.
    """
    files = trajectory_files(rl_part(folder))
    if not (steps := [step for mode, step in files if mode == "eval"]):
        raise ConfigError(f"{folder} holds no episodes of an evaluation: train with eval_strategy and trajectories")
    return files["eval", steps[-1]]


_TRAINING_SHAPE = {"training?": {"spent?": dict, "settings?": dict, "versions?": dict}}


def training_of(folder: Path) -> dict[str, Any]:
    """Return the training part of a run's card; a card of another shape is named on stderr."""
    path = folder / "card.json"
    try:
        card = read_json(path, _TRAINING_SHAPE) if path.exists() else {}
    except ValueError as error:
        left_out(f"{path}: {error}")
        return {}
    return dict(card.get("training", {}))


def title_of(folder: Path) -> str:
    """Return the heading of a run's page: its environment, its model and its folder, as far as they are known."""
    about = read(folder / FILE)
    known = [about.get("env", ""), Path(about.get("model", "")).name]
    return ", ".join([*filter(None, known), folder.resolve().name])


class RunPage:
    """The pages of one run, read anew each time."""

    def __init__(self, folder: Path, title: str | None = None, most: int | None = None) -> None:
        self.folder, self.title = folder, title or title_of(folder)
        self.files = trajectory_files(rl_part(folder))
        trained = [key for key in self.files if key[0] == "train"]
        for key in trained[:-most] if most else ():
            del self.files[key]

    def overview(self, address: Callable[[str], str]) -> str:
        """Return the page that leads to the others."""
        about = read(self.folder / FILE, left_out=left_out)
        if about:
            about["status"] = status_of(about)
        training = training_of(rl_part(self.folder))
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
        """The files that `episodes` shows."""
        names = [f"{mode}_{step}" for mode, step in self.files]
        return [*names, "change"] if sum(mode == "eval" for mode, _ in self.files) > 1 else names

    def _records(self, mode: str, step: int) -> list[Any]:
        return list(chain.from_iterable(map(read_trajectories, self.files[mode, step])))


def write_page(folder: Path, title: str | None, output: Path) -> Path:
    """Write the pages into a folder, and return the one to open."""
    page = RunPage(folder, title, _TRAINING)
    with writing(output, "name another folder with --output"):
        output.mkdir(parents=True, exist_ok=True)
    for mode, step in list(page.files):
        try:
            text = page.episodes(name := f"{mode}_{step}")
        except ConfigError as error:
            left_out(str(error))
            del page.files[mode, step]
        else:
            write_whole(output / f"{name}.html", text)
    if "change" in page.names:
        write_whole(output / "change.html", page.episodes("change"))
    index = output / "index.html"
    write_whole(index, page.overview("{}.html".format))
    return index


def page_server(folder: Path, title: str | None, port: int) -> Server:
    """Make the server of the pages, on this machine alone; `ConfigError` if the port is taken."""
    # Imported here: its packages are an extra, and the page that is written needs none of them.
    from agent_gym.serve.server import Request, Response, Route, Server, bind, in_thread, refusal

    def answer(name: str) -> Response:
        page = RunPage(folder, title)
        if not name:
            return Response(page.overview("/{}".format), media_type="text/html")
        if name in page.names:
            try:
                return Response(page.episodes(name), media_type="text/html")
            except ConfigError as error:
                return refusal(500, str(error))
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

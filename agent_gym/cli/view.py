"""`agent-gym view FILE...`: trajectories as one HTML page, or in the terminal."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import Parser, check_output, positive
from agent_gym.cli.reading import reading
from agent_gym.errors import ConfigError, require, writing
from agent_gym.viewer import render_html


def main(argv: Sequence[str]) -> int:
    """Write the page and say where it is, or show the episodes."""
    summary = "Turn trajectories into one HTML page that opens anywhere, without a server or a network."
    parser = Parser("view", summary, config=False)
    help_text = "a trajectory file (.jsonl) or a folder of them; two are two runs, compared task by task"
    parser.add_argument("files", metavar="FILE", nargs="+", help=help_text)
    parser.add_argument("--output", metavar="FILE", help="the page; default: beside the first input, ending in .html")
    parser.add_argument("--title", help="heading of the page; default: the name of the input")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--terminal", action="store_true", help="show the episodes here and write no page")
    parser.add_argument("--episode", type=positive, metavar="N", help="with --terminal: show the Nth episode and end")
    arguments = parser.parse(argv)
    runs = {name: _jsonl_files(path) for name, path in _named(arguments.files).items()}
    if arguments.terminal:
        _show([path for files in runs.values() for path in files], arguments.episode)
        return 0
    if arguments.episode:
        raise ConfigError("--episode belongs to --terminal; on the page an episode is found by search")
    first = Path(arguments.files[0])
    output = Path(arguments.output) if arguments.output else first.with_suffix(".html")
    check_output(str(output))
    records = {name: reading(files) for name, files in runs.items()}
    page = render_html(records, arguments.title or " and ".join(runs))
    with writing(output, "name another file with --output"):
        output.write_text(page, encoding="utf-8")
    print(output)
    if arguments.open and not webbrowser.open(output.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open; the page is at {output}")
    return 0


def _named(files: Sequence[str]) -> dict[str, Path]:
    """Name each run after its file, or by its path where two files have one name."""
    stems = [Path(name).stem for name in files]
    return {stem if stems.count(stem) == 1 else name: Path(name) for stem, name in zip(stems, files, strict=True)}


def _jsonl_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # One without content is what a run leaves that was killed before its first episode ended.
    files = sorted(file for file in path.glob("*.jsonl") if file.stat().st_size)
    if not files:
        raise ConfigError(f"{path} holds no .jsonl file with episodes")
    return files


def _show(files: Sequence[Path], number: int | None) -> None:
    require("rich", "terminal")
    from rich.console import Console

    from agent_gym.viewer.terminal import browse, episode_table, episode_view

    records = list(reading(files))
    if number is not None and number > len(records):
        raise ConfigError(f"--episode is {number}, but there are {len(records)} episodes")
    console = Console(highlight=False)
    if number is not None:
        console.print(episode_view(records[number - 1], number, len(records)))
    elif console.is_terminal and sys.stdin.isatty():
        browse(records, console)
    else:
        console.print(episode_table(records))

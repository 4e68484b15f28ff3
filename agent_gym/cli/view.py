"""`agent-gym view FILE...`: trajectories as one HTML page."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from agent_gym.cli.parser import Parser, check_output
from agent_gym.errors import ConfigError
from agent_gym.rollout import read_trajectories
from agent_gym.viewer import write_html


def main(argv: Sequence[str]) -> int:
    """Write the page and say where it is."""
    summary = "Turn trajectories into one HTML page that opens anywhere, without a server or a network."
    parser = Parser("view", summary, config=False)
    parser.add_argument("files", metavar="FILE", nargs="+", help="trajectory files (.jsonl), or folders of them")
    parser.add_argument("--output", metavar="FILE", help="the page; default: beside the first input, ending in .html")
    parser.add_argument("--title", help="heading of the page; default: the name of the first input")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    arguments = parser.parse(argv)
    first = Path(arguments.files[0])
    paths = [path for name in arguments.files for path in _jsonl_files(Path(name))]
    output = Path(arguments.output) if arguments.output else first.with_suffix(".html")
    check_output(str(output))
    records = chain.from_iterable(map(read_trajectories, paths))
    write_html(output, records, arguments.title or first.stem)
    print(output)
    if arguments.open and not webbrowser.open(output.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open; the page is at {output}")
    return 0


def _jsonl_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{path} holds no .jsonl file")
    return files

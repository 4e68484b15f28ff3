"""`agent-gym prepare RECIPE`: a data set from the hub or from local files, ready for its environment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import Parser
from agent_gym.prepare import (
    ENCODER,
    INDEXES,
    RECIPES,
    Forecast,
    Options,
    Prepared,
    forecast,
    prepare,
    python_lines,
    shell_lines,
    source_names,
)


def main(argv: Sequence[str]) -> int:
    """Prepare, or say what that would fetch and write."""
    recipes = "\n".join(f"  {name:<19}{recipe.summary}" for name, recipe in RECIPES.items())
    parser = Parser("prepare", f"Make a data set ready for its environment.\n\nrecipes:\n{recipes}", config=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("recipe", choices=list(RECIPES), metavar="RECIPE", help="what to prepare")
    help_text = "files, folders or https addresses of files to take instead of the hub, in the form of the source"
    parser.add_argument("--from", dest="source", nargs="+", default=(), metavar="PATH", help=help_text)
    help_text = "folder to write to; else RECIPE in $AGENT_GYM_CACHE, $XDG_CACHE_HOME/agent-gym or ~/.cache/agent-gym"
    parser.add_argument("--output", metavar="DIR", help=help_text)
    help_text = f"index of the corpus: {', '.join(INDEXES)}; bm25 where nothing is said"
    parser.add_argument("--index", choices=INDEXES, metavar="INDEX", help=help_text)
    help_text = f"model of an index that is not bm25, on the hub or in a folder; {ENCODER} where nothing is said"
    parser.add_argument("--encoder", default=ENCODER, metavar="MODEL", help=help_text)
    parser.add_argument("--device", default="cpu", help="where the encoder runs: cpu, cuda, cuda:1")
    parser.add_argument("--dry_run", action="store_true", help="only say what would be fetched and written, in bytes")
    arguments = parser.parse(argv)
    options = Options(arguments.index, arguments.encoder, arguments.device)
    where = {"source": arguments.source, "output": arguments.output, "options": options}
    if arguments.dry_run:
        _print_forecast(arguments.recipe, *forecast(arguments.recipe, **where))
    else:
        _print_result(prepare(arguments.recipe, **where, progress=True))
    return 0


def _print_forecast(recipe: str, folder: Path, lines: Sequence[Forecast]) -> None:
    if not lines:
        print(f"{recipe} is there already: {folder}")
        return
    rows = [(line.action, line.what, "?" if line.size is None else f"{line.size:,}", line.note) for line in lines]
    print(f"{recipe} -> {folder}")
    _print_table([("", "", "BYTES", ""), *rows])
    for action in ("fetch", "write"):
        total = sum(line.size or 0 for line in lines if line.action == action)
        print(f"to {action}: {total:,} bytes")


def _print_result(prepared: Prepared) -> None:
    rows = []
    for path, piece in prepared.pieces.items():
        size = sum(file["bytes"] for file in piece["files"].values())
        count = "" if piece["rows"] is None else f"{piece['rows']:,}"
        state = "written" if path in prepared.made else "already there, checksums agree"
        rows.append((path, count, f"{size:,}", state))
    print(f"{prepared.recipe.name} from {source_names(prepared.source)} in {prepared.folder}")
    _print_table([("", "ROWS", "BYTES", ""), *rows])
    print(f"\n{python_lines(prepared)}\n\n{shell_lines(prepared)}")


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns; those with a head are numbers and go to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if head else cell.ljust(width)
            for cell, width, head in zip(row, widths, rows[0], strict=True)
        ]
        print("  ".join(cells).rstrip())

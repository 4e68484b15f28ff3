"""The pages show what the code does: their examples run, their outputs are the real ones, their links lead somewhere.

A python block marked `python run` is executed, the blocks of one page in order and in one namespace; a `text` block
right after it is what it prints. A `console run` block holds `$ ` commands, each followed by its output. Other blocks
are only looked at: the commands and flags that they name must exist.

`python tests/test_docs.py` writes what the blocks print today into the pages; read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl")

from trainer_tools import in_ranks  # noqa: E402

from agent_gym.cli.flags import SWITCHES, TRAINING  # noqa: E402
from agent_gym.cli.main import COMMANDS, main  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
every_page = pytest.mark.parametrize("page", PAGES, ids=IDS)
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "TOKENIZERS_PARALLELISM": "false",
}


class Block(NamedTuple):
    """A fenced block: its info string, its text, and the line of the page on which the text begins."""

    info: str
    text: str
    line: int
    output: str | None  # what stands in the `text` block right behind it


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE))
    assert text.count("\n```") + text.startswith("```") == 2 * len(found), f"{page}: a block is not closed"
    blocks = []
    for one, following in zip(found, [*found[1:], None], strict=False):
        behind = following and following[1] == "text" and not text[one.end() : following.start()].strip()
        line = text.count("\n", 0, one.start(2)) + 1
        blocks.append(Block(one[1], one[2], line, following[2] if following and behind else None))
    return blocks


def execute(page: str, blocks: list[tuple[str, int]], folder: str) -> list[str]:
    """Execute blocks one after the other, and return what each printed."""
    os.chdir(folder)
    os.environ |= ENVIRONMENT
    warnings.simplefilter("ignore")
    namespace, printed = {"__name__": "__main__"}, []
    for text, line in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("\n" * (line - 1) + text, page, "exec"), namespace)
        printed.append(out.getvalue())
    return printed


def run_python(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Execute the `python run` blocks of a page in a process of their own: an id that a page registers stays there."""
    blocks = [block for block in blocks_of(page) if block.info == "python run"]
    if not blocks:
        return []
    (printed,) = in_ranks(execute, 1, str(page), [(block.text, block.line) for block in blocks], str(folder))
    return list(zip(blocks, printed, strict=True))


def run_console(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Run the commands of the `console run` blocks and return what the blocks should hold."""
    printed = []
    for block in blocks_of(page):
        if block.info == "console run":
            text = ""
            for command in re.findall(r"^\$ (.+)$", block.text, re.MULTILINE):
                script = ["bash", "-c", f"exec 2>&1; {command}"]
                pipe: Any = {"stdout": subprocess.PIPE, "text": True, "timeout": 600}
                text += f"$ {command}\n{subprocess.run(script, cwd=folder, env=ENVIRONMENT, **pipe).stdout}"
            printed.append((block, text))
    return printed


@every_page
def test_python_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for block, printed in run_python(page, tmp_path):
        if block.output is not None:
            assert printed == block.output, f"{page}, line {block.line}: the block prints something else"


@every_page
def test_console_blocks_show_what_the_commands_print(page: Path, tmp_path: Path) -> None:
    for block, text in run_console(page, tmp_path):
        assert text == block.text, f"{page}, line {block.line}"


@every_page
def test_links_files_and_tests_that_are_named_exist(page: Path) -> None:
    """Links lead to files and headings, `trainers/rows.py` is a file, `tests/test_x.py::test_y` a test in one."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https://)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page}: the link to {target} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page}: {file.name} has no heading for #{anchor}"
    folders = "agent_gym|envs|trainers|registry|examples|tests|docs|notebooks"
    for path in re.findall(rf"`((?:{folders})/[\w./]+)`", text):
        assert (ROOT / path).exists(), f"{page} names {path}, which does not exist"
    for path, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", text):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{page} names {path}::{name}, which does not exist"


# Commands.


def commands_of(page: Path) -> list[tuple[str, set[str]]]:
    """Every `agent-gym COMMAND` that stands in a block, fenced or indented, with its flags."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ .*?|    )agent-gym ([a-z]\w*)(.*)$", text, re.MULTILINE)
    return [(command, set(re.findall(r"(?<!\S)--[\w-]*\w", arguments))) for command, arguments in lines]


@functools.cache
def flags_of(command: str) -> set[str]:
    if command in TRAINING:
        from accelerate.commands.launch import launch_command_parser

        from agent_gym.cli.train import TrainingParser

        parsers = TrainingParser(command), launch_command_parser()
        switches = {"--help-all", *(flag.split()[0] for flag in SWITCHES)}
        return {flag for parser in parsers for flag in parser._option_string_actions} | switches
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([command, "--help"])
    return set(re.findall(r"--\w+", shown.getvalue()))


@every_page
def test_commands_and_flags_exist(page: Path) -> None:
    for command, flags in commands_of(page):
        if command == "rollot":  # docs/cli.md shows what a slip of the finger gives
            continue
        assert command in COMMANDS, f"{page}: there is no `agent-gym {command}`"
        assert not flags - flags_of(command), f"{page}: agent-gym {command} has no {flags - flags_of(command)}"


# The page on the trainer.


def test_lines_of_trl_are_where_the_page_names_them() -> None:
    import transformers
    import trl

    text = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    versions = (f"those of TRL {trl.__version__}", f"transformers {transformers.__version__}")
    assert all(version in text for version in versions), versions
    found = re.findall(r"`(_?\w+)`[^`\n]{1,9}`(trl|transformers)/([\w/]+\.py):(\d+)`", text)
    assert len(found) >= 7
    for name, package, path, line in found:
        source = Path({"trl": trl, "transformers": transformers}[package].__file__).parent / path
        here = source.read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert here.strip().startswith(f"def {name}("), f"{package}/{path}, line {line} is {here!r}, not {name}"


def test_every_logged_metric_is_explained() -> None:
    page = ROOT / "docs" / "trainer.md"
    logged = [block.output for block in blocks_of(page) if block.output][-1].splitlines()[-1].split()  # type: ignore
    names = re.findall(r"`([\w/<>]+)`", page.read_text(encoding="utf-8").split("## Metrics")[1].split("\n\n")[1])
    patterns = [re.compile(re.sub(r"<\w+>", r"\\w+", name)) for name in names]
    assert "reward" in logged and len(logged) > 25
    for metric in logged:
        assert any(pattern.fullmatch(metric) for pattern in patterns), f"{metric} is not in the table of metrics"


@pytest.mark.slow
def test_the_environment_of_the_page_passes_the_conformance_tests(tmp_path: Path) -> None:
    """Follow docs/add_an_env.md to the letter in a copy of the repository."""
    for name in ("agent_gym", "envs", "examples", "registry", "trainers", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    blocks = blocks_of(ROOT / "docs" / "add_an_env.md")
    code = next(block.text for block in blocks if block.info == "python run" and "class DirectoryEnv" in block.text)
    entry = next(block.text for block in blocks if block.info == "toml")
    folder = tmp_path / "envs" / "directory"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""A staff directory."""\n')
    (folder / "env.py").write_text(code)
    with (tmp_path / "registry" / "environments.toml").open("a") as table:
        table.write(f"\n{entry}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-k", "Directory or registry", "tests/test_conformance.py"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 10  # type: ignore[index]


if __name__ == "__main__":
    for name in PAGES:
        with tempfile.TemporaryDirectory() as scratch:
            pairs = [(block.output, printed) for block, printed in run_python(name, Path(scratch)) if block.output]
            pairs += [(block.text, text) for block, text in run_console(name, Path(scratch))]
        content = name.read_text(encoding="utf-8")
        for old, new in pairs:
            content = content.replace(f"\n{old}```\n", f"\n{new}```\n", 1)
        name.write_text(content, encoding="utf-8")

"""Prose and names keep to the glossary: rates of worn words have caps, and a name has one meaning.

The prose is that of docstrings, comments, messages (texts in `raise`, `print` and `warn`, help of arguments and of
settings) and pages. Code blocks are left out, and so is text that a policy reads, such as docstrings of tools. Rates
are per 10,000 words. The aims are the rates of TRL, Gymnasium and tinker-cookbook. A cap may only fall.

`python tests/test_words.py` prints the table, and `python tests/test_words.py PART PATTERN` each place of a pattern.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"code": ("agent_gym", "envs", "registry"), "trainers": ("trainers",), "docs": ()}
PATTERNS = {
    "what": r"\bwhat\b",
    "stands": r"\bstands?\b",
    "behind, beside": r"\b(behind|beside)\b",
    "goes on": r"\b(go|goes|went) on\b",
    "is no": r"\b(is|are|was|were) no\b",
    "of its own": r"\bof (its|their|his|our|my) own\b",
    "those": r"\bthose\b",
}
AIM = {"what": 15, "stands": 2, "behind, beside": 4, "goes on": 0.5, "is no": 4, "of its own": 1, "those": 5}
CAPS = {
    "code": [4.5, 1, 2, 0.5, 4, 1, 1],
    "trainers": [2.5, 0.8, 1.2, 0.5, 4, 1, 0.8],
    "docs": [13.5, 2, 4, 0.2, 3.6, 0.6, 4.5],
}
TWICE: set[str] = set()
"""Class names that several modules define. The set may only shrink."""
PLAY = 2
"""How many functions are called `play`. The number may only fall."""
MESSAGES = {"print", "warn", "error", "exit", "give_up", "log"}
HELP = {"help", "epilog", "metavar"}


def of_code(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of a module's docstrings, comments and messages."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    counted: dict[int, ast.Constant] = {}
    hidden: set[int] = set()
    ranges: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def strings(node: ast.AST) -> None:
        counted.update((id(one), one) for one in ast.walk(node) if is_text(one))

    for node in ast.walk(tree):
        if is_text(node) or isinstance(node, ast.JoinedStr):
            for line in range(node.lineno, node.end_lineno + 1):
                first = node.col_offset if line == node.lineno else 0
                last = node.end_col_offset if line == node.end_lineno else float("inf")
                ranges[line].append((first, last))
        if isinstance(node, ast.Expr) and is_text(node.value):
            strings(node.value)
        elif isinstance(node, ast.FunctionDef) and any("tool" in ast.unparse(one) for one in node.decorator_list):
            hidden |= {id(node.body[0].value)} if isinstance(node.body[0], ast.Expr) else set()
        elif isinstance(node, ast.Raise):
            strings(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in MESSAGES:
            strings(node)
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            strings(node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in HELP:
                    strings(value)
    yield from ((one.lineno, one.value) for name, one in counted.items() if name not in hidden)
    for number, line in enumerate(text.encode().split(b"\n"), 1):
        at = line.find(b"#")
        while at >= 0 and any(first <= at < last for first, last in ranges[number]):
            at = line.find(b"#", at + 1)
        if at >= 0:
            yield number, line[at:].decode()


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def of_page(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of code blocks, without code in backticks and targets of links."""
    fenced = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if not (fenced or fence or line.startswith("    ")):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)


def modules(*rooms: str) -> list[Path]:
    folders = [ROOT / room for room in rooms if room != "agent_gym"]
    if "agent_gym" in rooms:  # without the links in it to the other rooms
        folders += [one for one in sorted((ROOT / "agent_gym").iterdir()) if not one.is_symlink()]
    return [file for one in folders for file in ([one] if one.suffix == ".py" else sorted(one.rglob("*.py")))]


def prose(part: str) -> Iterator[tuple[Path, int, str]]:
    if part == "docs":
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            yield from ((page, number, text) for number, text in of_page(page))
    else:
        for file in modules(*PARTS[part]):
            yield from ((file, number, text) for number, text in of_code(file))


def rates(part: str) -> dict[str, float]:
    texts = [text for *_, text in prose(part)]
    words = sum(len(text.split()) for text in texts)
    whole = "\n".join(texts)
    return {
        name: round(1e4 * len(re.findall(pattern, whole, re.IGNORECASE)) / words, 1)
        for name, pattern in PATTERNS.items()
    }


def places(part: str, name: str) -> Iterator[str]:
    for file, first, text in prose(part):
        for number, line in enumerate(text.split("\n"), first):
            if re.search(PATTERNS[name], line, re.IGNORECASE):
                yield f"{file.relative_to(ROOT)}:{number}: {line.strip()}"


@pytest.mark.parametrize("part", PARTS)
def test_worn_words_are_rare(part):
    found = rates(part)
    above = {name: (rate, cap) for (name, rate), cap in zip(found.items(), CAPS[part], strict=True) if rate > cap}
    assert not above, f"(rate, cap) per 10,000 words: {above}; for places: python tests/test_words.py {part} PATTERN"


def test_a_class_name_means_one_thing():
    owners = defaultdict(set)
    plays = []
    for file in modules("agent_gym", "envs", "trainers", "registry"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                owners[node.name].add(file.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "play":
                plays.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    twice = {name: sorted(files) for name, files in owners.items() if len(files) > 1}
    assert twice.keys() <= TWICE, {name: twice[name] for name in twice.keys() - TWICE}
    assert twice.keys() >= TWICE, f"no longer defined twice, take them out of TWICE: {sorted(TWICE - twice.keys())}"
    assert len(plays) <= PLAY, plays


def test_the_glossary_defines_each_term_once_and_in_one_sentence():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    terms = [(term, meaning) for term, meaning in terms if term not in ("Term", "---")]
    assert len(terms) == len({term for term, _ in terms}) >= 45
    assert all(re.fullmatch(r"[A-Z][^.]*(`[^`]*`[^.]*)*\.", meaning) for _, meaning in terms), terms


def test_the_counter_sees_prose_and_nothing_that_a_policy_reads(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""What one."""\n'
        "text = 'what two # what three'  # what four\n"
        "raise ValueError(f'{text} what five')\n"
        "parse(help='what six', choices=['what seven'])\n"
        "@tool\ndef search(query):\n    '''What eight.'''\n"
        "print('what nine') #what ten\n",
        encoding="utf-8",
    )
    seen = re.findall(r"what (\w+)", " ".join(text for _, text in of_code(file)), re.IGNORECASE)
    assert sorted(seen) == ["five", "four", "nine", "one", "six", "ten"]
    page = tmp_path / "page.md"
    text = "What one `what two`\n```\nwhat three\n```\n    what four\n[what five](what-six.md)\n"
    page.write_text(text, encoding="utf-8")
    assert re.findall(r"what (\w+)", " ".join(text for _, text in of_page(page)), re.IGNORECASE) == ["one", "five"]


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(places(*sys.argv[1:])))
    else:
        print(f"{'':15}" + "".join(f"{part:>10}" for part in PARTS) + f"{'aim':>10}")
        table = {part: rates(part) for part in PARTS}
        for name in PATTERNS:
            print(f"{name:15}" + "".join(f"{table[part][name]:10}" for part in PARTS) + f"{AIM[name]:10}")

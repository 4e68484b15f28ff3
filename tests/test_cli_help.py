"""`--help` of the training commands: read from sources, it has to say what the real parser says."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("trl")

from agent_gym.cli.class_source import Unreadable, read_dataclass
from agent_gym.cli.fast_help import answer_help
from agent_gym.cli.flags import TrainingFlags
from agent_gym.cli.launch import TrainingParser

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Make a package of two modules: `base`, always the same, and `settings`, from a text. Returns its module name."""
    package = tmp_path / f"package_of_{tmp_path.name}"
    package.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (package / "__init__.py").write_text("if False:\n    from .settings import Settings\nraise ImportError('not this')")
    (package / "base.py").write_text(
        "from dataclasses import dataclass, field\nfrom enum import Enum\n"
        "class Colour(str, Enum):\n    RED = 'red'\n    BLUE = 'blue'\n\n    def paint(self):\n        return 1\n\n"
        "def computed():\n    x = 1\n    return x\n\ndef constant():\n    return {'a': 1}\n\n"
        "@dataclass\nclass Base:\n    first: int = 1\n    second: 'str | None' = None\n"
    )

    def settings(text: str) -> str:
        head = "from dataclasses import dataclass, field\nfrom .base import Base, Colour, computed, constant\n"
        head += "from . import base\n"
        (package / "settings.py").write_text(head + text)
        return package.name

    return settings


def test_fields_are_read_along_base_classes_and_imports(write: Write) -> None:
    package = write(
        "try:\n    import nothing_of_that_name\nexcept ImportError:\n    SIZES = (1, 2)\n\n"
        "@dataclass\nclass Settings(Base):\n    '''A card.'''\n\n    size = 3\n    if computed():\n        size = 4\n"
        "    second: str = 'other'\n"
        "    colour: Colour | str = field(default='red', metadata={'help': f'one of {constant().keys()}'})\n"
        "    sizes: list[int] = field(default_factory=lambda: [n for n in base.SIZES] if 0 else [1])\n"
        "    size_: int = field(default=size, metadata={'choices': SIZES})\n"
        "    def work(self):\n        inside: int = 1\n        return inside\n".replace("base.SIZES", "SIZES")
    )
    found = read_dataclass(package, "Settings")  # through the import of the package
    fields = {field.name: field for field in dataclasses.fields(found)}
    assert list(fields) == ["first", "second", "colour", "sizes", "size_"]
    assert fields["second"].default == "other" and fields["second"].type is str
    assert [member.value for member in fields["colour"].type.__args__[0]] == ["red", "blue"]  # type: ignore[union-attr]
    assert fields["colour"].metadata["help"] == "one of dict_keys(['a'])"
    assert fields["sizes"].default_factory() == [1]  # type: ignore[misc]
    assert fields["size_"].default == "3 or 4" and fields["size_"].metadata["choices"] == (1, 2)
    assert package not in sys.modules


@pytest.mark.parametrize(
    "body",
    [
        "    a: int = computed()",
        "    a: Nowhere = 1",
        "    if computed():\n        a: int = 1",
        "    b = computed()\n    a: int = field(default=b)",
    ],
)
def test_what_cannot_be_read_is_no_short_list(write: Write, body: str) -> None:
    package = write(f"@dataclass\nclass Settings(Base):\n{body}\n")
    with pytest.raises(Unreadable):
        read_dataclass(f"{package}.settings", "Settings")


@pytest.mark.parametrize("head", ["class Settings(base.Base)", "class Settings(Base, metaclass=type)", "class Other"])
def test_a_class_of_another_kind_is_refused(write: Write, head: str) -> None:
    package = write(f"@dataclass\n{head}:\n    a: int = 1\n")
    with pytest.raises(Unreadable):
        read_dataclass(f"{package}.settings", "Settings")


def test_the_real_parser_answers_where_a_source_cannot_be_read(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write("@dataclass\nclass Settings(Base):\n    third: int = field(default=computed())\n")
    init = Path(sys.path[0]) / package / "__init__.py"
    flags = TrainingFlags("try", "Try it.", (f"{package}.settings:Settings",))
    answer_help(flags, ["--help"])
    assert capsys.readouterr().out == ""
    init.write_text("")
    import_module(f"{package}.settings")
    with pytest.raises(SystemExit):
        TrainingParser(flags).read(["--help"])
    assert "--third THIRD" in capsys.readouterr().out

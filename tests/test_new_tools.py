"""`agent-gym new env --tools`: the files that functions open come along, and each function is called there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agent_gym.cli.main import main

TOOLS = '''"""Shop."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

RATES = json.loads(Path("data/rates.json").read_text())
HERE = Path(__file__).parent
WORD = "notes"


def query(sql: str) -> list:
    """Run a query of the table customers.

    Args:
      sql: the query
    """
    with sqlite3.connect("shop.db") as connection:
        return connection.execute(sql).fetchall()


def rate(name: str) -> float:
    """Tell a rate."""
    return RATES[name]


def picture(name: str) -> str:
    """Show one."""
    return (Path("pics") / f"{name}.txt").read_text()


def notes() -> str:
    """Show the notes."""
    return (HERE / "notes.txt").read_text()


def together() -> str:
    """Open a name that is put together."""
    return open(WORD + ".txt").read()


def makes() -> str:
    """Make what is not there."""
    return str(sqlite3.connect("gone" + ".db").execute("select * from x"))


def asks(file: str = "shop.db") -> str:
    """Open a file that is named in the schema."""
    return str(Path(file).exists())
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    connection = sqlite3.connect("shop.db")
    connection.execute("create table customers (name text)")
    connection.execute("insert into customers values ('Ada')")
    connection.commit()
    files = {"data/rates.json": '{"usd": 2}', "pics/a.txt": "A", "pics/b.txt": "B", "notes.txt": "hi"}
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    call = {"name": "query", "arguments": {"sql": "insert into customers values ('Bo') returning name"}}
    rows = [{"question": f"q{n}", "answer": "1", "call": call} for n in range(12)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("tools.py").write_text(TOOLS)
    return tmp_path


def test_files_that_functions_open_come_along_and_each_function_is_called_there(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "env", "my_shop", "--from", "rows.jsonl", "--tools", "tools.py"]) == 0
    out = capsys.readouterr().out
    package = shop / "my_shop" / "my_shop"
    for name in ("shop.db", "notes.txt", "pics", "files/data/rates.json"):
        assert (package / name).exists() and f"{Path('my_shop/my_shop') / name}, which tools.py opens" in out
    for words in (
        """query(sql="insert into customers values ('Bo') ...) answers: '[["Bo"]]'""",
        "notes() answers: 'hi'",
        "together() raised: FileNotFoundError: [Errno 2] No such file or directory: 'notes.txt' (",
        "makes() raised: OperationalError: no such table: x (",
        "the tools made gone.db, which did not come along; removed",
    ):
        assert f"tried      {words}" in out, out
    assert "rate(name=" in out and "(made up) raised: KeyError: " in out and "tools.py:" in out
    line = next(n for n, text in enumerate(TOOLS.splitlines(), 1) if text.startswith("def asks"))
    assert f"'shop.db' in line {line} of tools.py is looked for where a command runs" in out
    assert not (shop / "my_shop" / "gone.db").exists() and "no row has a call" not in out
    found = sqlite3.connect(package / "shop.db").execute("select name from customers").fetchall()
    assert found == [("Ada",)], "the trial has changed nothing"
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,B"]
    assert subprocess.run([*ruff, str(package / "tools.py")], timeout=60).returncode == 0


def test_they_are_found_from_any_folder(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert main(["new", "env", "my_shop", "--from", "rows.jsonl", "--tools", "tools.py"]) == 0
    (shop / "shop.db").unlink()
    code = f"""
import sys
sys.path[:0] = [{str(shop / "my_shop")!r}]
import agent_gym, my_shop
env = agent_gym.make("Mine/MyShop-v0")
env.reset(seed=0)
print(env.step(env.parser.render("query", {{"sql": "select name from customers"}}))[0])
print(env.step(env.parser.render("picture", {{"name": "b"}}))[0], env.tools["asks"].parameters["properties"]["file"])
"""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[[\"Ada\"]]\nB {'default': 'shop.db', 'type': 'string'}\n", done.stderr


def test_tools_that_only_work_where_they_were_are_told_with_their_own_words(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("far.py").write_text(
        'NAME = "no" + "tes"\nTEXT = open(NAME + ".txt").read()\n\n\ndef f() -> str:\n    """Do."""\n    return TEXT\n'
    )
    assert main(["new", "env", "far_env", "--tools", "far.py"]) == 1
    out = capsys.readouterr().out
    assert "'notes.txt' is opened at import by a path that is put together" in out
    assert "tools.py does not work in its new place: FileNotFoundError: [Errno 2] No such file" in out
    Path("picky.py").write_text('def f(a: int) -> str:\n    """No."""\n    raise ValueError(f"never {a}")\n')
    assert main(["new", "env", "other", "--tools", "picky.py"]) == 2
    err = capsys.readouterr().err
    assert "no tool answered a made-up call: tool 'f' raised" in err and "ValueError: never " in err
    assert "picky.py:3" in err and not Path("other").exists()


def test_rows_without_a_call_are_told_since_the_expert_then_uses_no_tool(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}\n')
    Path("plain.py").write_text('def f(a: int) -> int:\n    """Add one."""\n    return a + 1\n')
    assert main(["new", "env", "my_adding", "--from", "rows.jsonl", "--tools", "plain.py"]) == 0
    out = capsys.readouterr().out
    assert "no row has a call: the expert answers without a tool" in out
    assert "tried      f(a=" in out and "(made up) answers: " in out


def test_made_up_calls_leave_the_originals_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --from the questions are made up from calls, and a call may write."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("one")
    Path("tools.py").write_text(
        "from pathlib import Path\n\n\ndef add_note(text: str) -> str:\n"
        '    """Add a note.\n\n    Args:\n        text: the note.\n    """\n'
        '    file = open("notes.txt", "a")\n    file.write(text)\n    file.close()\n'
        '    return str(len(open("notes.txt").read()))\n'
    )
    assert main(["new", "env", "notebook", "--tools", "tools.py"]) == 0, capsys.readouterr().err
    assert Path("notes.txt").read_text() == "one"
    assert Path("notebook/notebook/notes.txt").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notebook", "notes.txt", "tools.py"]


def test_a_file_next_to_the_module_is_found_however_it_is_named(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = (
        'Path(__file__).with_name("shop.db")',
        'Path(__file__).parent / "shop.db"',
        'Path(__file__).parent.joinpath("shop.db")',
        'os.path.join(os.path.dirname(__file__), "shop.db")',
        '"shop.db"',
    )
    imports = "import os, sqlite3\nfrom pathlib import Path\n"
    source = f"{imports}FILES = [{', '.join(ways)}]\n\n\ndef people(city: str) -> str:\n"
    count = "sqlite3.connect(file).execute('select count(*) from customers').fetchall()"
    Path("tools.py").write_text(f'{source}    """Count."""\n    return str([{count} for file in FILES])\n')
    calls = [{"name": "people", "arguments": {"city": city}} for city in ("a", "b")]
    rows = [{"question": f"q{n}", "answer": "1", "calls": calls} for n in range(12)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["new", "env", "counts", "--from", "rows.jsonl", "--tools", "tools.py"]) == 0
    out = capsys.readouterr().out
    assert f"people(city='a') answers: '{[[(1,)]] * len(ways)}'" in out and "no row has a call" not in out
    program = (
        "import agent_gym\nenv = agent_gym.make('counts:Mine/Counts-v0')\nenv.reset(seed=0)\n"
        "for turn in range(3): env.step(env.unwrapped.expert_action())\n"
        "print([m['role'] for m in env.unwrapped.transcript.messages])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=shop / "counts", capture_output=True, text=True)
    assert done.stdout.count("'assistant'") == 3, done.stderr

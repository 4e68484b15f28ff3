"""The kinds of generated tasks, three for each difficulty: text and files, Python, SQLite, git.

The goal state of a task is computed here, in Python, and not by its solution, which is a person's commands. A test
plays all solutions, so that a slip in either shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES = """Abel Bruno Clara Dora Emil Frida Gero Hanna Igor Jonas Karla Lena Milan Nora Oskar Paula Quentin Rita Selma
Timo Ulla Vera Willi Xenia Yara Zeno""".split()
CITIES = "Aachen Bergen Calais Delft Essen Faro Genua Halle Izmir Jena Kiel Lund Metz Narvik Odense Porto".split()
THINGS = "anchor barrel candle drum easel flute globe hammer inkwell jar kettle lamp mirror needle oar pillow".split()
WORDS = """amber birch cedar dune ember fjord grove harbor island juniper kelp lagoon meadow nectar orchard pebble
quartz river sierra thistle umber valley willow yarrow zephyr""".split()
SERVICES = "auth billing cache gateway mailer queue search storage".split()


@dataclass
class TaskDraft:
    """One task: the slots of a wording, the files, the states to be reached and kept, and a way there."""

    values: Mapping[str, Any]
    goals: list[list[Any]]  # checks of check.py, of which none holds at the start
    solution: Sequence[str]  # commands of one line
    files: Mapping[str, str] = field(default_factory=dict)  # in /app
    guards: list[list[Any]] = field(default_factory=list)  # checks that hold at the start, and have to at the end
    commits: Sequence[Mapping[str, Any]] = ()  # of a repository in /app, see repository.py
    branches: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)  # databases in /app, by file: statements of SQL


Draw = Callable[[random.Random], TaskDraft]


def _text(rng: random.Random, lines: int) -> str:
    return "".join(" ".join(rng.sample(WORDS, 4)) + "\n" for _ in range(lines))


def _file(rng: random.Random, ending: str = "txt") -> str:
    return f"{rng.choice(THINGS)}{rng.randint(10, 99)}.{ending}"


def _files(rng: random.Random, count: int, ending: str = "txt") -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[_file(rng, ending)] = None
    return list(found)


def _kept(files: Mapping[str, str]) -> list[list[Any]]:
    return [["text", f"/app/{path}", content] for path, content in files.items()]


def count_lines(rng: random.Random) -> TaskDraft:
    """Lines with a word."""
    (file, out), word, text = _files(rng, 2), rng.choice(WORDS), _text(rng, rng.randint(12, 60))
    gold = sum(word in line.split() for line in text.splitlines())
    values = {"file": file, "word": word, "out": out}
    return TaskDraft(values, [["text", f"/app/{out}", str(gold)]], [f"grep -c {word} {file} > {out}"],
                 {file: text}, _kept({file: text}))  # fmt: skip


def rename(rng: random.Random) -> TaskDraft:
    """One file gets a new name, another one goes."""
    old, new, gone, other = _files(rng, 4)
    files = {name: _text(rng, 3) for name in (old, gone, other)}
    goals = [["text", f"/app/{new}", files[old]], ["gone", f"/app/{old}"], ["gone", f"/app/{gone}"]]
    values = {"old": old, "new": new, "gone": gone}
    return TaskDraft(values, goals, [f"mv {old} {new}", f"rm {gone}"], files, _kept({other: files[other]}))


def find_word(rng: random.Random) -> TaskDraft:
    """The one file with a word in it."""
    word, *others = rng.sample(WORDS, len(WORDS))
    names, out = _files(rng, 6), _file(rng)
    files = {f"notes/{name}": " ".join(rng.sample(others, 9)) + "\n" for name in names}
    found = rng.choice(names)
    files[f"notes/{found}"] += f"{' '.join(rng.sample(others, 3))} {word}\n"
    return TaskDraft({"word": word, "out": out}, [["text", f"/app/{out}", found]],
                 [f"cd notes && grep -l {word} * > ../{out}"], files, _kept(files))  # fmt: skip


def sort_unique(rng: random.Random) -> TaskDraft:
    """Lines in order, each once."""
    (file, out) = _files(rng, 2)
    lines = [f"{rng.choice(NAMES)} {rng.choice(CITIES)}" for _ in range(12)]
    text = "".join(f"{rng.choice(lines)}\n" for _ in range(30))
    goal = ["text", f"/app/{out}", "\n".join(sorted(set(text.splitlines())))]
    return TaskDraft({"file": file, "out": out}, [goal], [f"sort -u {file} > {out}"], {file: text}, _kept({file: text}))


def by_ending(rng: random.Random) -> TaskDraft:
    """Files of one ending, from several folders into one."""
    ending, target = rng.choice(("log", "csv", "bak", "tmp")), rng.choice(WORDS)
    wanted, others = _files(rng, 4, ending), _files(rng, 3, "md")
    spread = {name: f"{rng.choice(('in', 'in/deep', 'out'))}/{name}" for name in (*wanted, *others)}
    files = {path: _text(rng, 2) for path in spread.values()}
    goals = [["text", f"/app/{target}/{name}", files[spread[name]]] for name in wanted]
    goals += [["gone", f"/app/{spread[name]}"] for name in wanted]
    solution = [f"mkdir {target}", f"find in out -name '*.{ending}' -exec mv -t {target} {{}} +"]
    kept = _kept({spread[name]: files[spread[name]] for name in others})
    return TaskDraft({"ending": ending, "target": target}, goals, solution, files, kept)


def column_sum(rng: random.Random) -> TaskDraft:
    """One column, of the rows of a city."""
    file, out, city = _file(rng, "csv"), _file(rng), rng.choice(CITIES)
    rows = [(rng.choice(NAMES), rng.choice([city, *CITIES[:4]]), rng.randint(1, 500)) for _ in range(40)]
    text = "name,city,amount\n" + "".join(f"{name},{at},{amount}\n" for name, at, amount in rows)
    goal = ["text", f"/app/{out}", str(sum(amount for _, at, amount in rows if at == city))]
    solution = [f"awk -F, '$2 == \"{city}\" {{s += $3}} END {{print s}}' {file} > {out}"]
    return TaskDraft({"file": file, "city": city, "out": out}, [goal], solution, {file: text}, _kept({file: text}))


def query(rng: random.Random) -> TaskDraft:
    """Who has spent the most, by a database."""
    base, out = _file(rng, "db"), _file(rng)
    rows = [(rng.choice(NAMES[:9]), rng.choice(THINGS), rng.randint(5, 400)) for _ in range(40)]
    totals = {name: sum(amount for who, _, amount in rows if who == name) for name, *_ in rows}
    best = max(totals, key=lambda name: (totals[name], name))
    if [*totals.values()].count(totals[best]) > 1:
        # Two are first, and no wording says which one counts: the gold, which stays, gets one more.
        place = next(place for place, (name, *_) in enumerate(rows) if name == best)
        rows[place] = (best, rows[place][1], rows[place][2] + 1)
    sql = "select customer from orders group by customer order by sum(amount) desc, customer desc limit 1"
    solution = [f"python3 -c \"import sqlite3; print(*sqlite3.connect('{base}').execute('{sql}').fetchone())\" > {out}"]
    return TaskDraft({"base": base, "out": out}, [["text", f"/app/{out}", best]], solution,
                 tables={base: _table("orders(customer text, item text, amount integer)", rows)})  # fmt: skip


def _table(columns: str, rows: Sequence[Sequence[Any]]) -> str:
    values = ", ".join(f"({', '.join(repr(value) for value in row)})" for row in rows)
    return f"create table {columns}; insert into {columns.partition('(')[0]} values {values};"


def repair(rng: random.Random) -> TaskDraft:
    """A program with one mistake: it is mended, and run."""
    program, data, out = _file(rng, "py"), *_files(rng, 2)
    numbers, bound = [rng.randint(1, 900) for _ in range(30)], rng.randint(300, 600)
    right, wrong, gold = rng.choice((
        (f"n > {bound}", f"n < {bound}", sum(n for n in numbers if n > bound)),
        ("n % 2 == 0", "n % 2 == 1", sum(n for n in numbers if n % 2 == 0)),
        (f"n % 10 != {bound % 10}", f"n % 10 == {bound % 10}", sum(n for n in numbers if n % 10 != bound % 10)),
    ))  # fmt: skip
    what = {"n >": f"above {bound}", "n %": "that are even"}[right[:3]] if "% 10" not in right else ""
    what = what or f"whose last digit is not {bound % 10}"
    lines = [f"numbers = [int(line) for line in open('{data}')]", f"total = sum(n for n in numbers if {wrong})"]
    files = {data: "".join(f"{n}\n" for n in numbers), program: "\n".join([*lines, f"open('{out}', 'w').write(total)"])}
    mended = [f"sed -i 's/{wrong}/{right}/; s/write(total)/write(str(total))/' {program}", f"python3 {program}"]
    values = {"program": program, "data": data, "out": out, "what": what}
    return TaskDraft(values, [["text", f"/app/{out}", str(gold)]], mended, files, _kept({data: files[data]}))


def commit(rng: random.Random) -> TaskDraft:
    """One of two changed files is committed."""
    first, second, new = _files(rng, 3)
    message = f"{rng.choice(('Add', 'Describe', 'List'))} {rng.choice(THINGS)} {rng.randint(10, 99)}"
    before = {first: _text(rng, 2), second: _text(rng, 2)}
    changed = {name: before[name] + _text(rng, 1) for name in (first, second)} | {new: _text(rng, 2)}
    tree = {first: changed[first], second: before[second]}
    goals: list[list[Any]] = [["tree", "/app", "main", tree], ["message", "/app", "main", message]]
    return TaskDraft({"file": first, "message": message}, goals, [f"git add {first}", f"git commit -q -m '{message}'"],
                 changed, _kept(changed), [{"files": before, "message": "Begin"}], {"main": 0})  # fmt: skip


def restore(rng: random.Random) -> TaskDraft:
    """A file that was deleted some commits ago, as it was last."""
    lost, *others = _files(rng, 4)
    files, commits = {name: _text(rng, 2) for name in (lost, *others)}, list[Mapping[str, Any]]()
    gold, steps = "", [lost, others[0], lost, "", *rng.sample(others, 2)]
    for number, name in enumerate(steps):
        files = {path: text for path, text in files.items() if name or path != lost}
        files |= {name: files[name] + _text(rng, 1)} if name else {}
        gold = files.get(lost, gold)
        commits.append({"files": files, "message": rng.choice(WORDS), "parent": number - 1 if number else None})
    solution = [f"git checkout $(git rev-list -n 1 HEAD -- {lost})^ -- {lost}"]
    return TaskDraft({"file": lost}, [["text", f"/app/{lost}", gold]], solution, files, _kept(files), commits,
                 {"main": len(commits) - 1})  # fmt: skip


def join(rng: random.Random) -> TaskDraft:
    """Totals by name, of two tables that share a number."""
    people, pays, out = _file(rng, "csv"), _file(rng, "csv"), _file(rng)
    if people == pays:
        return join(rng)
    city, names = rng.choice(CITIES[4:]), rng.sample(NAMES, 10)
    of = {number: (name, rng.choice([city, *CITIES[:2]])) for number, name in enumerate(names, 101)}
    of[101] = (names[0], city)
    paid = [(rng.choice([101, *of]), rng.randint(1, 300)) for _ in range(40)] + [(101, rng.randint(1, 300))]
    totals = {name: sum(n for number, n in paid if of[number][0] == name) for name, at in of.values() if at == city}
    files = {
        people: "".join(f"{number},{name},{at}\n" for number, (name, at) in of.items()),
        pays: "".join(f"{number},{amount}\n" for number, amount in paid),
    }
    goal = ["text", f"/app/{out}", "\n".join(f"{name} {n}" for name, n in sorted(totals.items()) if n)]
    condition = f'NR == FNR {{if ($3 == "{city}") name[$1] = $2; next}} $1 in name {{sum[name[$1]] += $2}}'
    solution = [f"awk -F, '{condition} END {{for (one in sum) print one, sum[one]}}' {people} {pays} | sort > {out}"]
    return TaskDraft({"people": people, "pays": pays, "city": city, "out": out}, [goal], solution, files, _kept(files))


def update(rng: random.Random) -> TaskDraft:
    """Rows of a database are changed, others deleted."""
    base, more, city = _file(rng, "db"), rng.randint(3, 40), rng.choice(CITIES[:4])
    rows = [(f"{thing}", rng.choice(CITIES[:4]), rng.randint(10, 300), rng.choice((0, 1, 5))) for thing in THINGS]
    rows[0], rows[1] = (*rows[0][:3], 0), (rows[1][0], city, rows[1][2], 5)
    left = [[thing, at, price + more * (at == city), stock] for thing, at, price, stock in sorted(rows) if stock]
    goal = ["rows", f"/app/{base}", "select thing, city, price, stock from goods order by thing", left]
    sql = f"update goods set price = price + {more} where city = '{city}'; delete from goods where stock = 0"
    solution = [f'python3 -c "import sqlite3; sqlite3.connect(\'{base}\').executescript(\\"{sql}\\")"']
    return TaskDraft({"base": base, "more": more, "city": city}, [goal], solution,
                 tables={base: _table("goods(thing text, city text, price integer, stock integer)", rows)})  # fmt: skip


def report(rng: random.Random) -> TaskDraft:
    """Errors by service, from several logs, into a new database."""
    base, level = _file(rng, "db"), rng.choice(("ERROR", "WARN", "DEBUG"))
    services = rng.sample(SERVICES, 5)
    files, counts = {}, dict[str, int]()
    for name in _files(rng, 3, "log"):
        lines = []
        for minute in range(15):
            one, kind = rng.choice(services), rng.choice(("ERROR", "WARN", "DEBUG"))
            counts[one] = counts.get(one, 0) + (kind == level)
            lines.append(f"09:{minute:02} {kind} {one} {rng.choice(('got', 'no'))} {rng.choice(('ERROR', 'page'))}")
        files[f"logs/{name}"] = "\n".join(lines) + "\n"
    wanted = [[one, n] for one, n in sorted(counts.items()) if n]
    python = (
        f"import sqlite3, csv; base = sqlite3.connect('{base}'); "
        "base.execute('create table counts(service text, n integer)'); "
        "base.executemany('insert into counts values (?, ?)', csv.reader(open('/tmp/n.csv'))); base.commit()"
    )
    solution = [
        f'cat logs/* | awk \'$2 == "{level}" {{n[$3]++}} END {{for (one in n) print one "," n[one]}}\' > /tmp/n.csv',
        f'python3 -c "{python}"',
    ]
    goal = ["rows", f"/app/{base}", "select service, n from counts order by service", wanted]
    return TaskDraft({"base": base, "level": level}, [goal], solution, files, _kept(files))


def merge(rng: random.Random) -> TaskDraft:
    """Two branches that changed the same line."""
    file, other, branch = *_files(rng, 2, "conf"), rng.choice(WORDS)
    keys = rng.sample(SERVICES, 6)
    start = {key: rng.randint(10, 99) for key in keys}
    ours = {**start, keys[0]: rng.randint(100, 499), keys[2]: rng.randint(100, 499)}
    theirs = {**start, keys[2]: rng.randint(500, 999), keys[5]: rng.randint(500, 999)}
    final = {**start, keys[0]: ours[keys[0]], keys[2]: theirs[keys[2]], keys[5]: theirs[keys[5]]}
    kept = {other: _text(rng, 2)}
    # An empty line between two, so that only changes of the same line are in conflict.
    first, second, third, last = (
        {file: "\n\n".join(f"{key} = {number}" for key, number in one.items()) + "\n", **kept}
        for one in (start, ours, theirs, final)
    )
    commits: list[Mapping[str, Any]] = [{"files": first, "message": "Begin"}]
    commits += [{"files": files, "message": f"Change {file}", "parent": 0} for files in (second, third)]
    goals: list[list[Any]] = [["tree", "/app", "main", last], ["merged", "/app", "main", 2]]
    solution = [f"git merge -q -X theirs -m Merge {branch}"]
    branches = {"main": 1, branch: 2}
    return TaskDraft({"branch": branch, "file": file}, goals, solution, commits=commits, branches=branches)


def copies(rng: random.Random) -> TaskDraft:
    """Files with the same content: the first by its path stays."""
    out = _file(rng)
    texts = [_text(rng, 2) for _ in range(4)]
    paths = sorted(f"{rng.choice(('a', 'a/b', 'c', 'c/d/e'))}/{name}" for name in _files(rng, 9))
    files = {path: rng.choice(texts) for path in paths}
    files[paths[-1]] = files[paths[0]]
    first = {text: path for path, text in reversed(files.items())}
    stays = {path: text for path, text in files.items() if first[text] == path}
    goals = [*(["gone", f"/app/store/{path}"] for path in files if path not in stays)]
    goals.append(["text", f"/app/{out}", str(len(files) - len(stays))])
    solution = [
        "find store -type f | LC_ALL=C sort | xargs md5sum | awk 'seen[$1]++ {print $2}' > /tmp/copies",
        f"wc -l < /tmp/copies > {out}",
        "xargs rm < /tmp/copies",
    ]
    stored = {f"store/{path}": text for path, text in files.items()}
    kept = _kept({f"store/{path}": text for path, text in stays.items()})
    return TaskDraft({"out": out}, goals, solution, stored, kept)


KINDS: tuple[Mapping[str, Draw], ...] = (
    {"count-lines": count_lines, "rename": rename, "find-word": find_word},
    {"sort-unique": sort_unique, "by-ending": by_ending, "column-sum": column_sum},
    {"query": query, "repair": repair, "commit": commit},
    {"restore": restore, "join": join, "update": update},
    {"report": report, "merge": merge, "copies": copies},
)
"""The kinds of each difficulty, from 1 on."""

"""What becomes of prepared data and of an index when their command is killed, or its machine fails, at random moments.

    python benchmarks/command_kills.py --kills 50      # of each, by SIGKILL and SIGTERM in turn
    python benchmarks/command_kills.py --faults 50     # of each: EIO, a full disk, a refused name, little memory

`prepare` is `agent-gym prepare hotpotqa` with questions that are made up here; `index` is
`agent_gym.search.build_index` with an encoder that needs no model.

A trial ends a run at a moment that is drawn from a seed, or lets the operating system refuse the N-th of its calls, or
all memory beyond a bound. Then the same command runs again, undisturbed.

    ended       trials whose run was ended by the kill or the fault; the others had come to their end
    error       trials of a fault whose run ended with one line, or came to its end
    same        trials after which the second run ended with the bytes of a run that nothing had disturbed

A trial that fails is printed, with its folder, which is then kept.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
import _faults

SUBJECTS = ("prepare", "index")
FAULTS = ("eio", "full", "rename", "memory")
FIRST = {"eio": (1, 60), "full": (1, 25), "rename": (1, 20)}
QUESTIONS, DOCUMENTS = 3000, 20_000
PATIENCE_S = 300.0


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--work":
        sys.exit(work(*sys.argv[2:]))
    parser = _common.parser(__doc__)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="trials of each")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="trials of each")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), metavar="LIST")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    options = parser.parse_args()
    facts = _common.provenance(("agent-gym", "faiss-cpu", "pyarrow"))
    _common.print_provenance(facts)
    rng, rows, trials = random.Random(options.seed), list[list[str]](), list[dict[str, Any]]()
    place = Path(tempfile.mkdtemp(prefix="agent-gym-command-kills-"))
    (place / "questions.json").write_text(json.dumps([question(n) for n in range(QUESTIONS)]))
    kills, faults = (1 if options.quick else options.kills), (1 if options.quick else options.faults)
    for subject in options.subjects.split(","):
        begun = time.monotonic()
        run(subject, place / "undisturbed").wait()
        seconds, right = time.monotonic() - begun, contents(place / "undisturbed")
        for kind, count in (("kill", kills), ("fault", faults)):
            found = [trial(place, subject, kind, number, rng, seconds, right) for number in range(count)]
            trials += found
            if found:
                totals = sum((Counter({key: int(value) for key, value in one.items()}) for one in found), Counter())
                rows.append([subject, kind, str(count), *(str(totals[name]) for name in ("ended", "error", "same"))])
        shutil.rmtree(place / "undisturbed")
    head = ["command", "by", "trials", "ended", "error", "same"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows, trials=trials)
    if all(one["same"] for one in trials):
        shutil.rmtree(place)


def trial(
    place: Path, subject: str, kind: str, number: int, rng: random.Random, seconds: float, right: dict[str, str]
) -> dict[str, bool]:
    """End one run, and run the same command again."""
    folder, moment, seed = place / f"{subject}-{kind}-{number}", rng.uniform(0.0, 0.8 * seconds), rng.randrange(10**9)
    fault = FAULTS[number % len(FAULTS)] if kind == "fault" else ""
    process = run(subject, folder, *([fault, str(seed)] if fault else []))
    if kind == "kill":
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    again = run(subject, folder)
    _, then = again.communicate(timeout=PATIENCE_S)
    found = contents(folder)
    result = {
        "ended": process.returncode != 0,
        "error": bool(fault) and "Traceback" not in said,
        "same": again.returncode == 0 and found == right,
    }
    print(f"{subject} {kind} {number} {fault} {moment:.2f} s: {result} {said.strip()[-300:]!r}", flush=True)
    if not result["same"]:
        other = [name for name in {*found, *right} if found.get(name) != right.get(name)]
        print(f"  kept: {folder}: {again.returncode} {other} {then[-1500:]}", flush=True)
    elif fault and not result["error"]:
        print(said[-3000:], flush=True)
    if result["same"]:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def run(subject: str, folder: Path, *fault: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--work", subject, str(folder), *fault]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, str]:
    """Return the checksum of each file, by its path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# What runs.


def work(subject: str, folder: str, *fault: str) -> int:
    """Run the command in this process, with a fault if one is named."""
    from agent_gym.cli.main import guarded, main

    if fault:
        inject(fault[0], int(fault[1]), folder)
    if subject == "index":
        return guarded(lambda: build(folder))
    source = str(Path(folder).parent / "questions.json")
    return guarded(lambda: main(["prepare", "hotpotqa", "--from", source, "--output", folder]))


def inject(kind: str, seed: int, folder: str) -> None:
    if kind == "memory":
        import faiss  # noqa: F401  what is imported is no part of the draw
        import pyarrow.parquet  # noqa: F401

        return _faults.bound_memory(random.Random(seed).randrange(300 << 20))
    _faults.inject(kind, seed, folder, first=FIRST)


def build(folder: str) -> int:
    """Build an index of made-up documents."""
    from agent_gym.errors import writing
    from agent_gym.search import Document
    from agent_gym.search.build import build_index

    documents = [Document(str(n), f"Title {n}", f"The text of document {n}.") for n in range(DOCUMENTS)]
    with writing(folder):
        build_index(documents, HashEncoder(), folder, kind="sq8", shard_size=1024)
    return 0


class HashEncoder:
    """Gives each text a vector that its checksum decides."""

    def __init__(self) -> None:
        from agent_gym.search.encoder import EncoderSpec

        self.spec = EncoderSpec("hash", 32)

    def encode_queries(self, queries: Sequence[str]) -> Any:
        import numpy as np

        from agent_gym.search.encoder import normalised

        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in queries]
        return normalised(np.stack([np.random.default_rng(seed).standard_normal(32) for seed in seeds]))

    def encode_documents(self, documents: Sequence[Any]) -> Any:
        return self.encode_queries([f"{document.title} {document.text}" for document in documents])


def question(n: int) -> dict[str, Any]:
    """Return a question in HotpotQA's own form; neighbours share a paragraph."""
    return {
        "_id": f"q{n}",
        "question": f"In which city was the director of Film {n} born?",
        "answer": f"City {n}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"Film {n}", 0], [f"Person {n}", 1]],
        "context": [
            [f"Film {n}", [f"Film {n} is by Person {n}.", " It is long."]],
            [f"Person {n}", [f"Person {n} makes films.", f" Person {n} was born in City {n}."]],
            [f"Film {n + 1}", [f"Film {n + 1} is by Person {n + 1}.", " It is long."]],
        ],
    }


if __name__ == "__main__":
    main()

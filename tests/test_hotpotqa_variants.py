"""HotpotQA's relatives: three hops, the forms of 2WikiMultihopQA and MuSiQue, mixtures, and the full-wiki setting."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

from agent_gym import ConfigError  # noqa: E402
from agent_gym.envs.hotpotqa.data import read_question  # noqa: E402
from agent_gym.envs.hotpotqa.embedded import GeneratedQuestions  # noqa: E402
from agent_gym.envs.hotpotqa.embedded.world import get_world  # noqa: E402
from agent_gym.envs.hotpotqa.variants import Mixture  # noqa: E402
from agent_gym.search.bm25 import BM25Retriever  # noqa: E402

MUSIQUE = {
    "id": "3hop1__1_2_3",
    "paragraphs": [
        {"idx": 0, "title": "Pemi", "paragraph_text": "A river.", "is_supporting": False},
        {"idx": 1, "title": "Sagulo", "paragraph_text": "Its mayor is Lano.", "is_supporting": True},
        {"idx": 2, "title": "Tobila", "paragraph_text": "A film by Nuvi Roga.", "is_supporting": True},
        {"idx": 3, "title": "Nuvi Roga", "paragraph_text": "Born in Sagulo.", "is_supporting": True},
        {"idx": 4, "title": "Sagulo", "paragraph_text": "A song.", "is_supporting": False},
    ],
    "question": "Who is the mayor of the city where the director of Tobila was born?",
    "question_decomposition": [
        {"paragraph_support_idx": 2},
        {"paragraph_support_idx": 3},
        {"paragraph_support_idx": 1},
    ],
    "answer": "Lano",
    "answer_aliases": ["Mayor Lano"],
    "answerable": True,
}
WIKI2 = {
    "_id": "w",
    "type": "compositional",
    "question": "Where was the director of Zefalo born?",
    "answer": "Dorema",
    "supporting_facts": [["Zefalo", 0], ["Bani Tola", 0]],
    "context": [["Zefalo", ["A film by Bani Tola."]], ["Bani Tola", ["Born in Dorema."]]],
    "evidences": [["Zefalo", "director", "Bani Tola"]],
}


def make(name: str = "MultiHopQA", **kwargs: Any) -> Any:
    return gymnasium.make(f"AgentR1/{name}-v0", **kwargs).unwrapped


def expert_plays(env: Any, **options: Any) -> dict[str, Any]:
    env.reset(seed=0, options=options)
    while True:
        *_, terminated, truncated, info = env.step(env.expert_action())
        if terminated or truncated:
            return info


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("split", ["train", "validation", "test", "unseen_entities_dev", "unseen_entities"])
def test_three_hops(split: str) -> None:
    engines: dict[int, BM25Retriever] = {}
    for row in GeneratedQuestions(split, 60, ["easy", "medium"], hops=3):
        context = dict(row["context"])
        said = [(title, context[title][n]) for title, n in row["supporting_facts"]]
        assert len(context) == 10 and len({title for title, _ in said}) == 3 and row["type"] == "bridge"
        assert said[0][0] in row["question"] and not any(title in row["question"] for title, _ in said[1:])
        assert said[1][0] in said[0][1] and said[2][0] in said[1][1] and row["answer"] in said[2][1]
        assert row["answer"] not in "".join("".join(context[title]) for title, _ in said[:2])
        engine = engines.setdefault(row["world"], BM25Retriever(get_world(row["world"]).documents))
        found = {hit.document.title for hit in engine.search([row["question"]], 10)[0]}
        assert not found & {title for title, _ in said[1:]}


@pytest.mark.parametrize(("levels", "hops"), [(["hard"], 3), (["easy", "hard"], 3), (["easy"], 4), (["easy"], 1)])
def test_wrong_hops_are_named(levels: list[str], hops: int) -> None:
    with pytest.raises(ConfigError, match=f"hops is {hops}"):
        GeneratedQuestions("train", 5, levels, hops=hops)


def test_musique_becomes_hotpotqa() -> None:
    question = read_question(MUSIQUE)
    assert question.answers == ("Lano", "Mayor Lano")
    assert question.titles == ("Tobila", "Nuvi Roga", "Sagulo"), "in the order in which one would search"
    assert question.facts[-1] == ("Sagulo", "Its mayor is Lano."), "and not the song of the same title"


def test_2wiki_with_json_texts() -> None:
    texts = {
        **WIKI2,
        "supporting_facts": json.dumps(WIKI2["supporting_facts"]),
        "context": json.dumps(WIKI2["context"]),
    }
    assert read_question(texts) == read_question(WIKI2)
    assert read_question(WIKI2).titles == ("Zefalo", "Bani Tola")
    with pytest.raises(ConfigError, match="HotpotQA task"):
        read_question({**WIKI2, "context": "[["})


def test_a_mixture_of_files(tmp_path: Path) -> None:
    unanswerable = {**MUSIQUE, "question": "?", "answerable": False}
    sources = [write(tmp_path / "musique.jsonl", [MUSIQUE, unanswerable]), write(tmp_path / "wiki.jsonl", [WIKI2] * 3)]
    env = make(data=sources)
    rows = list(env.tasks["train"])
    assert len(rows) == 4 and rows.count(MUSIQUE) == 1 and unanswerable not in rows
    for index in range(4):
        info = expert_plays(env, split="train", index=index)
        assert info["is_success"] and info["metrics"]["gold_recall"] == 1.0
    both = make(data=[sources[1], "embedded"])
    assert len(both.tasks["train"]) == 40_003 and expert_plays(both, split="train", index=0)["is_success"]
    assert len(both.tasks["test"]) == 2_000, "a file is one split"
    # Both files are searched together, and an alias is right.
    env.reset(seed=0, options={"task": WIKI2})
    assert "Nuvi Roga: Born in Sagulo." in env.step(env.parser.render("search", {"query": "Nuvi Roga"}))[0]
    env.reset(seed=0, options={"task": MUSIQUE})
    assert env.step("<answer>mayor Lano</answer>")[4]["is_success"]


def test_the_official_files_of_musique(tmp_path: Path) -> None:
    write(tmp_path / "musique_ans_v1.0_train.jsonl", [MUSIQUE, MUSIQUE])
    write(tmp_path / "musique_ans_v1.0_dev.jsonl", [MUSIQUE])
    write(tmp_path / "musique_ans_v1.0_test.jsonl", [{"id": "1", "question": "?"}])
    assert {split: len(rows) for split, rows in make(data=str(tmp_path)).tasks.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    write(tmp_path / "musique_full_v1.0_train.jsonl", [MUSIQUE])
    with pytest.raises(ConfigError, match="two files of the split 'train'"):
        make(data=str(tmp_path))


def test_embedded_mixture() -> None:
    env = make()
    assert {split: len(rows) for split, rows in env.tasks.items()} == {
        "train": 40_000,
        "validation": 2_000,
        "test": 2_000,
        "unseen_entities_dev": 2_000,
        "unseen_entities": 2_000,
    }
    hops = ["3hop" in env.tasks["test"][i]["_id"] for i in range(40)]
    assert sum(hops) == 20


def test_mixing_is_even_and_loses_nothing() -> None:
    sources = [[{"n": n, "i": i} for i in range(size)] for n, size in enumerate((3, 30, 300))]
    mixed = Mixture(sources)
    assert len(mixed) == 333 and mixed[-1] == list(mixed)[332] and mixed[5:9:2] == [mixed[5], mixed[7]]
    assert sorted((row["n"], row["i"]) for row in mixed) == [(row["n"], row["i"]) for rows in sources for row in rows]
    for n, share in ((1, 10), (2, 100)):
        assert abs(sum(row["n"] == n for row in mixed[:111]) - share) <= 1
    with pytest.raises(IndexError):
        mixed[333]


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"data": []}, "no source"), ({"levels": ["easy"]}, "levels"), ({"data": ["./nowhere.json"]}, "no such file")],
)
def test_wrong_settings_of_a_mixture_are_named(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**bad)


def test_full_wiki_asks_for_what_to_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("corpus=") + ".*" + re.escape("retriever=")):
        make("HotpotQA-FullWiki")
    data = write(tmp_path / "rows.jsonl", [WIKI2])
    corpus = [{"_id": title, "title": title, "text": "".join(text)} for title, text in WIKI2["context"]]
    corpus.append({"_id": "x", "title": "Other", "text": "A film of another name."})
    env = make("HotpotQA-FullWiki", data=data, corpus=write(tmp_path / "corpus.jsonl", corpus))
    assert expert_plays(env)["metrics"]["gold_recall"] == 1.0
    env.reset(seed=0)
    assert "[1] Other: A film of another name." in env.step(env.parser.render("search", {"query": "another name"}))[0]
    assert make("HotpotQA-FullWiki", data=data, retriever=BM25Retriever(get_world(0).documents)).tasks

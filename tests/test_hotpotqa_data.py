"""HotpotQA's data from elsewhere: official files, the hub's form, its relatives, mixtures, corpora."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bm25s")

from search_tools import hotpotqa_sample  # noqa: E402
from test_hotpotqa_env import make  # noqa: E402

from agent_gym import ConfigError  # noqa: E402
from agent_gym.envs.hotpotqa.data import questions, read_question  # noqa: E402
from agent_gym.envs.hotpotqa.embedded.world import get_world  # noqa: E402
from agent_gym.envs.hotpotqa.variants import MixedQuestions  # noqa: E402
from agent_gym.prepare.rows import musique  # noqa: E402
from agent_gym.search.bm25 import BM25Retriever  # noqa: E402
from agent_gym.search.engines import ENGINES  # noqa: E402
from agent_gym.testing import expert_episode  # noqa: E402

OFFICIAL = {
    "_id": "5a7",
    "question": "Where was the director of Tobila born?",
    "answer": "Sagulo",
    "type": "bridge",
    "level": "medium",
    "supporting_facts": [["Tobila", 0], ["Nuvi Roga", 0], ["Nuvi Roga", 7]],
    "context": [["Tobila", ["A film by Nuvi Roga."]], ["Nuvi Roga", ["Born in Sagulo.", " Died."]], ["Pemi", ["No."]]],
}
HUB = OFFICIAL | {
    "supporting_facts": {"title": ["Tobila", "Nuvi Roga", "Nuvi Roga"], "sent_id": [0, 0, 7]},
    "context": {"title": ["Tobila", "Nuvi Roga"], "sentences": [["A film by Nuvi Roga."], ["Born in Sagulo."]]},
}
PARAGRAPHS = [("Pemi", "A river."), ("Sagulo", "Its mayor is Lano."), ("Tobila", "A film by Nuvi Roga.")]
PARAGRAPHS += [("Nuvi Roga", "Born in Sagulo."), ("Sagulo", "A song.")]
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "paragraphs": [
        {"idx": i, "title": title, "paragraph_text": text, "is_supporting": i in (1, 2, 3)}
        for i, (title, text) in enumerate(PARAGRAPHS)
    ],
    "question": "Who is the mayor of the city where the director of Tobila was born?",
    "question_decomposition": [{"paragraph_support_idx": i} for i in (2, 3, 1)],
    "answer": "Lano",
    "answer_aliases": ["Mayor Lano"],
    "answerable": True,
}
WIKI2 = {
    "_id": "w",
    "question": "Where was the director of Zefalo born?",
    "answer": "Dorema",
    "supporting_facts": [["Zefalo", 0], ["Bani Tola", 0]],
    "context": [["Zefalo", ["A film by Bani Tola."]], ["Bani Tola", ["Born in Dorema."]]],
}
WIKI2_TEXTS = WIKI2 | {name: json.dumps(WIKI2[name]) for name in ("supporting_facts", "context")}
FACTS = (("Tobila", "A film by Nuvi Roga."), ("Nuvi Roga", "Born in Sagulo."))


def expert_plays(env: Any, **options: Any) -> tuple[bool, float]:
    """Whether the expert's episode ends in success, and the share of gold paragraphs it found."""
    info = expert_episode(env, seed=0, options=options)[-1][-1]
    return info["is_success"], info["metrics"]["gold_recall"]


def search(env: Any, query: str, **options: Any) -> tuple[str, float]:
    """What a search at the start of an episode shows, and the share of gold paragraphs in it."""
    env.reset(seed=0, options=options)
    observation, *_, info = env.step(env.parser.render("search", {"query": query}))
    return observation, info["metrics"]["gold_recall"]


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("row", "answers", "facts"),
    [
        # A fact that names a sentence which is not there is left out; the official files have some.
        (OFFICIAL, ("Sagulo",), FACTS),
        (HUB, ("Sagulo",), FACTS),
        # In the order in which one would search, and without the song of the same title.
        (MUSIQUE, ("Lano", "Mayor Lano"), (*FACTS, ("Sagulo", "Its mayor is Lano."))),
        (WIKI2_TEXTS, ("Dorema",), (("Zefalo", "A film by Bani Tola."), ("Bani Tola", "Born in Dorema."))),
    ],
)
def test_forms_of_a_row(row: Any, answers: Any, facts: Any, tmp_path: Path) -> None:
    titles = tuple(title for title, _ in facts)
    assert read_question(row) == (row["question"], answers, titles, facts)
    assert expert_plays(make("MultiHopQA", data=write(tmp_path / "rows.jsonl", row))) == (True, 1.0)


@pytest.mark.parametrize("base", [WIKI2, MUSIQUE], ids=["hotpotqa", "musique"])
@pytest.mark.parametrize(
    ("aliases", "right"),
    [
        (["NYC", "New York"], ("NYC", "New York")),
        ('["NYC", "New York"]', ("NYC", "New York")),
        ("NYC", ("NYC",)),
        (["", "NYC"], ("NYC",)),
        ("", ()),
        (None, ()),
    ],
)
def test_forms_of_aliases(base: dict[str, Any], aliases: Any, right: tuple[str, ...]) -> None:
    env, row = make("MultiHopQA"), base | {"answer_aliases": aliases}
    assert read_question(row).answers == (base["answer"], *right)
    assert musique(row)["answer_aliases"] == list(right)
    for text, success in (("", False), ("N", False), (base["answer"], True), *((one, True) for one in right)):
        env.reset(seed=0, options={"task": row})
        assert env.step(f"<answer>{text}</answer>")[4]["is_success"] is success


# Files


def test_a_path_names_data_as_a_text_does(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write(file, WIKI2)
    for name in ("HotpotQA", "MultiHopQA"):
        assert expert_plays(make(name, data=file)) == (True, 1.0)
        with pytest.raises(ConfigError, match="no such file or folder"):
            make(name, data=tmp_path / "missing")


def test_a_folder_with_the_official_files(tmp_path: Path) -> None:
    train, dev = OFFICIAL | {"question": "train?"}, OFFICIAL | {"question": "dev?"}
    write(tmp_path / "hotpot_train_v1.1.json", train, train | {"level": "easy"})
    one = write(tmp_path / "hotpot_dev_distractor_v1.json", dev)
    write(tmp_path / "hotpot_dev_fullwiki_v1.json", dev | {"question": "fullwiki?"})
    write(tmp_path / "hotpot_test_fullwiki_v1.json", {"_id": "1", "question": "q", "context": []})
    splits, _ = questions(str(tmp_path))
    found = {split: [row["question"] for row in rows] for split, rows in splits.items()}
    assert found == {"train": ["train?", "train?"], "validation": ["dev?"], "test": ["dev?"]}
    assert [row["level"] for row in questions(str(tmp_path), ["medium"])[0]["train"]] == ["medium"]
    with pytest.raises(ConfigError, match="no question of the levels hard"):
        questions(str(tmp_path), ["hard"])
    assert list(make(data=one).tasks) == ["validation"]
    before = set(ENGINES._engines)
    assert expert_plays(make(data=one)) == expert_plays(make(data=one, levels=["medium"])) == (True, 1.0)
    assert len(set(ENGINES._engines) - before) == 1, "all environments share one index of loaded data"


def test_a_test_file_without_answers_is_passed_over(tmp_path: Path) -> None:
    """As 2WikiMultihopQA's own, which goes by the name of test.json."""
    for name, question in (("train", "train?"), ("dev", "dev?")):
        write(tmp_path / f"{name}.json", OFFICIAL | {"question": question})
    for hidden in (None, ""):
        write(tmp_path / "test.json", OFFICIAL | {"answer": hidden, "supporting_facts": []})
        found = {split: rows[0]["question"] for split, rows in questions(str(tmp_path))[0].items()}
        assert found == {"train": "train?", "validation": "dev?", "test": "dev?"}


def test_the_official_files_of_musique(tmp_path: Path) -> None:
    for split, rows in (("train", [MUSIQUE] * 2), ("dev", [MUSIQUE]), ("test", [{"id": "1", "question": "?"}])):
        write(tmp_path / f"musique_ans_v1.0_{split}.jsonl", *rows)
    splits = make("MultiHopQA", data=str(tmp_path)).tasks
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 2, "validation": 1, "test": 1}
    write(tmp_path / "musique_full_v1.0_train.jsonl", MUSIQUE)
    with pytest.raises(ConfigError, match="two files of the split 'train'"):
        make("MultiHopQA", data=str(tmp_path))


# What is searched


def test_a_corpus_decides_what_is_searched(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", {"_id": "1", "title": "Elsewhere", "text": "Tobila is not here."})
    assert search(make(corpus=path), "Tobila", task=OFFICIAL) == ("[1] Elsewhere: Tobila is not here.", 0.0)


def test_full_wiki_has_to_be_given_what_to_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("corpus=") + ".*" + re.escape("retriever=")):
        make("HotpotQA-FullWiki")
    corpus = [{"_id": title, "title": title, "text": "".join(text)} for title, text in WIKI2["context"]]
    given = {"data": write(tmp_path / "rows.jsonl", WIKI2), "corpus": write(tmp_path / "corpus.jsonl", *corpus)}
    assert expert_plays(make("HotpotQA-FullWiki", **given)) == (True, 1.0)
    assert make("HotpotQA-FullWiki", data=given["data"], retriever=BM25Retriever(get_world(0).documents)).tasks


# Mixtures


def test_a_mixture_of_files(tmp_path: Path) -> None:
    unanswerable = MUSIQUE | {"question": "?", "answerable": False}
    musique = write(tmp_path / "musique.jsonl", MUSIQUE, unanswerable)
    wiki = write(tmp_path / "wiki.jsonl", WIKI2, WIKI2, WIKI2)
    env = make("MultiHopQA", data=[musique, wiki])
    rows = list(env.tasks["train"])
    assert len(rows) == 4 and rows.count(MUSIQUE) == 1 and unanswerable not in rows
    assert [expert_plays(env, split="train", index=index) for index in range(4)] == [(True, 1.0)] * 4
    assert "Nuvi Roga: Born in Sagulo." in search(env, "Nuvi Roga", task=WIKI2)[0], "both are searched together"
    env.reset(seed=0, options={"task": MUSIQUE})
    assert env.step("<answer>mayor Lano</answer>")[4]["is_success"], "an alias is right"
    both = make("MultiHopQA", data=[wiki, "embedded"])
    assert len(both.tasks["train"]) == 40_003 and expert_plays(both, split="train", index=0)[0]
    assert len(both.tasks["test"]) == 2_000, "a file is one split"
    assert sum("3hop" in both.tasks["test"][i]["_id"] for i in range(40)) == 20


def test_mixing_is_even_and_loses_nothing() -> None:
    sources = [[{"n": n, "i": i} for i in range(size)] for n, size in enumerate((3, 30, 300))]
    mixed = MixedQuestions(sources)
    assert sorted((row["n"], row["i"]) for row in mixed) == [(row["n"], row["i"]) for rows in sources for row in rows]
    for n, share in ((1, 10), (2, 100)):
        assert abs(sum(row["n"] == n for row in mixed[:111]) - share) <= 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"data": []}, "no source"), ({"levels": ["easy"]}, "levels"), ({"data": ["./nowhere.json"]}, "no such file")],
)
def test_wrong_settings_of_a_mixture_are_named(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("MultiHopQA", **bad)


def test_real_questions() -> None:
    """Titles find what they name, and one search finds half of what they need."""
    env = make(data=str(hotpotqa_sample()), top_k=5, max_turns=8)
    rows = env.tasks["train"]
    played = [expert_plays(env, split="train", index=index) for index in range(60)]
    assert len(rows) == 60 and all(success for success, _ in played) and sum(found for _, found in played) / 60 > 0.95
    found = [search(env, rows[index]["question"], split="train", index=index)[1] for index in range(60)]
    assert 0.6 < sum(found) / 60 < 0.95 and sum(share == 1.0 for share in found) < 50

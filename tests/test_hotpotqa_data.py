"""Data from elsewhere: official files, the hub's form, written worlds, and the real sample where it is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

from agent_gym import ConfigError  # noqa: E402
from agent_gym.envs.hotpotqa.data import questions, read_question  # noqa: E402
from agent_gym.envs.hotpotqa.embedded import write_embedded  # noqa: E402
from agent_gym.envs.hotpotqa.scoring import evaluate  # noqa: E402
from agent_gym.search.engines import ENGINES  # noqa: E402

OFFICIAL = {
    "_id": "5a7",
    "question": "Where was the director of Tobila born?",
    "answer": "Sagulo",
    "type": "bridge",
    "level": "medium",
    "supporting_facts": [["Tobila", 0], ["Nuvi Roga", 0], ["Nuvi Roga", 7]],
    "context": [["Tobila", ["A film by Nuvi Roga."]], ["Nuvi Roga", ["Born in Sagulo.", " Died."]], ["Pemi", ["No."]]],
}
HUB = {
    **{key: OFFICIAL[key] for key in ("question", "answer", "type", "level")},
    "id": "5a7",
    "supporting_facts": {"title": ["Tobila", "Nuvi Roga", "Nuvi Roga"], "sent_id": [0, 0, 7]},
    "context": {
        "title": ["Tobila", "Nuvi Roga", "Pemi"],
        "sentences": [["A film by Nuvi Roga."], ["Born in Sagulo.", " Died."], ["No."]],
    },
}


def make(**kwargs: Any) -> Any:
    return gymnasium.make("AgentR1/HotpotQA-v0", **kwargs).unwrapped


def expert_plays(env: Any, **options: Any) -> tuple[bool, float]:
    """Whether the expert's episode ends in success, and the share of gold paragraphs it found."""
    env.reset(seed=0, options=options)
    while True:
        *_, terminated, truncated, info = env.step(env.expert_action())
        if terminated or truncated:
            return info["is_success"], info["metrics"]["gold_recall"]


@pytest.mark.parametrize("row", [OFFICIAL, HUB], ids=["official", "hub"])
def test_both_forms_of_a_row(row: dict[str, Any], tmp_path: Path) -> None:
    question = read_question(row)
    assert question.answers == ("Sagulo",) and question.titles == ("Tobila", "Nuvi Roga")
    # A fact that names a sentence which is not there is left out; the official files have some.
    assert question.facts == (("Tobila", "A film by Nuvi Roga."), ("Nuvi Roga", "Born in Sagulo."))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert expert_plays(make(data=str(tmp_path / "rows.jsonl"))) == (True, 1.0)


def test_a_folder_with_the_official_files(tmp_path: Path) -> None:
    train, dev = {**OFFICIAL, "question": "train?"}, {**OFFICIAL, "question": "dev?"}
    (tmp_path / "hotpot_train_v1.1.json").write_text(json.dumps([train, {**train, "level": "easy"}]))
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([dev]))
    (tmp_path / "hotpot_dev_fullwiki_v1.json").write_text(json.dumps([{**dev, "question": "fullwiki?"}]))
    (tmp_path / "hotpot_test_fullwiki_v1.json").write_text(json.dumps([{"_id": "1", "question": "q", "context": []}]))
    splits = questions(str(tmp_path))[0]
    assert {split: [row["question"] for row in rows] for split, rows in splits.items()} == {
        "train": ["train?", "train?"],
        "validation": ["dev?"],
        "test": ["dev?"],
    }
    assert [row["level"] for row in questions(str(tmp_path), ["medium"])[0]["train"]] == ["medium"]
    with pytest.raises(ConfigError, match="no question of the levels hard"):
        questions(str(tmp_path), ["hard"])


def test_an_official_file_is_the_split_that_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps([OFFICIAL]))
    assert list(questions(str(path))[0]) == ["validation"]
    assert expert_plays(make(data=str(path))) == (True, 1.0)


@pytest.mark.parametrize("hidden", [None, ""])
def test_a_test_file_without_answers_is_passed_over(hidden: str | None, tmp_path: Path) -> None:
    """As 2WikiMultihopQA's own, which goes by the name of test.json."""
    for name, row in (("train", OFFICIAL), ("dev", {**OFFICIAL, "question": "dev?"})):
        (tmp_path / f"{name}.json").write_text(json.dumps([row]))
    (tmp_path / "test.json").write_text(json.dumps([{**OFFICIAL, "answer": hidden, "supporting_facts": []}]))
    assert {split: rows[0]["question"] for split, rows in questions(str(tmp_path))[0].items()} == {
        "train": OFFICIAL["question"],
        "validation": "dev?",
        "test": "dev?",
    }


def test_all_environments_share_one_index_of_loaded_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([OFFICIAL]))
    before = len(ENGINES._engines)
    first, second = make(data=str(path)), make(data=str(path), levels=["medium"])
    assert expert_plays(first) == expert_plays(second) == (True, 1.0)
    assert len(ENGINES._engines) <= before + 1
    assert first._searched.engine(first._task) is second._searched.engine(second._task)


def test_written_worlds_come_back_as_data_and_as_a_corpus(tmp_path: Path) -> None:
    sizes = {"train": 12, "validation": 3, "test": 4}
    folder = write_embedded(tmp_path / "world", sizes)
    embedded = make()
    for kwargs in ({}, {"corpus": str(folder / "beir" / "corpus.jsonl")}):
        env = make(data=str(folder), **kwargs)
        assert {split: len(rows) for split, rows in env.tasks.items()} == sizes
        for split, size in sizes.items():
            for index in range(size):
                row = embedded.tasks[split][index]
                assert env.tasks[split][index] == {key: value for key, value in row.items() if key != "world"}
                # Of all worlds together a title is still found, though others may now share its words.
                assert expert_plays(env, split=split, index=index) == (True, 1.0)


def test_written_worlds_have_beirs_form(tmp_path: Path) -> None:
    beir = write_embedded(tmp_path, {"test": 5}) / "beir"
    corpus = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (beir / "queries.jsonl").read_text().splitlines()]
    assert {tuple(row) for row in corpus} == {("_id", "title", "text", "metadata")} and len(corpus) % 405 == 0
    titles = {row["_id"]: row["title"] for row in corpus}
    assert len(titles) == len(corpus) == len(set(titles.values()))
    head, *lines = (beir / "qrels" / "test.tsv").read_text().splitlines()
    assert head == "query-id\tcorpus-id\tscore"
    relevant: dict[str, set[str]] = {}
    for query, document, score in (line.split("\t") for line in lines):
        assert score == "1"
        relevant.setdefault(query, set()).add(titles[document])
    rows = make().tasks["test"][:5]
    assert [query["text"] for query in queries] == [row["question"] for row in rows]
    assert relevant == {row["_id"]: {title for title, _ in row["supporting_facts"]} for row in rows}


def test_a_corpus_decides_what_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"_id": "1", "title": "Elsewhere", "text": "Tobila is not here."}) + "\n")
    env = make(corpus=str(path))
    env.reset(seed=0, options={"task": OFFICIAL})
    text, *_, info = env.step(env.expert_action())
    assert text == "[1] Elsewhere: Tobila is not here." and info["metrics"]["gold_recall"] == 0.0


@pytest.fixture(scope="module")
def sample() -> Path:
    """Sixty real questions in the official form."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("AGENT_GYM_DATA", beside)) / "hotpotqa" / "distractor_sample_60.json"
    if not path.is_file():
        pytest.skip(f"no real HotpotQA rows: {path} does not exist (set AGENT_GYM_DATA)")
    return path


def test_real_questions(sample: Path) -> None:
    env = make(data=str(sample), top_k=5, max_turns=8)
    assert len(env.tasks["train"]) == 60
    played = [expert_plays(env, split="train", index=index) for index in range(60)]
    assert all(success for success, _ in played)
    recall = sum(found for _, found in played) / 60
    assert recall > 0.95, "titles find what they name"
    assert (env.answer("<answer>unknown</answer>")).success is False


def test_one_search_finds_half_of_what_real_questions_need(sample: Path) -> None:
    env = make(data=str(sample), top_k=5)
    found = []
    for index in range(60):
        question, _ = env.reset(seed=0, options={"split": "train", "index": index})
        call = env.parser.render("search", {"query": env.tasks["train"][index]["question"]})
        found.append(env.step(call)[4]["metrics"]["gold_recall"])
    assert 0.6 < sum(found) / 60 < 0.95 and sum(share == 1.0 for share in found) < 50


def test_official_evaluation_of_real_questions(sample: Path) -> None:
    rows = json.loads(sample.read_text())
    perfect = {
        "answer": {row["_id"]: row["answer"] for row in rows},
        "sp": {row["_id"]: row["supporting_facts"] for row in rows},
    }
    assert set(evaluate(perfect, rows).values()) == {1.0}
    half = {"answer": perfect["answer"], "sp": {row["_id"]: row["supporting_facts"] for row in rows[:30]}}
    scores = evaluate(half, rows)
    assert scores["em"] == 1.0 and scores["sp_em"] == scores["joint_f1"] == 0.5

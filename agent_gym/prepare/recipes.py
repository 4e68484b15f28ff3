"""The recipes, as data: what to fetch, in which revision, how large it is, and what it becomes.

A new data set is one entry here, and a function in formats.py if its rows have a form of their own. A task whose data
is an archive of files has an `archive`, and anything else pieces in `extra`, which know how to make themselves; for the
download of files there is `agent_gym.prepare.download.fetch`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agent_gym.prepare.formats import (
    MATH_PROBLEM,
    MULTI_HOP,
    MUSIQUE,
    WORD_PROBLEM,
    math_problem,
    multi_hop,
    musique,
    word_problem,
)
from agent_gym.prepare.recipe import Archive, Built, Hub, Recipe, Table

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
    convert=word_problem,
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
    paragraphs=10,
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
    shrink=0.93,  # without test, whose answers are not public
    paragraphs=10,
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
    shrink=0.59,  # as HotpotQA's parquet to its JSON
    paragraphs=20,
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
    shrink=0.0125,
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
    "items_human_ins.json, or that file of products beside the others",
    why="its files are on Google Drive, behind a page that asks whether one is human (setup.sh of "
    "github.com/princeton-nlp/WebShop has the links)",
    growth=0.6,
    growth_from="about; scaled from the small set",
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
    )
}

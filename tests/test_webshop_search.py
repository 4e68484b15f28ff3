"""The search engine against Lucene's own rankings, and its parts against what Lucene does with odd texts."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webshop_tools import needs_real, real_products, real_shop

from agent_gym.envs.webshop.index import Index, IndexBuilder, _add
from agent_gym.envs.webshop.words import stem, terms

# What Anserini 0.22.1 (Lucene 9.5) finds among the 1,000 products of the small set for each of the 1,664 queries that
# `real_queries` makes: a digest of the ids of the first 50, in order.
LUCENE = "84448cdc82635f77e8eae17ad5c8841b5f52272ab88c3ef184483198d81980ae"


def index_of(texts: dict[str, str], block: int = 1 << 20) -> tuple[Index, list[str]]:
    builder = IndexBuilder(block)
    for name, text in texts.items():
        builder.add(name, text.lower())
    arrays = builder.finish()
    return Index(builder.vocabulary.get, arrays), list(texts)


def scores(index: Index, query: str) -> np.ndarray:
    """The score of every document, with nothing left out."""
    total = np.zeros(len(index), np.float64)
    _add(total, index._postings(query))
    return total.astype(np.float32)


def real_queries() -> list[str]:
    found = []
    for product in real_products():
        found += [product.instruction.lower()] * bool(product.instruction)
        found += [asked["instruction"].lower() for asked in product.instructions]
        found += [product.query, product.title.lower()]
    return [query.replace("\n", " ") for query in dict.fromkeys(found)]


@needs_real
def test_every_query_is_ranked_as_lucene_ranks_it() -> None:
    products, shop = real_products(), real_shop()
    found = [[products[i].asin for i in shop.index.search(query, 50)] for query in real_queries()]
    assert len(found) == 1664
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest() == LUCENE


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("relational", "relat"), ("hopping", "hop"),
        ("controlling", "control"), ("generically", "gener"), ("analogies", "analog"), ("abli", "abli"),
        ("agreed", "agre"), ("sky", "sky"), ("happy", "happi"), ("is", "is"), ("adoption", "adopt"),
    ],
)  # fmt: skip
def test_stems_are_lucenes(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's the Men's 3.5mm Wi-Fi, U.S.A. 1,000;2", "men 3.5mm wi fi u.s.a 1,000;2"),
        ("o\u2019neil\u2019s \u00bd cup x\u00b2 _ a_b", "o\u2019neil cup x a_b"),
        ("\u65e5\u672c\u30ab\u30bf \u2764\ufe0f a:b 1:2", "\u65e5 \u672c \u30ab\u30bf \u2764\ufe0f a:b 1 2"),
        ("soft\u00adhyphen \u0e44\u0e17\u0e22x a\u200bz", "soft\u00adhyphen \u0e44\u0e17\u0e22 x z"),
        ("\u0939\u093f \ufeffbom 1\u066b5 \U0001f44d\U0001f3fd", "\u0939\u093f bom 1\u066b5 \U0001f44d\U0001f3fd"),
        ("", ""),
    ],
)
def test_texts_are_cut_as_lucene_cuts_them(text: str, expected: str) -> None:
    assert " ".join(terms(text)) == expected


def test_equal_scores_are_ordered_by_id() -> None:
    index, names = index_of({"b": "red shoe", "c": "blue shoe", "a": "red shoe"})
    assert [names[i] for i in index.search("Red red shoe", 3)] == ["a", "b", "c"]
    assert index.search("hat", 3) == [] and index.search("", 3) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc \u00e9.'1,", max_size=30), min_size=1, max_size=12), st.integers(1, 20))
def test_blocks_do_not_change_the_index(texts: list[str], block: int) -> None:
    named = {f"d{n}": text for n, text in enumerate(texts)}
    (whole, _), (cut, _) = index_of(named), index_of(named, block)
    for text in texts:
        assert np.array_equal(scores(whole, text), scores(cut, text))
        assert whole.search(text, 3) == cut.search(text, 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 25), min_size=1, max_size=8), st.integers(1, 60))
def test_what_is_left_out_of_a_search_is_not_among_the_best(seed: int, query: list[int], k: int) -> None:
    # Words of all frequencies, from one in every other document to one in a hundred, so that searches leave some out.
    words = [f"w{n}" for n in range(26)]
    rng = np.random.default_rng(seed)
    drawn = rng.random((300, 26)) < 0.6 / np.arange(1, 27)
    index, _ = index_of(
        {f"{n:03}": " ".join(np.repeat(words, rng.integers(1, 3, 26) * one)) for n, one in enumerate(drawn)}
    )
    query_text = " ".join(words[n] for n in query)
    score = scores(index, query_text)
    order = np.lexsort((np.arange(300), -score))
    assert index.search(query_text, k) == [n for n in order[:k].tolist() if score[n] > 0]

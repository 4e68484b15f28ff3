"""What the plan says an index takes is what a real index takes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("faiss")

from agent_gym.errors import ConfigError
from agent_gym.search.encoder import normalised
from agent_gym.search.index import KINDS, faiss_threads, new_index, training_vectors, write_index
from agent_gym.search.plan import plan, plan_table, plans


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimension", [16, 64])
def test_the_plan_is_what_an_index_takes(tmp_path, kind, dimension):
    count = max(4000, KINDS[kind].minimum)
    vectors = normalised(np.random.default_rng(0).standard_normal((count, dimension)))
    index = new_index(kind, count, dimension)
    if kind == "pq":
        index.pq.cp.niter = 1
    if kind == "hnsw_sq8":
        index.hnsw.efConstruction = 8
    with faiss_threads(1):
        if training_vectors(kind, count):
            index.train(vectors)
        index.add(vectors)
    write_index(index, tmp_path / "index")
    assert (tmp_path / "index").stat().st_size == pytest.approx(plan(count, dimension, kind).index, rel=0.01)


def test_the_plan_of_all_of_wikipedia():
    """5.23 million abstracts in 1024 numbers; the research measured 656 bytes per vector of 384 for HNSW over bytes."""
    size = {each.kind: each for each in plans(5_230_000, 1024)}
    assert set(size) == set(KINDS)
    assert size["flat"].index == 5_230_000 * 4096
    assert size["flat"].gpu == size["sqfp16"].gpu == size["sqfp16"].vectors == 5_230_000 * 2048
    assert size["hnsw_sq8"].index == pytest.approx(5_230_000 * 1296, rel=0.001) and size["hnsw_sq8"].gpu is None
    assert plan(1_000_000, 384, "hnsw_sq8").index == pytest.approx(656_000_000, rel=0.001)
    assert all(each.index < each.building < 2.5 * each.index for each in size.values())


def test_the_table_marks_what_auto_chooses():
    table = plan_table(5_230_000, 1024)
    assert [line.split()[1] for line in table.splitlines() if line.startswith("*")] == ["hnsw_sq8"]
    assert "19.95 GiB" in table and all(kind in table for kind in KINDS)
    small = plan_table(30, 384)
    assert "* flat" in small and "ivf_flat" not in small and "pq" not in small


def test_a_kind_that_cannot_be_made_has_no_plan():
    with pytest.raises(ConfigError, match="at least 10,240"):
        plan(1000, 384, "pq")

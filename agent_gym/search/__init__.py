"""Search: documents for queries, from BM25, dense vectors, both, or a server."""

from agent_gym.search.base import Document, Hit, Retriever
from agent_gym.search.bm25 import BM25Retriever
from agent_gym.search.build import build_index
from agent_gym.search.corpus import Corpus
from agent_gym.search.dense import DenseRetriever
from agent_gym.search.encoder import make_encoder
from agent_gym.search.engines import CachedRetriever, HybridRetriever, MicroBatcher, RemoteRetriever

__all__ = [
    "BM25Retriever",
    "CachedRetriever",
    "Corpus",
    "DenseRetriever",
    "Document",
    "Hit",
    "HybridRetriever",
    "MicroBatcher",
    "RemoteRetriever",
    "Retriever",
    "build_index",
    "make_encoder",
]

"""Search: documents for queries, from BM25, dense vectors, both, or a server."""

from agent_gym.retrieval.base import Document, Hit, Retriever
from agent_gym.retrieval.batcher import MicroBatcher
from agent_gym.retrieval.build import build_index
from agent_gym.retrieval.cache import CachedRetriever
from agent_gym.retrieval.corpus import Corpus
from agent_gym.retrieval.dense import DenseRetriever
from agent_gym.retrieval.encoder_models import make_encoder
from agent_gym.retrieval.hybrid import HybridRetriever
from agent_gym.retrieval.lexical import BM25Retriever
from agent_gym.retrieval.remote import RemoteRetriever

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

"""Search: documents for queries, from BM25, dense vectors, both, or a server."""

from agent_gym.retrieval.base import Document, Hit, Retriever

__all__ = ["Document", "Hit", "Retriever"]

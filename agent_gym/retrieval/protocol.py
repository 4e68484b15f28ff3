r"""Search-R1's `/retrieve`, as JSON: what its server, and those of SkyRL, verl and slime, read and write.

    POST /retrieve {"queries": ["...", ...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\"title\"\ntext"}, "score": 1.5}, ...], ...]}

Without scores, the inner lists hold the documents themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.retrieval.base import Document, Hit

# A full batch of the longest queries, with twelve bytes for an emoji in JSON, and some room.
MAX_REQUEST_BYTES = 16 * 2**20
MAX_QUERIES = 64
MAX_TOPK = 1000


def to_wire(document: Document) -> dict[str, str]:
    """Write a document: the title in quotes on a line of its own, then the text."""
    return {"id": document.id, "contents": f'"{document.title.replace(chr(10), " ")}"\n{document.text}'}


def from_wire(document: Mapping[str, Any]) -> Document:
    """Read a document; titles come back with spaces for line breaks.

    Raises:
        ValueError: if it has no `contents`.
    """
    contents = document.get("contents")
    if not isinstance(contents, str):
        raise ValueError(f"a document has no contents: {str(document)[:100]}")
    title, newline, text = contents.partition("\n")
    if not newline:
        title, text = "", contents
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Document(str(document.get("id", "")), title, text)


def response(found: Sequence[Sequence[Hit]], return_scores: bool) -> dict[str, Any]:
    """Write what was found."""
    if not return_scores:
        return {"result": [[to_wire(hit.document) for hit in hits] for hits in found]}
    return {"result": [[{"document": to_wire(hit.document), "score": hit.score} for hit in hits] for hits in found]}


def read_response(data: bytes, count: int) -> list[list[Hit]]:
    """Read what was found for `count` queries.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        lists = json.loads(data)["result"]
        found = [[Hit(from_wire(row["document"]), float(row["score"])) for row in rows] for rows in lists]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no list of documents with scores for each query: {data[:100]!r}") from error
    if len(found) != count:
        raise ValueError(f"{len(found)} results for {count} queries")
    return found

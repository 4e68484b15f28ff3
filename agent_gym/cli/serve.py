"""`agent-gym serve search`: a search engine that many trainers and machines share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from agent_gym.cli.parser import Parser, positive
from agent_gym.retrieval.base import Document, Retriever
from agent_gym.retrieval.batcher import MicroBatcher
from agent_gym.retrieval.cache import CachedRetriever
from agent_gym.retrieval.hybrid import HybridRetriever
from agent_gym.retrieval.opening import open_corpus, open_index
from agent_gym.retrieval.server import SearchServer, bind


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted."""
    parser = Parser(
        "serve", "Serve a search engine over HTTP, with Search-R1's protocol (POST /retrieve, GET /health)."
    )
    parser.add_argument("what", choices=["search"], help="what to serve")
    help_text = "a corpus folder, a .jsonl, .json or .parquet file, or a data set of the hub"
    parser.add_argument("--corpus", required=True, help=help_text)
    help_text = "folders of indexes of the corpus, or bm25 to make that one now; the results of several are fused"
    parser.add_argument("--index", nargs="+", default=["bm25"], metavar="INDEX", help=help_text)
    parser.add_argument("--device", default="cpu", help="where a dense index encodes queries: cpu, cuda, cuda:1")
    help_text = "address to listen on; anyone who reaches it can search, so beware of 0.0.0.0"
    parser.add_argument("--host", default="127.0.0.1", help=help_text)
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    parser.add_argument("--topk", type=positive, default=3, help="documents per query where a request does not say")
    parser.add_argument("--cache", type=positive, default=10_000, help="results to keep for queries that come again")
    arguments = parser.parse(argv)
    # Taken before an index is built for an hour, and restored for those who call this from a program of their own.
    listener = bind(arguments.host, arguments.port)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with listener, open_corpus(arguments.corpus, progress=True) as corpus:
            engine = _open(arguments.index, corpus, arguments.device)
            about = {"documents": len(corpus), "index": arguments.index}
            shared = CachedRetriever(MicroBatcher(engine), arguments.cache)
            with SearchServer(shared, listener, topk=arguments.topk, about=about) as server:
                print(f"serving {len(corpus)} documents at {server.url}/retrieve", file=sys.stderr, flush=True)
                server.serve_forever()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _open(indexes: Sequence[str], corpus: Sequence[Document], device: str) -> Retriever:
    engines = [open_index(name, corpus, device) for name in indexes]
    return engines[0] if len(engines) == 1 else HybridRetriever(engines)


def _stop(signum: int, frame: object) -> NoReturn:
    """Treat the end that a scheduler sends like Ctrl-C."""
    raise KeyboardInterrupt

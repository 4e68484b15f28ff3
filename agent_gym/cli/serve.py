"""`agent-gym serve`: a model, a search engine or a sandbox, which many trainers share, or a shop for a person."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NoReturn

from agent_gym.cli.parser import CommandParser, positive, run_kind
from agent_gym.models import check_model
from agent_gym.policies.vllm import set_environment
from agent_gym.policies.vllm.launch import ENVIRONMENT, VARIABLE, key_file, server_command, server_key
from agent_gym.rollout import make_env
from agent_gym.sandbox import PROPERTIES, Limits, LocalSandbox
from agent_gym.search.engines import CachedRetriever, HybridRetriever, MicroBatcher, open_index
from agent_gym.search.sources import open_corpus

_WEBSHOP = "AgentR1/WebShop-v0"


def serve(argv: Sequence[str]) -> int:
    """Serve a model, a search engine, a sandbox or a shop over HTTP."""
    kinds = {"model": _model, "search": _search, "sandbox": _sandbox, "webshop": _webshop}
    return run_kind("serve", serve.__doc__, kinds, argv)


def _model(argv: Sequence[str]) -> int:
    """Serve a model by vLLM to trainers with --layout server, which replace its weights.

    Anything behind -- goes to `vllm serve`: -- --data-parallel-size 2 --gpu-memory-utilization 0.9
    """
    parser = CommandParser("serve model", _model.__doc__)
    parser.flag("model", "folder, hub id, or smollm2 (agent-gym prepare)")
    add_address(parser, 8010, "sample from the model, and with its key replace the weights and run code")
    help_text = "longest sequence in tokens, at least max_episode_tokens of the trainer"
    parser.flag("--context", help_text, type=positive, default=4096)
    parser.flag("--max_num_seqs", "most requests decoded at once", type=positive, default=256)
    parser.flag("--kv_cache_gib", "GiB of key/value cache, on a CPU", type=float, default=1.0)
    end = list(argv).index("--") if "--" in argv else len(argv)
    arguments = parser.parse(argv[:end])
    check_model(arguments.model)
    from agent_gym.serve.server import bind

    # An address that cannot be had is an error now, and 0 becomes the number of a port that trainers can be told.
    with bind(arguments.host, arguments.port) as listener:
        port = listener.getsockname()[1]
    # vLLM takes this process over: signals, logs and exit status are its own.
    command = server_command(
        arguments.model,
        host=arguments.host,
        port=port,
        context=arguments.context,
        max_num_seqs=arguments.max_num_seqs,
        kv_cache_gib=arguments.kv_cache_gib,
        further=argv[end + 1 :],
    )
    set_environment()
    # It was set for an engine in this process; a server's engine runs in a separate one.
    os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    server_key()  # a key that cannot be had is an error now
    place = f"${VARIABLE}" if os.environ.get(VARIABLE) else key_file()
    print(
        f"serving {arguments.model} at http://{arguments.host}:{port} once it has loaded, to trainers with "
        f"the key in {place}",
        file=sys.stderr,
    )
    os.execve(command[0], command, {**os.environ, **ENVIRONMENT})


def _search(argv: Sequence[str]) -> int:
    """Serve a search engine over HTTP, with Search-R1's protocol (POST /retrieve, GET /health)."""
    parser = CommandParser("serve search", _search.__doc__)
    parser.flag(
        "--corpus", "a corpus folder, a .jsonl, .json or .parquet file, or a data set of the hub", required=True
    )
    help_text = "folders of indexes of the corpus, or bm25 to make that one now; the results of several are fused"
    parser.flag("--index INDEX", help_text, nargs="+", default=["bm25"])
    parser.flag("--device", "where a dense index encodes queries: cpu, cuda, cuda:1", default="cpu")
    add_address(parser, 8000, "search")
    parser.flag("--topk", "documents per query where a request names no number", type=positive, default=3)
    parser.flag("--cache", "results to keep for queries that come again", type=positive, default=10_000)
    arguments = parser.parse(argv)
    from agent_gym.serve.services import SearchServer

    # The address is taken before an index is built for an hour.
    with listening(arguments.host, arguments.port) as listener, open_corpus(arguments.corpus, progress=True) as corpus:
        engines = [open_index(name, corpus, arguments.device) for name in arguments.index]
        engine = engines[0] if len(engines) == 1 else HybridRetriever(engines)
        about = {"documents": len(corpus), "index": arguments.index}
        shared = CachedRetriever(MicroBatcher(engine), arguments.cache)
        with SearchServer(shared, listener, topk=arguments.topk, about=about) as server:
            print(f"serving {len(corpus)} documents at {server.url}/retrieve", file=sys.stderr, flush=True)
            server.serve_forever()
    return 0


def _sandbox(argv: Sequence[str]) -> int:
    """Run programs over HTTP, with SandboxFusion's protocol (POST /run_code, GET /health)."""
    usual = Limits()
    parser = CommandParser("serve sandbox", _sandbox.__doc__)
    add_address(parser, 8080, "run programs")
    parser.flag("--slots", "programs at the same time; two per core unless given", type=positive)
    help_text = "CPU seconds of a program; a request can ask for less of this and of the next two"
    parser.flag("--cpu_seconds", help_text, type=float, default=usual.cpu_seconds)
    parser.flag("--wall_seconds", "seconds of a program", type=float, default=usual.wall_seconds)
    parser.flag("--memory_mb", "MiB of a program", type=positive, default=usual.memory_mb)
    help_text = "what may go unenforced, if this machine cannot do better; see docs/sandbox.md"
    parser.flag("--waive PROPERTY", help_text, nargs="+", default=[], choices=PROPERTIES)
    arguments = parser.parse(argv)
    from agent_gym.serve.services import SandboxServer

    limits = Limits(arguments.cpu_seconds, arguments.wall_seconds, arguments.memory_mb)
    with listening(arguments.host, arguments.port) as listener:
        sandbox = LocalSandbox(limits, slots=arguments.slots, waive=set(arguments.waive))
        with closing(sandbox), SandboxServer(sandbox, listener) as server:
            print(f"running programs at {server.url}/run_code", file=sys.stderr, flush=True)
            server.serve_forever()
    return 0


def _webshop(argv: Sequence[str]) -> int:
    about = f"Shop yourself: {_WEBSHOP} as a web page, with its reward and all parts of it."
    parser = CommandParser("serve webshop", about)
    add_address(parser, 8090, "shop")
    parser.add_env_kwargs()
    arguments = parser.parse(argv)

    def make() -> Any:
        return make_env(_WEBSHOP, arguments.env_kwargs).unwrapped

    env = make()  # a mistake is an error now, not for the first visitor
    with listening(arguments.host, arguments.port) as listener, env.server(make, listener) as server:
        print(f"open {server.url} in a browser", file=sys.stderr, flush=True)
        server.serve_forever()
    return 0


def add_address(parser: CommandParser, port: int, deed: str) -> None:
    """Add the flags of where to listen; anyone who reaches it can do the `deed`."""
    help_text = f"address to listen on; anyone who reaches it can {deed}, so beware of 0.0.0.0"
    parser.flag("--host", help_text, default="127.0.0.1")
    parser.flag("--port", "port to listen on; 0 takes a free one", type=int, default=port)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Take an address, and end well when the user or a scheduler stops the process: SIGTERM is treated like Ctrl-C."""
    from agent_gym.serve.server import bind

    def stop(signum: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    listener = bind(host, port)
    # Restored for callers in other programs.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with listener:
            yield listener
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)

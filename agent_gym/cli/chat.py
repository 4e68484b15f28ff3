"""`agent-gym chat ENV`: talk to a policy that uses the environment's tools, in the terminal or in a browser."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_gym.cli import engine
from agent_gym.cli.parser import Parser, positive
from agent_gym.cli.play import ask
from agent_gym.errors import ConfigError, require
from agent_gym.policies import Policy
from agent_gym.registry import check_env_id

if TYPE_CHECKING:
    from agent_gym.chatting import Conversation


def main(argv: Sequence[str]) -> int:
    """Talk until the person leaves."""
    arguments = make_parser().parse(argv)
    check_env_id(arguments.env_id)
    if not (arguments.model or arguments.endpoint):
        raise ConfigError("who answers? give --model with a folder or hub id, or --endpoint with a server's address")
    if arguments.web:
        return _serve(arguments)
    require("rich", "train")
    from rich.console import Console

    from agent_gym.chatting.terminal import Terminal

    with _conversation(arguments) as conversation:
        Terminal(conversation, arguments.model or arguments.endpoint, Console()).run(ask)
    return 0


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser("chat", "Talk to a policy that uses an environment's tools: your words take the place of its task.")
    parser.add_argument("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    group = parser.add_argument_group("who answers")
    help_text = "model folder or hub id, or the model's name at an endpoint"
    group.add_argument("--model", "--model_name_or_path", metavar="PATH", help=help_text)
    help_text = "a server that speaks OpenAI's protocol, such as http://127.0.0.1:8000/v1"
    group.add_argument("--endpoint", metavar="URL", help=help_text)
    help_text = "folder or hub id of the tokenizer, where an endpoint does not tell"
    group.add_argument("--tokenizer", metavar="PATH", help=help_text)
    group.add_argument(
        "--engine", choices=engine.ENGINES, default="auto", help="what samples; auto takes vLLM where it is installed"
    )
    group.add_argument("--temperature", type=float, default=0.0, help="of the sampling; 0 is greedy")
    parser.add_env_kwargs()
    group = parser.add_argument_group("the world that the tools look into")
    group.add_argument("--split", help="split of the task whose world it is; default: the environment's own")
    group.add_argument("--index", type=int, help="which task of the split; default: drawn by the seed")
    group.add_argument("--seed", type=int, default=0, help="seed of the world and of the sampling")
    group = parser.add_argument_group("limits")
    group.add_argument("--max_turns", type=positive, metavar="N", default=16, help="turns of the policy per message")
    group.add_argument("--max_turn_tokens", type=positive, metavar="N", default=1024, help="tokens sampled per turn")
    group.add_argument("--max_tokens", type=positive, metavar="N", default=8192, help="tokens of the conversation")
    group = parser.add_argument_group("where")
    group.add_argument("--web", action="store_true", help="serve a web page to this machine instead")
    group.add_argument("--port", type=int, default=8070, help="its port; 0 takes a free one")
    return parser


@contextmanager
def _conversation(arguments: Namespace) -> Iterator[Conversation]:
    from agent_gym.chatting import Conversation, Limits
    from agent_gym.rollout import EpisodeSpec, make_env

    limits = Limits(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns)
    spec = EpisodeSpec(
        arguments.env_id, arguments.env_kwargs, seed=arguments.seed, split=arguments.split, index=arguments.index
    )
    # Before a model is loaded: the mistakes in these arguments are cheap to find.
    make_env(spec.env_id, spec.env_kwargs).close()
    tokenizer, policy = _policy(arguments, limits.tokens)
    env = make_env(spec.env_id, spec.env_kwargs, tokenizer)
    try:
        yield Conversation(env, policy, tokenizer, spec, limits, temperature=arguments.temperature)
    finally:
        env.close()
        policy.close()


def _policy(arguments: Namespace, context: int) -> tuple[Any, Policy]:
    if not arguments.endpoint:
        return engine.build(arguments.model, arguments.engine, context=context, seed=arguments.seed)
    from agent_gym.cli.endpoint import build_endpoint

    return build_endpoint(
        arguments.endpoint,
        arguments.model,
        arguments.tokenizer,
        env_id=arguments.env_id,
        env_kwargs=arguments.env_kwargs,
        context=context,
        concurrency=1,
    )


def _serve(arguments: Namespace) -> int:
    from agent_gym.chatting.server import ChatServer
    from agent_gym.cli.serve import until_stopped
    from agent_gym.serving import bind

    listener = bind(port=arguments.port)
    with until_stopped(), listener, _conversation(arguments) as conversation:
        with ChatServer(conversation, arguments.model or arguments.endpoint, listener) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            print(f"open {server.url} in a browser; Ctrl-C ends it", file=sys.stderr, flush=True)
            try:
                server.talk()
            finally:
                server.shutdown()
                thread.join()
    return 0

"""The one address at which the rendezvous of the trainers listens: by it the other machines reach this one.

torchrun's c10d rendezvous keeps its state in a TCP store, and reads it with pickle (torch 2.13,
`dynamic_rendezvous._BackendRendezvousStateHolder`). Whoever reaches the port of the store can run code on all machines.
torch lets the store listen at every address of its machine; here it listens at one, which must be private.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from agent_gym.errors import ConfigError

ADDRESS = "AGENT_GYM_RENDEZVOUS_ADDRESS"
"""The environment variable with the address, for the process that holds the store."""


def listening_address(nodes: Sequence[str], port: int, *, public: bool = False) -> str:
    """Return the address of this machine, the first of `nodes`, by which the others reach it.

    The name of a machine does not help: Debian resolves it to 127.0.1.1 on the machine itself. Nothing is sent.

    Raises:
        ConfigError: if the others reach it by different addresses, or by a public one that is not allowed.
    """
    found = {_source(node, port) for node in nodes[1:]} or {_resolved(nodes[0], port)}
    if len(found) > 1:
        several = f"launch: {', '.join(nodes[1:])} reach {nodes[0]} by different addresses, {', '.join(sorted(found))}"
        raise ConfigError(f"{several}: name all of them in one network")
    address = found.pop()
    if ipaddress.ip_address(address.partition("%")[0]).is_global and not public:
        raise ConfigError(
            f"launch: {nodes[0]} is reached at {address}, a public address, and whoever reaches the port of the "
            "rendezvous can run code on all machines: name the machines by addresses of a private network, or give "
            "--allow_public_address if a firewall keeps others away"
        )
    return address


def _resolved(host: str, port: int) -> str:
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"launch: the machine {host!r} is unknown here: {error.strerror}") from error


def _source(host: str, port: int) -> str:
    """Return the address from which this machine would send to another one."""
    address = _resolved(host, port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.connect((address, port))
        except OSError as error:
            raise ConfigError(f"launch: there is no way to the machine {host!r}: {error.strerror}") from error
        return str(one.getsockname()[0])


def bind_store() -> None:
    """Let the store of torch's rendezvous in this process listen at the address in `ADDRESS` only, if it is given."""
    address = os.environ.get(ADDRESS)
    if not address:
        return
    backend: Any = import_module("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    plain = backend.TCPStore

    def store(host: str, port: int, *, is_master: bool = False, **more: Any) -> Any:
        if not is_master:
            return plain(host, port, is_master=False, **more)
        try:
            listening = socket.create_server(
                (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=4096
            )
        except OSError as error:
            raise RuntimeError(f"the rendezvous cannot listen at {address}:{port}: {error.strerror}") from error
        return plain(address, port, is_master=True, master_listen_fd=listening.detach(), **more)

    backend.TCPStore = store

"""What all servers of this package do over HTTP: other sites get nothing, and clients that hold on do not stop them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from process_tools import until
from search_tools import CountingRetriever, expected, running
from serve_tools import Served, ask

from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.sandbox import LocalSandbox, SandboxUnavailable
from agent_gym.search import RemoteRetriever
from agent_gym.serve import server as serving
from agent_gym.serve.server import Server, bind
from agent_gym.serve.services import SandboxServer, SearchServer

TIMEOUT = 60
WORK = {
    "search": ("/retrieve", {"queries": ["x"], "topk": 1}),
    "sandbox": ("/run_code", {"code": "print(1)"}),
    "webshop": ("/start", {}),
    "chat": ("/stop", {}),
}
LOOK = {"search": "/health", "sandbox": "/health", "webshop": "/", "chat": "/"}


@pytest.fixture(scope="module", params=WORK)
def one(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Each kind of server on this machine: its kind, and its address."""
    with ExitStack() as stack:
        if request.param == "chat":
            server: Server = stack.enter_context(Served([])).server
        elif request.param == "webshop":
            server = stack.enter_context(running(WebShopEnv.server(WebShopEnv, bind(port=0))))
        elif request.param == "sandbox":
            try:
                sandbox = LocalSandbox(servers=1, packages=())
            except SandboxUnavailable as error:
                pytest.skip(str(error))
            stack.callback(sandbox.close)
            server = stack.enter_context(running(SandboxServer(sandbox, bind(port=0))))
        else:
            server = stack.enter_context(running(SearchServer(CountingRetriever(), bind(port=0))))
        yield request.param, server.url


# Other sites.


@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "127.0.0.1.evil.example:8000"},
        {"Host": "192.168.1.1"},
        {"Host": "[::1"},
        {"Host": ""},
    ],
)
def test_pages_of_other_sites_get_nothing(one: tuple[str, str], foreign: dict[str, str]) -> None:
    kind, address = one
    for path, body in (WORK[kind], (LOOK[kind], None), ("/health", None), ("/elsewhere", {})):
        status, answer, headers = ask(address, path, body, **foreign)
        assert status == 403 and headers["Connection"] == "close"
        assert answer["detail"].startswith(("Host is", "Origin is"))


def test_this_machine_and_pages_of_the_server_itself_are_answered(one: tuple[str, str]) -> None:
    kind, address = one
    port = address.rpartition(":")[2]
    if LOOK[kind] == "/":
        policy = ask(address, "/")[2]["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ") and "frame-ancestors 'none'" in policy
    # Another port is that of a tunnel, whose other end is here.
    for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "127.0.0.1", "localhost:9000"):
        assert ask(address, LOOK[kind], Host=host)[0] == 200
        assert ask(address, *WORK[kind], Host=host, Origin=f"http://{host}")[0] == 200
    with socket.create_connection(("127.0.0.1", int(port)), timeout=TIMEOUT) as old:
        old.sendall(f"GET {LOOK[kind]} HTTP/1.0\r\n\r\n".encode())  # a probe without a Host, which no browser is
        assert old.makefile("rb").readline().split()[1] == b"200"


def test_a_refused_request_is_not_read_as_the_next_one(one: tuple[str, str]) -> None:
    kind, address = one
    host, port = address.removeprefix("http://").split(":")
    path, _ = WORK[kind]
    inner = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}"
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as raw:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n"
        raw.sendall(f"{head}Content-Length: {len(inner)}\r\n\r\n{inner}".encode())
        assert raw.makefile("rb").read().count(b"HTTP/1.1 ") == 1


def test_a_server_for_other_machines_still_refuses_their_pages() -> None:
    with running(SearchServer(CountingRetriever(), bind("0.0.0.0", 0))) as server:
        address = f"http://127.0.0.1:{server.address[1]}"
        assert ask(address, *WORK["search"], Host="search.example:8000")[0] == 200
        assert ask(address, *WORK["search"], Host="a.example", Origin="http://a.example")[0] == 200
        assert ask(address, *WORK["search"], Host="a.example", Origin="http://evil.example")[0] == 403


# Clients that hold on.


@pytest.mark.parametrize(
    ("head", "rest", "status"),
    [
        ("POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n", "x", b"408"),
        ("POST /retrieve HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 9000\r\n\r\n", "x", b"403"),
        ("POST /retrieve HTTP/1.1\r\n", "X: y\r\n", b""),
        ("G", "G", b""),
    ],
)
def test_a_request_that_does_not_arrive_holds_nothing(
    head: str, rest: str, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece now and then, for minutes: each is in time, and all together are not."""
    for limit in ("_HEAD_S", "_BODY_S", "_DISCARD_S"):
        monkeypatch.setattr(serving, limit, 0.5)
    ended = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.05):
                raw.sendall(rest.encode())

    with running(SearchServer(CountingRetriever(), bind(port=0))) as server:
        with socket.create_connection(server.address[:2], timeout=TIMEOUT) as raw:
            raw.sendall(head.encode())
            thread = threading.Thread(target=trickle)
            thread.start()
            answer = b""
            # It is closed with bytes on their way, which ends in a reset. Read in pieces: what came before it stays.
            with contextlib.suppress(ConnectionError):
                while piece := raw.recv(4096):
                    answer += piece
            ended.set()
            thread.join()
        assert status in answer[:20]
        assert ask(server.url, *WORK["search"])[0] == 200


SEARCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
sys.path.insert(0, "TESTS")
from search_tools import CountingRetriever
from agent_gym.search.engines import MicroBatcher
from agent_gym.serve import server as serving
from agent_gym.serve.services import SearchServer, bind
serving._HEAD_S = 2.0
input()
with SearchServer(MicroBatcher(CountingRetriever()), bind(port={port})) as server:
    print(server.address[1], flush=True)
    server.serve_forever()
""".replace("TESTS", str(Path(__file__).parent))


@contextmanager
def serving_process(code: str, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, which takes its port at `listen`."""
    command = [sys.executable, "-c", code.format(port=port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def listen(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return f"http://127.0.0.1:{process.stdout.readline().strip()}"


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("limits", "idle"), [("128, 128", 400), ("64, 1024", 300)])
def test_a_server_takes_as_many_files_as_it_may_and_waits_without_one(limits: str, idle: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        process = stack.enter_context(serving_process(SEARCH.replace("SOFT, HARD", limits)))
        address = listen(process)
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        for _ in range(idle):
            stack.enter_context(socket.create_connection(place, timeout=TIMEOUT))
        began, spent = time.monotonic(), cpu_seconds(process)
        if idle > 300:
            # Those that hold the room and send nothing make it for one that does.
            assert RemoteRetriever(address, timeout_s=TIMEOUT, retries=50).search(["x"], 1) == [expected("x", 1)]
            assert cpu_seconds(process) - spent < (time.monotonic() - began) / 4, "it waits, and does not spin"
        else:
            assert ask(address, *WORK["search"])[0] == 200
        assert process.poll() is None


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_loses_no_request() -> None:
    """Ask by 16 threads while the server is killed and, 3 seconds later, started again; each answer must be right."""
    code = SEARCH.replace("SOFT, HARD", "1024, 4096")
    answered, ended = Counter[int](), threading.Event()
    with ExitStack() as stack:
        process = stack.enter_context(serving_process(code))
        address = listen(process)
        # Loaded already, so that no more than the 3 seconds go by before it takes the port.
        successor = stack.enter_context(serving_process(code, int(address.rpartition(":")[2])))
        retriever = RemoteRetriever(address)

        def client(number: int) -> None:
            while not ended.is_set():
                text = f"{number}-{answered[number]}"
                assert retriever.search([text], 1) == [expected(text, 1)]
                answered[number] += 1

        def go_on() -> None:
            enough = max(answered.values(), default=0) + 3
            until(lambda: min(answered[number] for number in range(16)) >= enough)

        pool = stack.enter_context(ThreadPoolExecutor(16))
        stack.callback(ended.set)
        clients = [pool.submit(client, number) for number in range(16)]
        go_on()
        process.kill()
        process.wait()
        time.sleep(3)
        listen(successor)
        go_on()
    for one in clients:
        one.result()

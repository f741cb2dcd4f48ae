"""The page of a plan and runs on a local address: read-only, for this machine only, up to date during a search."""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from evolve.draw.view.candidates import marked
from evolve.draw.view.detail import Details
from evolve.draw.view.document import document, run_json
from evolve.draw.view.followed import Followed
from evolve.draw.view.html import Page
from evolve.draw.view.thinning import live
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

HOST = "127.0.0.1"
PORT = 8642
TRIED = 20  # ports from the wanted one on
KEPT = 64  # details that are kept
LEVEL = 5  # of compression: an answer takes no longer to pack than to send
HTML, JSON = "text/html; charset=utf-8", "application/json"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
HEADERS |= {"Cross-Origin-Resource-Policy": "same-origin"}


class Worker:
    """A thread in which one task after the other is done. It ends with the process, even in the middle of a task."""

    def __init__(self) -> None:
        self._tasks: Queue[tuple[Future[JsonObject], Callable[[], JsonObject]]] = Queue()
        threading.Thread(target=self._work, name="details", daemon=True).start()

    def submit(self, task: Callable[[], JsonObject]) -> Future[JsonObject]:
        """The promised result of the task."""
        future: Future[JsonObject] = Future()
        self._tasks.put((future, task))
        return future

    def _work(self) -> None:
        while True:
            future, task = self._tasks.get()
            try:
                future.set_result(task())
            except Exception as e:  # its future raises it
                future.set_exception(e)


class Shown:
    """The plan and the runs that a server shows, as JSON. Requests may come from several threads."""

    def __init__(self, runs: Sequence[Followed], plan: JsonObject | None = None) -> None:
        self._runs, self._plan, self._lock = list(runs), plan, threading.RLock()
        self._packed: tuple[list[Hashable] | None, bytes] = (None, b"")
        self._details: OrderedDict[tuple[int, int, bool], Future[JsonObject]] = OrderedDict()
        self._makers = [(run.run, Details(run.run, run.data)) for run in runs]
        self._worker = Worker()  # one detail at a time: the search needs the cores more

    def version(self) -> JsonObject:
        """The progress of each run."""
        with self._lock:
            self._refresh()
            return {"runs": [{"outcomes": len(run.story.rows), "state": run.state} for run in self._runs]}

    def document(self) -> bytes:
        with self._lock:
            self._refresh()
            versions = [run.version for run in self._runs]
            if self._packed[0] != versions:
                text = _dumped(document([_live(run) for run in self._runs], live=True, plan=self._plan))
                self._packed = versions, gzip.compress(text, LEVEL, mtime=0)
            return self._packed[1]

    def rest(self, run: int, after: int) -> bytes:
        """A run with the candidates from the `after`-th outcome on. Raises InputError if there is no such run."""
        with self._lock:
            self._refresh()
            return gzip.compress(_dumped({"run": run_json(self._run(run), after)}), LEVEL, mtime=0)

    def program(self, run: int, number: int) -> JsonObject:
        """The detail of a program, waited for. Raises InputError if there is no such run."""
        return self.detail(run, number).result()

    def detail(self, run: int, number: int) -> Future[JsonObject]:
        """The detail of a program, which is made in the background."""
        with self._lock:
            followed = self._run(run)
            if self._makers[run][0] is not followed.run:  # the folder holds another run now
                self._makers[run] = followed.run, Details(followed.run, followed.data)
                self._details.clear()
            best = number == followed.champion
            key = run, number, best
            if key in self._details:
                self._details.move_to_end(key)
                return self._details[key]
            outcome = followed.story.outcome(number)
            if outcome is None:
                raise InputError(f"cannot show {followed.name}:{number}: no such proposal. Reload the page.")
            maker = self._makers[run][1]
            self._details[key] = future = self._worker.submit(lambda: maker.of(outcome, best))
            while len(self._details) > KEPT:
                self._details.popitem(last=False)
            return future

    def warm(self) -> None:
        """Start with the champions' details: they are looked at first, and the kernels are compiled meanwhile."""
        for i, run in enumerate(self._runs):
            if run.champion is not None:
                self.detail(i, run.champion)

    def _refresh(self) -> None:
        for run in self._runs:
            run.refresh()

    def _run(self, number: int) -> Followed:
        if not 0 <= number < len(self._runs):
            raise InputError(f"cannot show run={number}: there are {len(self._runs)} runs. Reload the page.")
        return self._runs[number]


def _live(run: Followed) -> JsonObject:
    return live(run_json(run), marked(run.story, run.champion))


class PageServer(ThreadingHTTPServer):
    """A server of one page and its runs, on this machine alone."""

    daemon_threads = True

    def __init__(self, port: int, page: Page, shown: Shown) -> None:
        self.page, self.shown = page.live().encode(), shown
        self.policy = page.policy
        super().__init__((HOST, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def server_bind(self) -> None:
        """Bind the address as it is: a look-up of its name could take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.port

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser may close the connection during an answer."""


def serve(port: int | None, page: Page, shown: Shown) -> PageServer:
    """A server on this port; 0: on any; None: on PORT or, if that is taken, on one of the next ones.

    Raises InputError if none is free.
    """
    for candidate in range(PORT, PORT + TRIED) if port is None else (port,):
        try:
            return PageServer(candidate, page, shown)
        except OSError as e:
            problem = e.strerror or str(e)
    which = f"--port {port}" if port is not None else f"ports {PORT} to {PORT + TRIED - 1}"
    raise InputError(f"cannot listen on {which}: {problem}. Choose another --port, or 0 for any.")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds for a request to arrive

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if hosts not in ([f"{HOST}:{self.server.port}"], [f"localhost:{self.server.port}"]):
            # another name that leads here is how a foreign page would read this one (DNS rebinding)
            return self._send(HTTPStatus.FORBIDDEN, JSON, _problem("the Host header names another address"))
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            self._answer(url.path, query)
        except InputError as e:
            self._send(HTTPStatus.NOT_FOUND, JSON, _problem(str(e)))
        except _Wrong as e:
            self._send(HTTPStatus.BAD_REQUEST, JSON, _problem(f"{e} must be a whole number"))
        except OSError:
            raise  # the browser went away
        except Exception as e:  # the page shows it in place of what it asked for
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, JSON, _problem(f"{type(e).__name__}: {e}"))

    do_HEAD = do_GET

    def _answer(self, path: str, query: dict[str, str]) -> None:
        shown = self.server.shown
        if path == "/":
            self._send(HTTPStatus.OK, HTML, self.server.page)
        elif path == "/data" and "after" in query:
            self._send_packed(shown.rest(_whole(query, "run"), _whole(query, "after")))
        elif path == "/data":
            self._send_packed(shown.document())
        elif path == "/program":
            self._send(HTTPStatus.OK, JSON, _dumped(shown.program(_whole(query, "run"), _whole(query, "id"))))
        elif path == "/version":
            self._send(HTTPStatus.OK, JSON, _dumped(shown.version()))
        else:
            self._send(HTTPStatus.NOT_FOUND, JSON, _problem("there is no such page"))

    def _send_packed(self, packed: bytes) -> None:
        accepted = [part.split(";")[0].strip() for part in self.headers.get("Accept-Encoding", "").split(",")]
        if "gzip" in accepted:
            self._send(HTTPStatus.OK, JSON, packed, ("Content-Encoding", "gzip"))
        else:
            self._send(HTTPStatus.OK, JSON, gzip.decompress(packed))

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *more: tuple[str, str]) -> None:
        self.send_response(status)
        policy = f"{self.server.policy}; frame-ancestors 'none'"
        own = ("Content-Type", kind), ("Content-Length", str(len(body))), ("Content-Security-Policy", policy)
        for name, value in (*own, *HEADERS.items(), *more):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The standard library's own refusals, with our headers; of a method that nothing answers, 405."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.close_connection = True
        more = (("Allow", "GET, HEAD"),) if status == HTTPStatus.METHOD_NOT_ALLOWED else ()
        self._send(status, JSON, _problem(message or status.phrase), ("Connection", "close"), *more)

    def version_string(self) -> str:
        """The server's name, without versions."""
        return "evolve"

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: the terminal is for the one line with the address."""


class _Wrong(Exception):
    """A parameter of a request that is not a whole number."""


def _whole(query: dict[str, str], name: str) -> int:
    """A whole number of the query. Raises _Wrong without one."""
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _Wrong(name)
    return int(text)


def _problem(text: str) -> bytes:
    return _dumped({"problem": text})


def _dumped(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

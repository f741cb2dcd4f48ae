"""A server on loopback that answers chat completions in OpenAI's form as a script says.

The script is asked one request at a time, in order of arrival, and must not wait; replies are sent side by side.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple

from llm_replies import DRIP_S, Content, Reply, Request

PATH, LISTING = "/v1/chat/completions", "/v1/models"


class Paid(NamedTuple):
    """What a provider bills: answers of status 200 that state their usage and were sent whole, and their tokens."""

    answered: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class Server(ThreadingTCPServer):
    """Serves inside `with`. seen: every request for an answer, in order of arrival. listed: the models it names."""

    request_queue_size = 128

    def __init__(self, script: Callable[[Request], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.seen: list[Request] = []
        self.listed: Sequence[str] = ()
        self._paid: dict[str, Paid] = {}
        self.closing = threading.Event()
        self.lock = threading.RLock()  # a script may read the figures
        self._open: set[Any] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def by_model(self) -> dict[str, Paid]:
        """What was paid, by the model asked."""
        with self.lock:
            return dict(self._paid)

    @property
    def paid(self) -> Paid:
        """What was paid over all models."""
        return Paid(*map(sum, zip(Paid(), *self.by_model.values(), strict=True)))

    @property
    def answered(self) -> int:
        return self.paid.answered

    @property
    def tokens_in(self) -> int:
        return self.paid.tokens_in

    @property
    def tokens_out(self) -> int:
        return self.paid.tokens_out

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every reply where it stands; afterwards none of the server's threads is left. May be called again."""
        self.closing.set()
        self.shutdown()
        self._thread.join()
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):  # wakes the thread that reads from it or writes to it
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def hear(self, body: dict[str, Any], authorization: str) -> tuple[Request, Reply]:
        """Notes a request and asks the script for its reply."""
        with self.lock:
            request = Request(len(self.seen), body["model"], body["messages"], body, authorization)
            self.seen.append(request)
            return request, self.script(request)

    def pay(self, model: str, code: int, answer: Content) -> None:
        """Counts an answer that was sent whole, in which there is one."""
        if code == 200 and isinstance(answer, dict) and answer.get("choices") and (usage := answer.get("usage")):
            more = (1, usage["prompt_tokens"], usage["completion_tokens"])
            self._paid[model] = Paid(*map(sum, zip(self._paid.get(model, Paid()), more, strict=True)))

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that is gone is no news, a broken script is
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != LISTING or not self.server.listed:
            return self.send_error(404)
        body = json.dumps({"object": "list", "data": [{"id": name} for name in self.server.listed]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        raw = self.rfile.read(length)
        if len(raw) < length:
            raise ConnectionError("the client went away while it was asking")
        if self.path.partition("?")[0] != PATH:
            return self.send_error(404)
        request, reply = self.server.hear(json.loads(raw), self.headers.get("Authorization", ""))
        if reply.manner == "hang":
            self.server.closing.wait(reply.seconds)
            self.close_connection = True
            return None
        content = reply.content(request)
        text = json.dumps(content) if isinstance(content, dict) else content
        body = text.encode() if isinstance(text, str) else text
        self._head(reply, len(body))
        if reply.manner == "whole":
            self.wfile.write(body[:-1])
            with self.server.lock:  # so that a client which has it all finds it counted
                self.wfile.write(body[-1:])
                self.server.pay(request.model, reply.code, content)
        elif reply.manner == "drip":
            self._drip(body)
        else:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        return None

    def _head(self, reply: Reply, length: int) -> None:
        self.send_response(reply.code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(length), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _drip(self, body: bytes) -> None:
        """The spaces that it begins with one at a time, then the rest."""
        spaces = len(body) - len(body.lstrip(b" "))
        for i in range(spaces):
            self.wfile.write(body[i : i + 1])
            if self.server.closing.wait(DRIP_S):
                self.close_connection = True
                return
        self.wfile.write(body[spaces:])

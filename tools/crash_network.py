"""Networks that can be cut: a namespace of its own for a process, and a proxy through which connections go."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import suppress

PREFIX = "198.18.77"  # of addresses for tests of networks (RFC 2544), which no machine on the Internet has


class Namespace:
    """A network namespace, with one end of a pair of virtual interfaces; the other end is on this machine.

    Raises OSError if the user may not make one, or there is no `ip`.
    """

    host, inside = f"{PREFIX}.1", f"{PREFIX}.2"

    def __init__(self) -> None:
        self._name = f"crash-{os.getpid()}"
        self._outer, self._inner = f"cr{os.getpid()}a", f"cr{os.getpid()}b"
        if shutil.which("ip") is None:
            raise OSError("there is no `ip`")
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self._name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._outer)
            _ip("link", "set", self._outer, "up")
            for words in (
                ["addr", "add", f"{self.inside}/30", "dev", self._inner],
                ["link", "set", self._inner, "up"],
                ["link", "set", "lo", "up"],
            ):
                _ip("-n", self._name, *words)
        except OSError:
            self.close()
            raise

    @property
    def below(self) -> list[str]:
        """The command that starts another one inside."""
        return ["ip", "netns", "exec", self._name]

    def cut(self) -> None:
        """Unplug: packets are lost without a word in both directions."""
        _ip("-n", self._name, "link", "set", self._inner, "down")

    def restore(self) -> None:
        """Plug in again."""
        _ip("-n", self._name, "link", "set", self._inner, "up")

    def close(self) -> None:
        """Remove what was made."""
        for words in (["link", "del", self._outer], ["netns", "del", self._name]):
            with suppress(OSError):
                _ip(*words)


def _ip(*words: str) -> None:
    ended = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=30)
    if ended.returncode:
        raise OSError(f"ip {' '.join(words)}: {ended.stderr.strip()}")


class Link:
    """A port of this machine from which connections are passed on to another one, until the link is cut."""

    def __init__(self, to: int, port: int = 0) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._resetting = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Accept, and forward nothing."""
        self._open.clear()

    def reset(self) -> None:
        """Reset all connections, and every new one."""
        self._resetting = True
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _reset(each)

    def restore(self) -> None:
        """Forward again; what came while the link was silent, too."""
        self._resetting = False
        self._open.set()

    def close(self) -> None:
        """End all connections, and accept no more."""
        self.reset()
        self._listener.close()
        self._open.set()

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._listener.accept()
            except OSError:
                return
            if self._resetting:
                _reset(came)
            else:
                threading.Thread(target=self._connect, args=(came,), daemon=True).start()

    def _connect(self, came: socket.socket) -> None:
        self._open.wait()
        try:
            on = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            _reset(came)
            return
        with self._lock:
            self._sockets |= {came, on}
        for source, sink in ((came, on), (on, came)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        self._open.wait()  # an end is not heard either while the link is silent
        with self._lock:
            self._sockets -= {source, sink}
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _reset(connection: socket.socket) -> None:
    """End a connection by a reset."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread that waits in `recv` keeps the descriptor open, so that `close` alone would send nothing.
        connection.shutdown(socket.SHUT_RD)
    connection.close()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port

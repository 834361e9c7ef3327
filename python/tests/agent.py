# SPDX-License-Identifier: Apache-2.0
"""Agents that take pushes, refuse them, or hang."""

import http.server
import json
import socket
import threading
from typing import Any, Dict, List


class Agent:
    """Answers each push with a status, and keeps what it was told."""

    def __init__(self, status: int = 200) -> None:
        self.pushes: List[Dict[str, Any]] = []
        self.came = came = threading.Event()
        pushes = self.pushes

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                pushes.append({"path": self.path, "type": self.headers["Content-Type"], "body": body})
                self.send_response(status)
                self.end_headers()
                came.set()

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = "http://127.0.0.1:%d" % server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Bound:
    """A port where nobody listens, or where nobody answers."""

    def __init__(self, hangs: bool = False) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        if hangs:
            self._socket.listen(64)
        self.endpoint = "http://127.0.0.1:%d" % self._socket.getsockname()[1]

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
        self.came = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.pushes.append({"path": self.path, "headers": dict(self.headers), "body": json.loads(body)})
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                outer.came.set()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = "http://127.0.0.1:%d" % self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Hanging:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(64)
        self.endpoint = "http://127.0.0.1:%d" % self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Absent:
    """A port where nobody listens."""

    def __init__(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.endpoint = "http://127.0.0.1:%d" % s.getsockname()[1]

    def close(self) -> None:
        pass

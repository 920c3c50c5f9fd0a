"""A local stand-in for the W&B server: enough of its GraphQL and file stream for `init`, `log`, `finish` and resume.

It may also fail: `intercept` answers calls in its own way, `lie` replaces what the server says of a run that exists.
"""

import gzip
import json
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

KEY = "local-" + 40 * "0"  # the client wants forty characters after the prefix
USER = {"id": "u", "entity": "me", "username": "me", "name": "me", "email": "me@example.org", "admin": False,
        "flags": "{}", "teams": {"edges": []}, "apiKeys": {"edges": []},
        "deletedAt": None, "__typename": "User"}  # fmt: skip


class Reply(NamedTuple):
    """An answer that is not the server's own."""

    status: int
    content: bytes = b"<html>trouble</html>"


class WandbServer(ThreadingHTTPServer):
    """Keeps each run's bucket, and its history by offset, so that a repeated request changes nothing."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets: dict[str, dict] = {}
        self.history: dict[str, dict[int, dict]] = {}
        self.summary: dict[str, dict] = {}
        self.exit_code: dict[str, int] = {}
        self.intercept: Callable[[str], Reply | None] = lambda call: None  # told the operation, or "file_stream"
        self.lie: dict = {}
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, run: str) -> list[dict]:
        """History of a run by offset, without W&B's own columns."""
        ordered = [row for _, row in sorted(self.history[run].items())]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in ordered]

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are part of the tests."""

    def graphql(self, query: str, variables: dict) -> dict:
        if "upsertBucket" in query:
            return {"upsertBucket": {"inserted": True, "bucket": self._upsert(variables)}}
        if "RunResumeStatus" in query:
            bucket = self.buckets.get(variables["name"])
            bucket = bucket and {**bucket, **self.lie}
            return {"model": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": bucket}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        return {"viewer": USER}

    def _upsert(self, variables: dict) -> dict:
        name = variables["name"]
        new = {"id": name, "name": name, "displayName": name, "description": "", "config": "{}", "sweepName": None,
               "summaryMetrics": "{}", "historyLineCount": 0, "eventsLineCount": 0, "logLineCount": 0,
               "historyTail": "[]", "eventsTail": "[]", "tags": [], "wandbConfig": '{"t":{}}',
               "starred": False, "stopped": False,
               "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}}}  # fmt: skip
        bucket = self.buckets.setdefault(name, new)
        bucket |= {key: variables[key] for key in ("displayName", "config", "groupName", "tags") if variables.get(key)}
        return bucket

    def stream(self, run: str, body: dict) -> None:
        files = body.get("files") or {}
        if chunk := files.get("wandb-history.jsonl"):
            rows = self.history.setdefault(run, {})
            rows |= {chunk["offset"] + i: json.loads(line) for i, line in enumerate(chunk["content"])}
            self.buckets[run]["historyLineCount"] = len(rows)
            self.buckets[run]["historyTail"] = json.dumps([json.dumps(rows[max(rows)])])
        if chunk := files.get("wandb-summary.json"):
            self.buckets[run]["summaryMetrics"] = chunk["content"][-1]
        if body.get("complete"):
            self.exit_code[run] = body["exitcode"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self._body()
        answer: dict = {}
        request = json.loads(body) if self.path == "/graphql" else {}
        call = self.path.split("/")[-1]
        if request:
            call = request.get("operationName") or re.findall(r"(?:query|mutation)\s+(\w+)", request["query"])[0]
        self.server.calls.append(call)
        if reply := self.server.intercept(call):
            self._send(reply.status, reply.content, "text/html")
            return
        if request:
            answer = {"data": self.server.graphql(request["query"], request.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
            answer = {"exitcode": None, "limits": {}}
        self._answer(answer)

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, answer: dict) -> None:
        self._send(200, json.dumps(answer).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve():
    """A running server; stopped, with its port closed, at the end or by `stop`."""
    server = WandbServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop(server)


def stop(server: WandbServer) -> None:
    server.shutdown()
    server.server_close()

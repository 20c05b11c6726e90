"""What the hub's answers come to, asked over HTTP from a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import sys
from lookahead_bench.errors import InputError
from lookahead_bench.hub import hub_revision
for kind, repo_id in [argument.split(":") for argument in sys.argv[1:]]:
    try:
        print(hub_revision(repo_id, kind))
    except InputError as error:
        print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """Has one model and one data set; the repository "some/broken" makes it fail."""

    def do_GET(self) -> None:
        found = {"/api/models/some/model": "abc123", "/api/datasets/some/data": "def456"}
        if self.path in found:
            status, headers = 200, {}
            body = {"id": "some/thing", "sha": found[self.path], "siblings": []}
        else:
            status = 500 if "broken" in self.path else 404
            headers = {} if status == 500 else {"X-Error-Code": "RepoNotFound"}
            body = {"error": "no"}
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def endpoint():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_answer_is_a_revision_or_one_line(endpoint, tmp_path):
    asked = ("model:some/model", "dataset:some/data", "model:some/other", "model:some/broken", "model:a/b/c")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked],
        env=os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    model, data, other, broken, misnamed = done.stdout.splitlines()
    assert (model, data) == ("abc123", "def456")
    assert other.startswith("the hub has no model 'some/other' that this account may read")
    assert broken.startswith("the hub refused model 'some/broken': ") and "500" in broken
    assert misnamed.startswith("'a/b/c' is no hub id of a model")

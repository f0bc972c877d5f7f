"""Replicas behind a router, as the recipe has them: up when the command returns, one that is killed is started again
while others answer, and none is left after stop."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, ROOT, Workspace, running
from tests.waiting import wait

SERVE = ROOT / "examples/serve.py"
PORT = 8123
CALL = """
import json, sys, urllib.request
url, body, key = sys.argv[1:]
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=30) as answer:
        print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, None]))
"""


def call(cluster: Cluster, path: str, body: object = None, key: str = "") -> tuple[int, dict[str, object]]:
    """What the router answers to the controller."""
    text = json.dumps(body) if body else ""
    words = [*cluster.controller, sys.executable, "-c", CALL, f"http://{cluster.address('node0')}:{PORT}{path}", text]
    status, value = json.loads(subprocess.run([*words, key], capture_output=True, check=True, timeout=60).stdout)
    return status, value


def ask(cluster: Cluster, words: str, key: str = "") -> tuple[int, object]:
    """The status, and the number of the replica that gave the words back."""
    status, value = call(cluster, "/v1/completions", {"model": "model", "prompt": words}, key)
    if status != 200:
        return status, None
    assert value["choices"] == [{"index": 0, "finish_reason": "stop", "text": words}]
    return status, value["replica"]


def test_a_replica_that_is_killed_is_started_again_while_others_answer(workspace: Workspace, hosts: Cluster) -> None:
    words = ("--venv", LIGHT, "--ppn", "1", "--port", str(PORT), "--detach", "--ready", "is up at")
    workspace.succeed("run", *words, SERVE)
    assert "3/3" in workspace("ps").out
    assert call(hosts, "/health") == (200, {"replicas": [0, 1, 2]})
    assert {ask(hosts, f"words {n}") for n in range(6)} == {(200, 0)}, "none is busy: the first"
    first = running(hosts, "node0", "--replica")
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    assert [ask(hosts, "still there")[0] for _ in range(5)] == [200] * 5
    wait(lambda: call(hosts, "/health")[1] == {"replicas": [0, 1, 2]}, 60)
    assert not {*first} & {*running(hosts, "node0", "--replica")}
    assert ask(hosts, "and back") == (200, 0)
    chat = call(hosts, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
    assert chat[1]["choices"][0]["message"]["content"] == "hello"  # type: ignore[index]
    assert call(hosts, "/v1/completions", {"no": "prompt"})[0] == 400
    stopped = workspace("stop")
    assert "0 processes left on 3 hosts" in stopped.out, stopped
    refused = workspace("run", *words, SERVE, "--model", "~/none")
    assert refused.code == 5, refused
    assert "has no directory ~/none: ipexctl sync --workdir carries one to all hosts" in refused.err + refused.out
    assert not any(running(hosts, host, "") for host in hosts.names)


@pytest.mark.beyond_core
def test_who_has_no_key_gets_no_answer_and_adds_no_replica(workspace: Workspace, hosts: Cluster) -> None:
    words = ("--venv", LIGHT, "--limit", "node0", "--ppn", "2", "--port", str(PORT), "--detach", "--ready", "is up at")
    workspace.succeed("run", *words, "--pass-env", "SERVE_TOKEN", SERVE, SERVE_TOKEN="a-key")
    assert ask(hosts, "words")[0] == 401
    assert call(hosts, "/replicas", {"rank": 9, "port": 9})[0] == 401
    assert ask(hosts, "words", "a-key")[0] == 200
    assert workspace("stop").code == 0
    assert not any(running(hosts, host, "") for host in hosts.names)

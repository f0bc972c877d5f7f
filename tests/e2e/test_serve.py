"""Replicas behind a router, as the recipe has them: up when the command returns, one that is killed is started again
while others answer, and none is left after stop."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import FRAMEWORKS
from tests.e2e.workspace import LIGHT, RANKS, ROOT, Workspace, find_orphans, running, write_hostfile
from tests.waiting import wait

SERVE = ROOT / "examples/serve.py"
PORT = 8123
CALL = """
import json, sys, urllib.request
url, body, key = sys.argv[1:]
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=30) as answer:
        if answer.headers.get_content_type() == "text/event-stream":
            value = [line.decode().removeprefix("data: ").strip() for line in answer if line.strip()]
        else:
            value = json.load(answer)
        print(json.dumps([answer.status, value, answer.headers["X-Replica"]]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, None, None]))
"""

LEAVE = """
import json, socket, struct, sys
body = json.dumps({"prompt": "x" * (8 << 20)}).encode()
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as client:
    client.sendall(b"POST /v1/completions HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    assert client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""


def call(cluster: Cluster, path: str, body: object = None, key: str = "") -> tuple[int, Any, str | None]:
    """What the router answers to the controller, and the number of the replica that has answered."""
    text = json.dumps(body) if body else ""
    words = [*cluster.controller, sys.executable, "-c", CALL, f"http://{cluster.address('node0')}:{PORT}{path}", text]
    status, value, replica = json.loads(
        subprocess.run([*words, key], capture_output=True, check=True, timeout=60).stdout
    )
    return status, value, replica


def ask(cluster: Cluster, words: str, key: str = "") -> tuple[int, object]:
    """The status, and the number of the replica that gave the words back."""
    status, value, replica = call(cluster, "/v1/completions", {"model": "model", "prompt": words}, key)
    if status != 200:
        return status, None
    assert value["choices"] == [{"index": 0, "finish_reason": "stop", "text": words}]
    return status, int(replica or -1)


def test_a_replica_that_is_killed_is_started_again_while_others_answer(workspace: Workspace, hosts: Cluster) -> None:
    words = ("--venv", LIGHT, "--ppn", "1", "--port", str(PORT), "--detach", "--ready", "is up at")
    started = workspace.succeed("run", *words, SERVE)
    assert f"  address  http://{hosts.address('node0')}:{PORT}/v1" in started.out + started.err
    assert "3/3" in workspace("ps").out
    assert call(hosts, "/health")[:2] == (200, {"replicas": [0, 1, 2]})
    assert {ask(hosts, f"words {n}") for n in range(6)} == {(200, 0)}, "none is busy: the first"
    first = running(hosts, "node0", "--replica")
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    assert [ask(hosts, "still there")[0] for _ in range(5)] == [200] * 5
    wait(lambda: call(hosts, "/health")[1] == {"replicas": [0, 1, 2]}, 60, pause=0.5)
    assert not {*first} & {*running(hosts, "node0", "--replica")}
    assert ask(hosts, "and back") == (200, 0)
    chat = call(hosts, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
    assert chat[1]["choices"][0]["message"]["content"] == "hello"
    assert call(hosts, "/v1/completions", {"no": "prompt"})[0] == 400
    leave = [*hosts.controller, sys.executable, "-c", LEAVE, hosts.address("node0"), str(PORT)]
    subprocess.run(leave, check=True, timeout=60)  # in the middle of its answer
    assert [call(hosts, "/health")[1] for _ in range(5)] == [{"replicas": [0, 1, 2]}] * 5, "no replica was at fault"
    stopped = workspace("stop")
    assert "0 processes left on 3 hosts" in stopped.out, stopped
    refused = workspace("run", *words, SERVE, "--model", "~/none")
    assert refused.code == 5, refused
    assert "has no ~/none: ipexctl sync --workdir carries one to all hosts" in refused.err + refused.out
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


@pytest.mark.stack
@pytest.mark.timeout(1200)
def test_replicas_of_llama_cpp_stream_what_they_write(frameworks: Cluster, tmp_path: Path) -> None:
    workspace = Workspace(
        frameworks, tmp_path / "desk", hostfile=write_hostfile(frameworks, tmp_path / "h", FRAMEWORKS)
    )
    two = ("--limit", "node[0-1]", "--ppn", "1")
    workspace.succeed("run", *two, RANKS / "make_gguf.py", "/root/tiny.gguf", timeout=300)
    words = (*two, "--port", str(PORT), "--detach", "--ready", "is up at", SERVE, "--model", "/root/tiny.gguf")
    workspace.succeed("run", *words, timeout=300)
    question = {"prompt": "the cat", "max_tokens": 5, "temperature": 0}
    status, value, replica = call(frameworks, "/v1/completions", question)
    assert (status, value["usage"]["completion_tokens"], replica) == (200, 5, "0")
    for pid in running(frameworks, "node0", "--replica"):
        os.kill(pid, signal.SIGKILL)
    status, events, replica = call(frameworks, "/v1/completions", {**question, "stream": True})
    assert (status, events[-1], replica) == (200, "[DONE]", "1"), "the other one, in pieces"
    assert len(events) > 2
    wait(lambda: call(frameworks, "/health")[1] == {"replicas": [0, 1]}, 60)
    workspace.succeed("stop")
    workspace("attach")  # takes what the run has written
    assert not find_orphans(frameworks)

"""A headless Chromium, driven over WebDriver. `tools/system.sh test` installs both programs."""

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowRight": "\ue014", "Shift": "\ue008"}
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """One session. ``address`` is that of the driver."""

    def __init__(self, address: str, profile: Path) -> None:
        options = {"args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._address = address
        self._session = ""
        value = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{value['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self._address + self._session + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {json.load(error)['value']['message'][:400]}") from None

    def close(self) -> None:
        self._call("DELETE", "")

    def send_command(self, command: str, **parameters: object) -> Any:
        """A command of the browser's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Opens a page in a window of this size, in light or dark. The logs of before are dropped."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send_command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send_command("Emulation.setEmulatedMedia", features=[scheme])
        self.run("window.stop()")
        self.read_log("browser"), self.read_log("performance")
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body in JavaScript returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str) -> Any:
        """What a function body in JavaScript gives its last argument."""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        """Presses keys, by their name or their character, one after the other; "Shift+n" holds the first."""
        actions = []
        for key in keys:
            *held, last = [KEYS.get(part, part) for part in key.split("+")] if len(key) > 1 else [key]
            strokes = [("keyDown", each) for each in (*held, last)] + [("keyUp", each) for each in (last, *held)]
            actions += [{"type": kind, "value": value} for kind, value in strokes]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, x: float, y: float) -> None:
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0}]
        moves.append({"type": "pointerUp", "button": 0})
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        places = [{"type": "pointerMove", "x": round(x), "y": round(y)} for x, y in (start, end)]
        moves = [places[0], {"type": "pointerDown", "button": 0}, places[1], {"type": "pointerUp", "button": 0}]
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def read_log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._call("POST", "/se/log", {"type": kind})
        return entries

    def list_requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.read_log("performance")]
        sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]

    def take_picture(self, path: Path, height: int | None = None) -> None:
        """A PNG of the window, or of the first ``height`` pixels of the page."""
        clip = {}
        if height:
            width = self.run("return innerWidth")
            clip = {
                "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
                "captureBeyondViewport": True,
            }
        path.write_bytes(base64.b64decode(self.send_command("Page.captureScreenshot", format="png", **clip)["data"]))


@contextmanager
def start_browser(directory: Path) -> Iterator[Browser]:
    """Starts the driver and a browser with a profile in ``directory``, and ends both."""
    program = shutil.which("chromedriver")
    assert program, "chromedriver is missing: tools/system.sh test"
    process = subprocess.Popen([program, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        started = next(match for line in process.stdout if (match := re.search(r"successfully on port (\d+)", line)))
        browser = Browser(f"http://127.0.0.1:{started[1]}", directory)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(60)

"""Words about saved runs: how they ended, and what they are exported to. (`answers` takes long to import.)"""

from typing import Literal

RunResult = Literal[
    "ok", "failed", "lost", "stopped", "limit", "interrupted", "detached", "running", "unfinished"
]  # "detached": it was left while it went on, "unfinished": its record has no end
ExportFormat = Literal["csv", "json"]

"""Known vulnerabilities of the releases in the lock files, by the pip-audit that is named: ``audit.py PROGRAM``.

Exit 1 for a vulnerability. Where the advisories cannot be reached (a machine without the internet, an index without
their part), it says how many releases were not audited, and exits 0: CI without the internet must be able to pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCKS = [Path(__file__).parents[1] / name for name in ("requirements.lock", "requirements-tools.lock")]


def main() -> int:
    releases = []
    for lock in LOCKS:  # one by one: two may have different releases of a package
        words = [sys.argv[1], "--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
        done = subprocess.run([*words, "-r", str(lock)], capture_output=True, text=True, timeout=600)
        try:
            releases += json.loads(done.stdout)["dependencies"]
        except (ValueError, KeyError, TypeError):
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(f"{lock.name} is not audited: {last}")
    skipped = [release["name"] for release in releases if "skip_reason" in release]
    bad = [(release, vulnerability) for release in releases for vulnerability in release.get("vulns", ())]
    for release, vulnerability in bad:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no release"
        print(f"{release['name']} {release['version']}: {vulnerability['id']}, fixed in {fixed}")
    if releases:
        print(f"{len(releases) - len(skipped)} releases audited, {len(skipped)} not, {len(bad)} known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Reads inventories with ansible-core, in a process of its own: a line [suffix, text] of JSON, a line of answer.

An answer maps each host to its groups (with those above them) and its variables, those of its groups included, as text.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path


def read_inventory(suffix: str, text: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    loader = importlib.import_module("ansible.parsing.dataloader").DataLoader()
    manager = importlib.import_module("ansible.inventory.manager")
    read_group_vars = importlib.import_module("ansible.inventory.helpers").get_group_vars
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"inventory{suffix}"
        path.write_text(text)
        inventory = manager.InventoryManager(loader=loader, sources=[str(path)])
        answer = {}
        for name, host in inventory.hosts.items():
            of_host = {key: value for key, value in host.get_vars().items() if key not in ADDED}
            variables = {**read_group_vars(host.get_groups()), **of_host}
            groups = sorted({group.name for group in host.get_groups()} - {"all", "ungrouped"})
            answer[name] = groups, {key: str(value) for key, value in variables.items()}
        return answer


ADDED = {"inventory_file", "inventory_dir", "inventory_hostname", "inventory_hostname_short", "group_names"}

if __name__ == "__main__":
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    for line in sys.stdin:
        print(json.dumps(read_inventory(*json.loads(line))), flush=True)

"""Reads inventories with ansible-core, in a process of its own: a line [path, files] of JSON, a line of answer.

``files`` are texts by path, the inventory at ``path`` among them. An answer maps each host to its groups (with those
above them) and its variables, those of its groups and of files beside the inventory included, as text.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def read_inventory(path: str, files: Mapping[str, str]) -> dict[str, tuple[list[str], dict[str, str]]]:
    loader = importlib.import_module("ansible.parsing.dataloader").DataLoader()
    manager = importlib.import_module("ansible.inventory.manager")
    variables_of = importlib.import_module("ansible.vars.manager").VariableManager
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            Path(directory, name).parent.mkdir(parents=True, exist_ok=True)
            Path(directory, name).write_text(text)
        inventory = manager.InventoryManager(loader=loader, sources=[str(Path(directory, path))])
        known = variables_of(loader=loader, inventory=inventory)
        answer = {}
        for name, host in inventory.hosts.items():
            every = known.get_vars(host=host, include_hostvars=False)
            variables = {key: str(value) for key, value in every.items() if key not in ADDED}
            groups = sorted({group.name for group in host.get_groups()} - {"all", "ungrouped"})
            answer[name] = groups, variables
        return answer


ADDED = {"inventory_file", "inventory_dir", "inventory_hostname", "inventory_hostname_short", "group_names"}
ADDED |= {"ansible_facts", "ansible_playbook_python", "ansible_config_file", "groups", "omit", "playbook_dir"}
ADDED |= {"ansible_version", "ansible_check_mode", "ansible_diff_mode", "ansible_forks", "ansible_inventory_sources"}
ADDED |= {"ansible_limit", "ansible_run_tags", "ansible_skip_tags", "ansible_verbosity", "environment", "hostvars"}

if __name__ == "__main__":
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    for line in sys.stdin:
        print(json.dumps(read_inventory(*json.loads(line))), flush=True)

"""``--limit``."""

from __future__ import annotations

import pytest

from ipexctl.decide.parsing import limit_inventory, parse_inventory
from ipexctl.model.errors import UsageError

INVENTORY = parse_inventory(
    "[w]\nnode[1-4] slots=2\n[x]\nnode[3-6]\n[y]\nhead address=10.0.0.9\n[fe80::1]\n[top:children]\ny", "hosts"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"),
        ("NODE1", "node1"),
        ("w", "node1 node2 node3 node4"),
        ("node4,node1", "node1 node4"),
        ("node4:node1", "node1 node4"),
        ("!w", "node5 node6 head fe80::1"),
        ("w:!x", "node1 node2"),
        ("w,!node2", "node1 node3 node4"),
        ("w:&x", "node3 node4"),
        ("node[2-3],head", "node2 node3 head"),
        ("node[2:3]", "node2 node3"),
        ("all:!node*", "head fe80::1"),
        ("*,!node?", "head fe80::1"),
        ("h*", "head"),
        ("to?", "head fe80::1"),
        ("top", "head fe80::1"),
        ("10.0.0.9", "head"),
        ("fe80::1", "fe80::1"),
        ("[fe80::1]", "fe80::1"),
        ("node1,fe80::1", "node1 fe80::1"),
        (" node1 , node2 ", "node1 node2"),
        ("node[1-3,5]", "node1 node2 node3 node5"),
    ],
)
def test_pieces_choose_hosts_in_the_order_of_the_file(text: str, names: str) -> None:
    assert " ".join(limit_inventory(INVENTORY, text).names) == names


def test_the_first_host_left_is_the_head() -> None:
    assert limit_inventory(INVENTORY, "!node1").head.name == "node2"
    assert limit_inventory(INVENTORY, "!node1").source == "hosts"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nod1", "did you mean node1"),
        ("!nod1", "did you mean node1"),
        ("zzz*", "found 'zzz*'"),
        ("node[5-8]", "found 'node7'"),
        ("node[5-", "brackets do not match"),
        ("w:!w", "leaves no host"),
        ("", "is empty"),
        (" ,: ", "is empty"),
        ("-oProxyCommand=touch pwned", "no host or group"),
        ("\x1b[2J", "\\x1b"),
        ("node[1-9999999]", "more than 4096"),
        ("@failed", "no host or group"),
    ],
)
def test_what_names_nothing_is_refused_with_the_nearest_names(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        limit_inventory(INVENTORY, text)
    assert why in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_large_range_of_a_large_inventory_is_quick() -> None:
    many = parse_inventory("n[0001-4096]", "hosts")
    assert len(limit_inventory(many, "n[0001-4096]:!n0001")) == 4095


def test_of_a_range_that_nobody_has_ten_names_are_told_and_the_others_counted() -> None:
    with pytest.raises(UsageError) as caught:
        limit_inventory(INVENTORY, "none[1-25]")
    assert str(caught.value).count("no host or group has this name") == 10
    assert "no host or group has 15 more names of this range" in str(caught.value)

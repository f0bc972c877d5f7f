"""``--limit``."""

import pytest

from ipexctl.decide.parsing import limit_inventory, parse_inventory
from ipexctl.model.errors import UsageError
from tests.tables import read_table

INVENTORY = parse_inventory(
    "[w]\nnode[1-4] slots=2\n[x]\nnode[3-6]\n[y]\nhead address=10.0.0.9\n[fe80::1]\n[top:children]\ny\n[broken]",
    "hosts",
)


@pytest.mark.parametrize(("text", "names"), read_table("limit/pieces_choose_hosts_in_the_order_of_the_file"))
def test_pieces_choose_hosts_in_the_order_of_the_file(text: str, names: str) -> None:
    assert " ".join(limit_inventory(INVENTORY, text).names) == names


def test_pieces_of_a_stranger_take_no_gigabytes() -> None:
    with pytest.raises(UsageError, match="more than 4096 pieces"):
        limit_inventory(parse_inventory("n[1-4096]", "hosts"), ",".join(["n[1-4096]"] * 80_000))


def test_the_first_host_left_is_the_head() -> None:
    assert limit_inventory(INVENTORY, "!node1").head.name == "node2"
    assert limit_inventory(INVENTORY, "!node1").source == "hosts"


@pytest.mark.parametrize(("text", "why"), read_table("limit/what_names_nothing_is_refused_with_the_nearest_names"))
def test_what_names_nothing_is_refused_with_the_nearest_names(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        limit_inventory(INVENTORY, text)
    assert why in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_large_range_of_a_large_inventory_is_quick() -> None:
    many = parse_inventory("n[0001-4096]", "hosts")
    assert len(limit_inventory(many, "n[0001-4096]:!n0001")) == 4095


def test_of_a_range_that_nobody_has_ten_names_are_reported_and_the_others_counted() -> None:
    with pytest.raises(UsageError) as caught:
        limit_inventory(INVENTORY, "none[1-25]")
    assert str(caught.value).count("no host or group has this name") == 10
    assert "no host or group has 15 more names of this range" in str(caught.value)

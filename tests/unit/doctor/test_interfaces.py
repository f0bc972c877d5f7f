"""The interface of a run is chosen by subnet, and says why."""

from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.act.packages.sources import Sources
from ipexctl.decide.checks.connectivity import ConnectivityReport
from ipexctl.decide.checks.network import InterfaceChoice, choose_host_interface, choose_interfaces, select_interfaces
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.model.errors import Exit, Note, UsageError
from ipexctl.model.facts import Facts, Interface
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.stack import StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.wheels import Lock
from ipexctl.verbs.common.probe import load_releases
from ipexctl.verbs.doctor.network_check import check_network
from ipexctl.verbs.install.install import choose_addresses
from ipexctl.verbs.install.install_sessions import InstallJob
from tests.fakes import FakeOpener
from tests.stopwatch import Stopwatch

ROOT = Path(__file__).parents[3]

LO = Interface("lo", ("127.0.0.1/8", "::1/128"), 65536, None, None)


def host(ssh: str | None, *interfaces: Interface) -> Facts:
    return Facts(ssh_address=ssh, interfaces=(LO, *interfaces))


def eth(name: str, address: str, *, speed: int | None = 1000, up: bool = True, virtual: bool = False) -> Interface:
    return Interface(name, (address,), 1500, speed, up, virtual=virtual)


def names(facts: dict[str, Facts]) -> dict[str, tuple[str, str]]:
    return {host: (choice.name, choice.address) for host, choice in choose_interfaces(facts).items()}


def test_thousands_of_subnets_that_two_hosts_share_take_no_square_of_their_number() -> None:
    """11 s for 2,000, and a host may tell of 20,000."""
    watch = Stopwatch()
    cards = {
        name: [eth(f"e{number}", f"10.{number >> 8}.{number & 255}.{last}/24") for number in range(6_000)]
        for last, name in enumerate("ab", 1)
    }
    facts = {name: host(f"10.0.0.{last}", *own) for last, (name, own) in enumerate(cards.items(), 1)}
    assert set(choose_interfaces(facts)) == {"a", "b"}
    assert watch.read() < 12.0


def test_names_may_differ_where_the_subnet_is_the_same() -> None:
    facts = {"a": host("10.0.0.1", eth("eth0", "10.0.0.1/24")), "b": host("10.0.0.2", eth("ens5f1", "10.0.0.2/24"))}
    assert names(facts) == {"a": ("eth0", "10.0.0.1"), "b": ("ens5f1", "10.0.0.2")}
    assert "10.0.0.0/24" in choose_interfaces(facts)["b"].reason.text


def test_docker0_is_not_a_shared_network_although_every_host_has_it() -> None:
    docker = eth("docker0", "172.17.0.1/16", virtual=True, speed=10000)
    facts = {
        "a": host("10.0.0.1", docker, eth("eth0", "10.0.0.1/24")),
        "b": host("10.0.0.2", docker, eth("eth0", "10.0.0.2/24")),
    }
    assert names(facts)["a"] == ("eth0", "10.0.0.1")


def test_the_network_ssh_came_in_by_wins_and_a_faster_one_is_mentioned() -> None:
    facts = {
        name: host(f"10.0.0.{n}", eth("ib0", f"10.9.0.{n}/24", speed=100000), eth("eth0", f"10.0.0.{n}/24"))
        for n, name in enumerate(("a", "b"), 1)
    }
    choice = choose_interfaces(facts)["a"]
    assert (choice.name, choice.address) == ("eth0", "10.0.0.1")
    assert "ib0 (100000 Mbit/s)" in choice.reason.text


def test_of_two_networks_that_ssh_does_not_use_the_faster_one_wins() -> None:
    facts = {
        name: host(ssh, eth("e0", f"10.1.0.{n}/24"), eth("e1", f"10.2.0.{n}/24", speed=25000))
        for n, (name, ssh) in enumerate({"a": None, "b": "192.0.2.7"}.items(), 1)
    }
    assert names(facts) == {"a": ("e1", "10.2.0.1"), "b": ("e1", "10.2.0.2")}


def test_behind_translated_addresses_and_without_a_shared_subnet_a_host_takes_its_default_route() -> None:
    cards = (eth("eth0", "10.0.0.1/24"), replace(eth("eth1", "10.9.0.1/24"), default_route=True))
    choice = choose_interfaces({"a": host("192.0.2.1", *cards), "b": host("192.0.2.2", eth("eth0", "10.5.0.1/24"))})[
        "a"
    ]
    reason = "no subnet is shared by all hosts; it has the default route"
    assert (choice.name, choice.reason.text) == ("eth1", reason)


def test_a_network_that_is_down_on_one_host_is_not_shared() -> None:
    facts = {
        "a": host("10.0.0.1", eth("fast", "10.2.0.1/24", up=False), eth("eth0", "10.0.0.1/24")),
        "b": host("10.0.0.2", eth("fast", "10.2.0.2/24"), eth("eth0", "10.0.0.2/24")),
    }
    assert names(facts)["b"] == ("eth0", "10.0.0.2")


def test_without_a_shared_subnet_each_host_takes_the_address_we_came_in_by() -> None:
    facts = {
        "a": host("10.0.1.1", eth("mgmt", "192.168.0.1/24"), eth("eth0", "10.0.1.1/32")),
        "b": host("10.0.2.1", eth("eth0", "10.0.2.1/32")),
    }
    assert names(facts) == {"a": ("eth0", "10.0.1.1"), "b": ("eth0", "10.0.2.1")}
    assert "no subnet is shared" in choose_interfaces(facts)["a"].reason.text


def test_several_entries_on_loopback_are_one_machine_and_use_loopback() -> None:
    facts = {name: host(f"127.0.0.{n}", eth("eth0", "10.0.0.9/24")) for n, name in enumerate(("a", "b"), 1)}
    assert names(facts) == {"a": ("lo", "127.0.0.1"), "b": ("lo", "127.0.0.2")}


def test_one_local_host_uses_loopback() -> None:
    assert names({"a": host(None, eth("eth0", "10.0.0.9/24"))}) == {"a": ("lo", "127.0.0.1")}


def test_a_local_head_finds_the_network_of_the_others() -> None:
    facts = {"a": host(None, eth("eth0", "10.0.0.1/24")), "b": host("10.0.0.2", eth("eth1", "10.0.0.2/24"))}
    assert names(facts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth1", "10.0.0.2")}


def test_a_host_without_a_usable_address_is_left_out_rather_than_guessed() -> None:
    facts = {"a": host("10.0.0.1", eth("eth0", "10.0.0.1/24")), "b": host("203.0.113.9")}
    assert list(choose_interfaces(facts)) == ["a"]


def test_two_entries_of_one_machine_share_its_address_and_still_have_a_network() -> None:
    one = replace(host("10.0.0.1", eth("eth0", "10.0.0.1/24")), machine_id="#1")
    facts = {"a": one, "twin": one, "b": host("10.0.0.2", eth("eth0", "10.0.0.2/24"))}
    assert "all 3 hosts are in 10.0.0.0/24" in choose_interfaces(facts)["twin"].reason.text


def test_rubbish_addresses_are_ignored() -> None:
    facts = {"a": host("nonsense", eth("eth0", "10.0.0.1/24"), eth("bad", "999.1/77"))}
    assert names(facts) == {"a": ("eth0", "10.0.0.1")}


def test_the_option_or_the_hostfile_names_an_interface_by_name_or_address() -> None:
    facts = Facts(interfaces=(Interface("eth0", ("10.0.0.1/24",)), Interface("ib0", ("10.1.0.1/24", "fd00::1/64"))))
    chosen = InterfaceChoice("eth0", "10.0.0.1", Note("shared-subnet", "10.0.0.0/24"))

    def choose(choice: InterfaceChoice | None = chosen, option: str | None = None, **words: str) -> InterfaceChoice:
        return choose_host_interface(option, Host("n1", "n1", vars=words), facts, choice)

    assert choose() == choose(iface="eth0") == choose(ifhn="10.0.0.1") == chosen
    assert choose(iface="ib0") == InterfaceChoice("ib0", "10.1.0.1", Note("option", "hostfile"))
    assert choose(ifhn="fd00::1") == InterfaceChoice("ib0", "fd00::1", Note("option", "hostfile"))
    assert choose(option="eth0", iface="ib0") == chosen
    assert choose(None, option="ib0").reason == Note("option", "--iface")
    with pytest.raises(UsageError, match="n1 has no usable network address"):
        choose(None)
    with pytest.raises(UsageError, match=r"n1 has no interface 10\.1\.0\.9 with an address") as refused:
        choose(ifhn="10.1.0.9")
    assert refused.value.reasons == ("it has: eth0, ib0",)


TWO = {
    "n1": host("10.0.0.1", eth("eth0", "10.0.0.1/24"), eth("ib0", "10.1.0.1/24")),
    "n2": host("10.0.0.2", eth("eth0", "10.0.0.2/24"), eth("ib0", "10.1.0.2/24")),
}
NAMED = Inventory((Host("n1", "n1", vars={"iface": "ib0"}), Host("n2", "n2", vars={"ifhn": "10.1.0.2"})))
WRONG = Inventory((Host("n1", "n1", vars={"iface": "ib9"}), Host("n2", "n2", vars={"ifhn": "10.1.0.2"})))


def test_one_choice_for_all_that_listens_and_is_measured() -> None:
    choices, problems = select_interfaces(NAMED, TWO)
    assert {name: choice.address for name, choice in choices.items()} == {"n1": "10.1.0.1", "n2": "10.1.0.2"}
    assert not problems
    assert [choice.name for choice in select_interfaces(NAMED, TWO, "eth0")[0].values()] == ["eth0", "eth0"]
    choices, problems = select_interfaces(WRONG, TWO)
    assert list(choices) == ["n2"]
    assert problems["n1"].sentence == "n1 has no interface ib9 with an address"


def test_an_install_serves_wheels_at_the_address_that_the_hostfile_names(tmp_path: Path) -> None:
    """They listened at the address that was chosen without it: on the network that the user had kept free of them."""
    stack = resolve_stack(StackRequest(torch="2.8.0"), {}, load_releases())
    context = Context(FakeOpener({}), tmp_path, tmp_path)
    job = InstallJob(NAMED, context, {}, "/v", "", Install(), Sources(), stack, Lock((), "3.11", ""), TWO)
    assert choose_addresses(job) == {"n1": "10.1.0.1", "n2": "10.1.0.2"}
    job.inventory = WRONG
    with pytest.raises(UsageError, match="n1 has no interface ib9 with an address") as refused:
        choose_addresses(job)
    assert refused.value.exit == Exit.STEP


def test_doctor_tries_the_interfaces_that_the_hostfile_names(tmp_path: Path) -> None:
    def check(inventory: Inventory) -> ConnectivityReport:
        workflow = check_network(inventory, TWO, Context(FakeOpener({}), tmp_path, tmp_path))
        with pytest.raises(StopIteration) as ended:  # the hosts have no Python: nothing is started
            next(workflow)
        report: ConnectivityReport = ended.value.value
        return report

    assert {name: choice.name for name, choice in check(NAMED).choices.items()} == {"n1": "ib0", "n2": "ib0"}
    assert check(WRONG).untried["n1"] == "n1 has no interface ib9 with an address"


def test_no_verb_chooses_interfaces_without_the_hostfile() -> None:
    files = [path for path in ROOT.glob("ipexctl/verbs/**/*.py") if "choose_interfaces" in path.read_text("utf-8")]
    assert not files

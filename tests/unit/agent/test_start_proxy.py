"""What a guard starts of the commands that launchers write for a remote shell, in whichever shell's language."""

import pytest

from ipexctl.remote.agent.launcher_proxy import find_command

PRTED = ["/opt/o/bin/prted", "--leave-session-attached", "--prtemca", "prte_hnp_uri", "p@0.0;tcp://192.0.2.1:40000"]
TAIL = '/opt/o/bin/prted --leave-session-attached --prtemca prte_hnp_uri "p@0.0;tcp://192.0.2.1:40000"'
SETS = "PRTE_PREFIX=/opt/o;export PRTE_PREFIX;LD_LIBRARY_PATH=/opt/o/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
HYDRA = ["/opt/m/bin/hydra_pmi_proxy", "--port", "192.0.2.1:2", "--x", ""]


@pytest.mark.parametrize(
    ("command", "proxy", "argv"),
    [
        ('"/opt/m/bin/hydra_pmi_proxy" --port 192.0.2.1:2 --x ""', "hydra_pmi_proxy", HYDRA),
        (TAIL, "prted", PRTED),
        (SETS + TAIL, "prted", PRTED),
        (f"( test ! -r ./.profile || . ./.profile; {SETS}{TAIL} )", "prted", PRTED),
        (f"setenv PRTE_PREFIX /opt/o;if ( $?LD_LIBRARY_PATH == 1 ) set PRTE_have_llp;{TAIL}", "prted", PRTED),
        ("/opt/x/other a b", "prted", ["/opt/x/other", "a", "b"]),
        ("", "prted", ["prted"]),
    ],
)
def test_a_proxy_is_started_by_its_own_arguments(command: str, proxy: str, argv: list[str]) -> None:
    """Open MPI writes for the login shell of the user on node0: those of bash, sh and csh; Hydra quotes its program."""
    words = command.split(" ")
    assert find_command(words, [proxy]) == argv

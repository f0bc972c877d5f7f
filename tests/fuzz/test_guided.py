"""Coverage-guided fuzzing finds what the texts of a grammar do not show."""

import platform
import sys

import pytest

from tests.fuzz.guided import fuzz, list_targets
from tests.fuzz.planted import TARGETS as PLANTED
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(
    not ((3, 11) <= sys.version_info < (3, 15) and (sys.platform, platform.machine()) == ("linux", "x86_64")),
    reason="atheris has no wheel for this Python or machine",
)
MODULE = "tests.fuzz.planted"


def test_a_planted_fault_is_found_byte_by_byte() -> None:
    done = fuzz("planted", "-runs=1000000", "-seed=1", module=MODULE)
    assert [finding[:3] for finding in done.findings] == [b"{x}"], done.output
    with pytest.raises(KeyError, match="planted"):
        PLANTED[0].accepts(done.findings[0])


def test_a_parser_without_an_end_is_found_by_its_cpu_time() -> None:
    done = fuzz("endless", "-runs=1000", "-seed=1", module=MODULE, patience=0.5)
    assert [finding[:1] for finding in done.findings] == [b"h"], done.output
    assert "TooSlowError: no answer after 0.5 s of CPU" in done.output


def test_a_sound_parser_has_no_finding() -> None:
    done = fuzz("sound", "-runs=2000", "-seed=1", module=MODULE)
    assert (done.findings, done.tried) == ((), 2000), done.output


def test_every_target_can_be_guided() -> None:
    assert list_targets() == [target.name for target in TARGETS]

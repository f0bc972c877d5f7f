"""A profile for people, whatever its names hold; and as it is saved."""

from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.model.answers.run import ProfileAnswer, RunAnswer
from ipexctl.model.errors import UsageError
from ipexctl.model.profile import CollectiveTime, KernelTime, OperatorTime, Profile, ProfiledRank, UnprofiledRank
from ipexctl.show import screens, typeset
from ipexctl.store.masking import Masker
from ipexctl.store.saved_profile import has_profile, read_profile, save_profile

AMX = KernelTime("matmul", "brg_matmul:avx512_core_amx", "avx512_core_amx", "bf16", 30, 0.093)
REORDER = KernelTime("reorder", "jit:uni", "", "src f32, dst bf16", 6, 0.007)
PROFILE = Profile(
    "1122-074121-ec7f",
    3,
    7,
    (ProfiledRank(0, "node0", 5, 0.5, 0.4, 0.25, 0.0), ProfiledRank(1, "node1", 5, 0.5, 0.1, 0.0, 0.25)),
    (UnprofiledRank(2, "node2", "the trace is cut off"), UnprofiledRank(3, "node2", "the trace is cut off")),
    (OperatorTime("aten::addmm", 20, 0.2),),
    (CollectiveTime("gloo:all_reduce", 10, 5, 0.5, 0.25, 0.08),),
    (AMX, REORDER),
    ("gloo:broadcast was called 1 to 2 times by different ranks: not compared",),
)
SHOWN = """\
profile of steps 3 to 7 · 2 ranks on 2 hosts
! ranks 2-3 not profiled: the trace is cut off
! gloo:broadcast was called 1 to 2 times by different ranks: not compared

ranks: waiting is for those that enter a collective later, awaited is by how
much a rank was the last
rank  ms/step  collectives  waiting ms/step  awaited ms/step  host
0     100      80 %         50               0                node0
1     100      20 %         0                50               node1

costliest operators, mean of the ranks
own ms/step  share  calls/step  operator
20           20 %   2           aten::addmm

collectives of all ranks
calls  mean ms  of it waiting  longest wait ms  collective
10     50       50 %           80               gloo:all_reduce

kernels of oneDNN on all ranks
ms  share  calls  types              primitive  implementation
93  93 %   30     bf16               matmul     brg_matmul:avx512_core_amx
7   7 %    6      src f32, dst bf16  reorder    jit:uni
used       avx512_core_amx 93 %, no instruction set named 7 %
"""


class Page:
    """A terminal of 80 columns that keeps what is written."""

    text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def show(profile: Profile, traces: str | None = None) -> str:
    page = Page()
    answer = ProfileAnswer(profile, traces)
    typeset.print_items(typeset.make_console(page, 80), page, screens.format_answer(answer))  # type: ignore[arg-type]
    return page.text


def test_the_screen_of_a_profile() -> None:
    assert show(PROFILE) == SHOWN
    assert show(PROFILE, "/saved/profile/hosts") == f"{SHOWN}traces     /saved/profile/hosts\n"


def test_a_run_shows_its_profile_and_one_without_shows_none() -> None:
    assert screens.format_answer(RunAnswer("1122", "done", False)) == []
    assert screens.format_answer(RunAnswer("1122", "done", False, PROFILE))


def test_a_profile_without_any_trace_says_why() -> None:
    empty = Profile("1122", 3, 7, (), (UnprofiledRank(0, "node0", "the script made 2 optimizer steps"),))
    assert (
        show(empty)
        == "profile of steps 3 to 7 · 0 ranks on 0 hosts\n! rank 0 not profiled: the script made 2 optimizer steps\n"
    )


def test_names_from_hosts_cannot_write_to_the_terminal() -> None:
    evil = "\x1b]0;x\x07\x1b[2J\n\u202e"
    shown = show(
        replace(
            PROFILE,
            operators=(OperatorTime(evil, 1, 1),),
            collectives=(CollectiveTime(evil, 1, 1, 1, 1, 1),),
            kernels=(KernelTime(evil, evil, evil, evil, 1, 1),),
            notes=(evil,),
        )
    )
    assert not {*evil} - {"\n"} & {*shown} - {*"]0;x[2J"}


def test_a_profile_is_read_as_it_was_saved(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    assert not has_profile(tmp_path)
    save_profile(tmp_path, PROFILE)
    assert has_profile(tmp_path)
    assert read_profile(tmp_path, Masker({})) == PROFILE
    assert (tmp_path / "profile/profile.json").stat().st_mode & 0o777 == 0o600


def test_a_run_without_a_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no profile"):
        read_profile(tmp_path, Masker({}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1', "[" * 100_000])
def test_a_damaged_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/profile.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(tmp_path, Masker({}))


def test_a_number_that_no_profile_has_is_refused(tmp_path: Path) -> None:
    """It ended `profile` of a run of somebody else with exit code 70."""
    save_profile(tmp_path, replace(PROFILE, operators=(replace(PROFILE.operators[0], calls=10**400),)))
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(tmp_path, Masker({}))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "profile/profile.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(tmp_path, Masker({}))

"""Lines of oneDNN: those that torch 2.13.0 (oneDNN 3.12.0) wrote here, and those of oneDNN's guide."""

import pytest

from ipexctl.decide.profile.traces import Kernel, add_sums, find_isa, parse_kernels
from tests.tables import read_table

REAL = b"""\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:1
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,graph,info,template:operation,engine,partition_id,partition_kind,op_names,data_formats,logical_tensors,fpmath_mode,implementation,backend,exec_time
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user attr-post-ops:sum,,64x256:256x512,0.25
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0 wei:bf16::blocked:ab::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user,,64x8:8x512,0.5
"""  # noqa: E501


def test_calls_of_one_kernel_are_added_up() -> None:
    ((kernel, time),) = parse_kernels(REAL).items()
    assert kernel == Kernel("matmul", "brg_matmul:avx512_core_bf16", "bf16")
    assert time == pytest.approx((2, 0.75e-3))


@pytest.mark.parametrize(
    ("line", "kernel"),
    [
        (  # oneDNN 3.0 … 3.3, without the version, with a time stamp
            b"onednn_verbose,1693533460193.346924,primitive,exec,cpu,convolution,brgconv:avx512_core_amx,forward_training,"
            b"src_bf16::blocked:acdb::f0 wei_bf16:a:blocked:Adcb64a::f0 bia_f32::blocked:a::f0 "
            b"dst_f32::blocked:acdb::f0,"
            b"attr-post-ops:eltwise_relu,alg:convolution_direct,mb1_ic3oc64_ih224,1.25",
            Kernel("convolution", "brgconv:avx512_core_amx", "src bf16, wei bf16, dst f32"),
        ),
        (  # the guide of 1.x
            b"dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0 dst_f32::blocked:aBcd8b:f0,,,"
            b"2x16x7x7,0.5",
            Kernel("reorder", "jit:uni", "f32"),
        ),
    ],
)
def test_forms_of_other_versions(line: bytes, kernel: Kernel) -> None:
    assert [*parse_kernels(line)] == [kernel]


@pytest.mark.parametrize(("implementation", "isa"), read_table("kernels/the_instruction_set_is_in_the_name"))
def test_the_instruction_set_is_in_the_name(implementation: str, isa: str) -> None:
    assert find_isa(implementation) == isa


@pytest.mark.parametrize(
    "line",
    [
        b"onednn_verbose,",
        b"onednn_verbose,v1,primitive,exec",
        b"onednn_verbose,v1,primitive,exec,cpu,matmul",
        b"onednn_verbose,v1,primitive,exec,cpu,matmul,a,b,c,d,e,f,never",
        b"onednn_verbose,v1,primitive,exec,cpu,matmul,a,b,c,d,e,f,nan",
        b"onednn_verbose,v1,primitive,exec,cpu,matmul,a,b,c,d,e,f,-1",
        b"onednn_verbose,v1,graph,exec,cpu,100002,sdp,a,b,c,d,e,f,1.0",
        b"onednn_verbose," + b"," * 100_000,
        b"\xff\xfe exec,cpu",
        b"loss 0.5",
    ],
)
def test_other_lines_are_left_out(line: bytes) -> None:
    assert parse_kernels(line + b"\n" + REAL) == parse_kernels(REAL)


def test_kernels_of_all_ranks_are_added_up_the_costliest_first() -> None:
    other = REAL.replace(b"avx512_core_bf16", b"avx512_core_amx").replace(b",0.25", b",9")
    amx, bf16 = add_sums(map(parse_kernels, (REAL, other, REAL)))
    assert (amx[0].implementation, amx[1].calls) == ("brg_matmul:avx512_core_amx", 2)
    assert (bf16[0].implementation, bf16[1].calls) == ("brg_matmul:avx512_core_bf16", 4)
    assert bf16[1].seconds == pytest.approx(1.5e-3)


def test_a_type_without_an_end_takes_no_more_time_than_its_length() -> None:
    """33 MiB, which a rank may write, took an hour."""
    line = b"onednn_verbose,exec,cpu,a,b,c,src" + b"_f8" * 3000 + b",x,y,z,1\n"
    assert sum(each.calls for each in parse_kernels(line * 300).values()) == 300

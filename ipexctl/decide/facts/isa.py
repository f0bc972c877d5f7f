"""Instruction set levels by the flags of a processor: those of x86 as IPEX names them, of ARM as torch uses them."""

from collections.abc import Collection, Mapping

from ipexctl.model.errors import Note

_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AMX = ("amx_tile", "amx_bf16", "amx_int8")
_ARM_BF16 = ("asimd", "bf16", "i8mm")  # ARMv8.6 has both

# Highest first; a host has the first level whose flags it all has. One level does not imply those below it (Zen 5 has
# avx512_bf16 and avx_vnni, Sapphire Rapids with AMX masked keeps avx512_fp16): `ORDER` is only which one to name.
LEVELS: dict[str, tuple[str, ...]] = {
    "AMX_FP8": ("amx_fp8", "amx_tf32", "amx_fp16", *_AMX), "AMX_FP16": ("amx_fp16", *_AMX), "AMX": _AMX,
    "AVX512_FP16": (*_AVX512, "avx512_fp16"),
    "AVX512_BF16": (*_AVX512, "avx512_bf16"), "AVX512_VNNI": (*_AVX512, "avx512_vnni"), "AVX512": _AVX512,
    "AVX2_VNNI": ("avx_vnni",), "AVX2": ("avx2", "fma"),
}  # fmt: skip
ARM_LEVELS: dict[str, tuple[str, ...]] = {
    "SME": ("sme", *_ARM_BF16), "SVE2_BF16": ("sve2", *_ARM_BF16), "SVE_BF16": ("sve", *_ARM_BF16),
    "NEON_BF16": _ARM_BF16, "SVE2": ("sve2", "asimd"), "SVE": ("sve", "asimd"), "NEON_DOT": ("asimddp", "asimd"),
    "NEON": ("asimd",),
}  # fmt: skip
BELOW = "below"
ORDER = (*LEVELS, BELOW)
ARM_ORDER = (*ARM_LEVELS, BELOW)
_FAST_BF16 = {"AMX_FP8", "AMX_FP16", "AMX", "AVX512_FP16", "AVX512_BF16", "SME", "SVE2_BF16", "SVE_BF16", "NEON_BF16"}


def has_bf16(level: str | None) -> bool:
    """Is bf16 arithmetic done by the processor? (AVX512_FP16 alone is not sold without AVX512_BF16.)"""
    return level in _FAST_BF16


def get_order(level: str | None) -> tuple[str, ...]:
    """The levels of the architecture that has this one."""
    return ARM_ORDER if level in ARM_LEVELS else ORDER


def exceeds_level(flags: Collection[str], silicon: str) -> bool:
    """Have these flags of x86 a level above that of the silicon (a level, or "" for not known)?"""
    return silicon in ORDER and ORDER.index(find_isa_level(flags)[0]) < ORDER.index(silicon)


def find_isa_level(
    flags: Collection[str], silicon: str | None = None, hidden_by: str = "the BIOS or the kernel", tiles: str = ""
) -> tuple[str, Mapping[str, Note]]:
    """The level, and for each higher one why the host does not have it (codes: ``no-tiles``, ``no-flags``, ``hidden``).
    ``silicon`` is the level of the microarchitecture where it is known, ``hidden_by`` who would hide what it has, and
    ``tiles`` what the kernel answered to a process that asked for AMX: "granted", "refused 95" or "" for not asked."""
    refused: dict[str, Note] = {}
    levels = ARM_LEVELS if "asimd" in flags else LEVELS
    order = (*levels, BELOW)
    for level, needed in levels.items():
        missing = [flag for flag in needed if flag not in flags]
        if not missing and level.startswith("AMX") and tiles.startswith("refused"):
            refused[level] = Note("no-tiles", tiles.replace("refused", "arch_prctl refuses AMX tiles: error"))
        elif not missing:
            return level, refused
        else:
            has_it = silicon in order and order.index(level) >= order.index(silicon)
            who = f"the processor has it, {hidden_by} hides it" if has_it else "the processor does not have it"
            text = f"no {' '.join(missing)}{f': {who}' if silicon else ''}"
            refused[level] = Note("hidden" if has_it else "no-flags", text)
    return BELOW, refused

"""Parse lists of CPUs, and addresses, from untrusted text: None for malformed input."""

import re
from functools import lru_cache
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

MAX_CPUS = 16384  # the kernel's own limit is 8192
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_PADDING = " \t\r\n\0"  # some who gather files of /sys keep the NUL behind them


def parse_cpu_list(text: str | None) -> tuple[int, ...] | None:
    """Returns a list in the kernel's form, "0-3,8" or "" for none."""
    if text is None:
        return None
    cpus: set[int] = set()
    left = 2 * MAX_CPUS  # named, also more than once
    text = text.strip(_PADDING).replace(" ", "")
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if not match:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        left -= last - first + 1
        if last < first or last > MAX_CPUS or left < 0:
            return None
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def parse_cpu_mask(text: str | None) -> tuple[int, ...] | None:
    """Returns a mask in the kernel's form, "00000000,00000202": words of 32 bits, the highest first."""
    words = (text or "").strip(_PADDING).split(",")
    if len(words) * 32 > MAX_CPUS or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
        return None
    bits = int("".join(word.zfill(8) for word in words), 16)
    return tuple(number for number, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1")


@lru_cache(4096)  # many look at the same addresses, and to read one is much work
def parse_ip_interface(text: str) -> IPv4Interface | IPv6Interface | None:
    """Returns an address, with or without a prefix."""
    try:
        return ip_interface(text)
    except ValueError:
        return None

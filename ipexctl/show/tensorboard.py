"""Event files of TensorBoard, written without it.

A record is its length (uint64), a masked CRC-32C of these 8 bytes, the data, and a masked CRC-32C of the data, all
little-endian (tensorboard/summary/writer/record_writer.py); the mask is that of LevelDB's util/crc32c.h. The data is a
protocol buffer `Event` (tensorboard/compat/proto/event.proto): wall_time 1, step 2, file_version 3, summary 5, and in
the summary a `Value` 1 (summary.proto): tag 1, simple_value 2."""

import struct
from functools import cache

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected: RFC 3720, section 12.1
_MASK = 0xA282EAD8
VERSION = b"brain.Event:2"
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5  # wire types: protobuf.dev/programming-guides/encoding


@cache
def _build_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


def compute_crc32c(data: bytes) -> int:
    """CRC-32C of the bytes."""
    table, crc = _build_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def mask_crc(crc: int) -> int:
    """Rotated right by 15 bits, plus a constant: a CRC of data that holds CRCs is a weak one."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def pack_record(data: bytes) -> bytes:
    """One record of the file."""
    length = struct.pack("<Q", len(data))
    masks = (struct.pack("<I", mask_crc(compute_crc32c(part))) for part in (length, data))
    return b"".join((length, next(masks), data, next(masks)))


def _encode_varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encode_field(number: int, wire: int, data: bytes) -> bytes:
    return _encode_varint(number << 3 | wire) + (_encode_varint(len(data)) if wire == _BYTES else b"") + data


def encode_version(wall_time: float) -> bytes:
    """The first event of a file."""
    return _encode_field(1, _DOUBLE, struct.pack("<d", wall_time)) + _encode_field(3, _BYTES, VERSION)


def encode_scalar(wall_time: float, step: int, tag: str, value: float) -> bytes:
    """An event with one value, a 32-bit float; what is larger than that holds becomes infinite."""
    try:
        number = struct.pack("<f", value)
    except OverflowError:
        number = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    named = _encode_field(1, _BYTES, tag.encode("utf-8", "replace")) + _encode_field(2, _FLOAT, number)
    begin = _encode_field(1, _DOUBLE, struct.pack("<d", wall_time)) + _encode_field(2, _VARINT, _encode_varint(step))
    return begin + _encode_field(5, _BYTES, _encode_field(1, _BYTES, named))

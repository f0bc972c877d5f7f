"""The checksum of the program cksum (POSIX.1-2017, cksum): every host has it, and it costs a twentieth of SHA-256.

It finds damage by accident, with a chance of 2^-32 to miss one. It is no proof against forgery.

Its CRC-32 has the polynomial of zlib's, but takes the highest bit of each byte first: so the bits of each byte are
reversed here, and those of the result. It begins with 0, and covers the length after the data."""

import zlib

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_BEGIN = 0xFFFFFFFF  # zlib inverts what it is given: this is a register of 0


class Cksum:
    """The checksum of bytes that come in pieces."""

    def __init__(self) -> None:
        self._crc, self._length = _BEGIN, 0

    def update(self, data: bytes) -> None:
        self._crc = zlib.crc32(data.translate(_REVERSED), self._crc)
        self._length += len(data)

    def format_line(self) -> bytes:
        """The line that cksum prints for its standard input."""
        length = self._length.to_bytes((self._length.bit_length() + 7) // 8, "little")
        register = zlib.crc32(length.translate(_REVERSED), self._crc) ^ 0xFFFFFFFF
        checksum = int(f"{register:032b}"[::-1], 2) ^ 0xFFFFFFFF
        return b"%d %d\n" % (checksum, self._length)

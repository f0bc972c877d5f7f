"""A relay in front of an SSH server that delays every byte, for benchmarks: latency without a network that has it.

    python delay.py TARGET_PORT MILLISECONDS FILE

Listens on a free port of all loopback addresses, and prints it; who connects to 127.1.2.3 is relayed to TARGET_PORT
there. Each direction is delayed by half of the time, so that a round trip takes all of it. FILE gets a line ``c`` for
each connection and a line ``t`` for each turn: bytes of the client that follow bytes of the server, which is what a
round trip looks like from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable

PIECE = 1 << 16


async def main() -> None:
    target, milliseconds, file = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    record = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    tasks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        os.write(record, b"c\n")
        address = writer.get_extra_info("sockname")[0]
        upward, downward = await asyncio.open_connection(address, target)
        answered = True

        def count_turn() -> None:
            nonlocal answered
            if answered:
                os.write(record, b"t\n")
            answered = False

        def count_answer() -> None:
            nonlocal answered
            answered = True

        delay = milliseconds / 2000
        await asyncio.gather(pour(reader, downward, delay, count_turn), pour(upward, writer, delay, count_answer))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError):
            await relay(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(serve, "0.0.0.0", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def pour(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, count: Callable[[], None]
) -> None:
    """Passes bytes on, each ``delay`` seconds after it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await pieces.get()
                if (left := due - loop.time()) > 0:
                    await asyncio.sleep(left)
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

    writing = asyncio.create_task(write())
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            count()
            pieces.put_nowait((loop.time() + delay, data))
    pieces.put_nowait((loop.time() + delay, b""))
    await writing


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())

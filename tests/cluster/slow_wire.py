"""A wire that is slow and loses packets, between two interfaces, where the kernel has no netem:
``python slow_wire.py ONE OTHER SECONDS SHARE SEED``."""

import heapq
import random
import select
import socket
import sys
import time
from contextlib import suppress

VNET_HEADER = (
    15  # PACKET_VNET_HDR: a checksum that the card was to compute, or a packet that it was to divide, stays so
)
LARGEST = 1 << 17  # bytes


def open_interface(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    sock.setsockopt(263, VNET_HEADER, 1)  # SOL_PACKET
    sock.bind((name, 0))
    return sock


def main(one: str, other: str, delay: float, share: float, seed: str) -> None:
    first, second = open_interface(one), open_interface(other)
    others, dice, count = {first: second, second: first}, random.Random(seed), 0
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for sock in select.select([first, second], [], [], pause)[0]:
            data, address = sock.recvfrom(LARGEST)
            if address[2] != 4 and dice.random() >= share:  # 4: we have sent it
                count += 1
                heapq.heappush(waiting, (time.monotonic() + delay, count, others[sock], data))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, sock, data = heapq.heappop(waiting)
            with suppress(OSError):  # the interface is down, or full: lost as well
                sock.send(data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.argv[5])

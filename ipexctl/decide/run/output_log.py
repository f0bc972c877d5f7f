"""What each rank wrote, for its page: the first and the last of it."""

from ipexctl.model.events import Stream
from ipexctl.model.run_state import OutputLog


def add_lines(log: OutputLog, at: float, stream: Stream, text: bytes) -> None:
    """Adds whole lines that ended at this moment."""
    quarter, room = log.limit // 4, log.limit * 3 // 4
    if log.head_size < quarter and not log.tail:
        log.head.append((at, stream, text[:quarter]))
        log.head_size += len(text)
        log.omitted += max(len(text) - quarter, 0)
        return
    log.tail.append((at, stream, text[-room:]))
    log.omitted += max(len(text) - room, 0)
    log.tail_size += min(len(text), room)
    while log.tail_size > room and len(log.tail) > 1:
        dropped = len(log.tail.popleft()[2])
        log.tail_size -= dropped
        log.omitted += dropped

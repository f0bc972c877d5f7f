"""The state of the live screen: the rank followed, the position in its log, the open prompt. Knows no terminal."""

from dataclasses import dataclass
from typing import Literal

from ipexctl.model.run_state import RankState, RunState
from ipexctl.show.rank_log import RankLog, RankLogs

RANK_ROW_LIMIT = 16  # ranks; of more, a row is a host, which Enter opens


@dataclass
class View:
    """What of the state is shown, and the ranks' logs. ``keys``: a keyboard is attached; ``can_detach``: the run
    survives this screen."""

    state: RunState
    logs: RankLogs
    keys: bool = False
    can_detach: bool = False
    rank: int = 0
    host: str = ""  # the host whose ranks are rows, where rows are hosts
    paused: bool = False
    prompt: Literal["", "rank", "find"] = ""  # while something is typed
    typed: str = ""
    answer: str = ""  # to what was typed, until the next key
    pattern: str = ""  # what was searched for last
    match: int = 0  # number of the line of the rank in which it is
    bottom: int | None = None  # number of the last line shown; None: the newest
    panel: Literal["log", "harmless", "keys"] = "log"
    full_screen: bool = False  # the log has the whole screen
    page: int = 10  # rows of the log in the last frame
    skipped: int = 0
    drawn_count: int = 0  # lines of the rank at the last frame

    @property
    def by_host(self) -> bool:
        """Whether rows are hosts."""
        return len(self.state.ranks) > RANK_ROW_LIMIT and not self.host

    @property
    def followed(self) -> RankState | None:
        """The rank whose log is shown."""
        ranks = self.state.ranks
        return ranks[min(self.rank, len(ranks) - 1)] if ranks else None

    @property
    def log(self) -> RankLog:
        return self.logs[self.followed.rank if self.followed else 0]

    @property
    def suspects(self) -> frozenset[int]:
        """The ranks that the others wait for."""
        return frozenset(self.state.attempt.suspects if self.state.attempt else ())

    def press(self, key: str) -> str:
        """One key, as `Keys` names them. Returns "detach" for the key that detaches."""
        self.answer = ""
        if self.prompt:
            self._edit_input(key)
            return ""
        match key:
            case " ":
                self.paused = not self.paused
            case "d" if self.can_detach:
                return "detach"
            case "r" | "/":
                self.prompt, self.typed = ("rank" if key == "r" else "find"), ""
            case "up" | "k":
                self._select_row(-1)
            case "down" | "j":
                self._select_row(1)
            case "tab":
                self._select_failed_or_awaited()
            case "enter" if self.by_host and self.followed is not None:
                self.host = self.followed.host
            case "enter":
                self.full_screen, self.panel = not self.full_screen, "log"
            case "pageup":
                self._turn_pages(-self.page)
            case "pagedown":
                self._turn_pages(self.page)
            case "end" | "G":
                self._follow()
            case "home" | "g":
                self._turn_pages(-(1 << 40))
            case "n" | "N" if self.pattern:
                self._find_pattern(forwards=key == "N")
            case "w":
                self.panel = "log" if self.panel == "harmless" else "harmless"
            case "?":
                self.panel = "log" if self.panel == "keys" else "keys"
            case "escape":
                self._go_back()
        return ""

    def _edit_input(self, key: str) -> None:
        if key == "enter":
            prompt, self.prompt = self.prompt, ""
            if prompt == "find" and self.typed:
                self.pattern, self.match, self.panel = self.typed, 0, "log"
                self._find_pattern(forwards=False)
            elif self.typed.isascii() and self.typed.isdigit() and int(self.typed) < len(self.state.ranks):
                self._select_rank(int(self.typed))
            elif self.typed:
                self.answer = f"there is no rank {self.typed}   "
        elif key == "escape":
            self.prompt = ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.typed) < 60:
            self.typed += key

    def _select_rank(self, rank: int) -> None:
        self.rank = rank
        self.drawn_count = self.logs[rank].count
        if self.host and self.state.ranks[rank].host != self.host:
            self.host = ""
        self._follow()

    def _select_row(self, step: int) -> None:
        ranks, followed = self.state.ranks, self.followed
        if followed is None:
            return
        rows = [rank.rank for rank in ranks if not self.host or rank.host == self.host]
        at = followed.rank
        if self.by_host:
            first = {rank.host: rank.rank for rank in reversed(ranks)}
            rows, at = sorted(first.values()), first[followed.host]
        index = (rows.index(at) if at in rows else 0) + step
        self._select_rank(rows[min(max(index, 0), len(rows) - 1)])

    def _select_failed_or_awaited(self) -> None:
        """The next rank that others wait for, or that failed; where there is none, the next rank."""
        ranks, followed = self.state.ranks, self.followed
        if followed is None:
            return
        suspects = self.suspects
        odd = [r.rank for r in ranks if r.rank in suspects or (r.ended and r.ended.status != 0)]
        rows = odd or [rank.rank for rank in ranks]
        self._select_rank(next((rank for rank in rows if rank > followed.rank), rows[0]))

    def _go_back(self) -> None:
        """One level: out of a panel, a search, the log, a host."""
        if self.panel != "log":
            self.panel = "log"
        elif self.bottom is not None or self.pattern:
            self._follow()
        elif self.full_screen:
            self.full_screen = False
        else:
            self.host = ""

    def _follow(self) -> None:
        self.bottom, self.match, self.pattern = None, 0, ""

    def _turn_pages(self, lines: int) -> None:
        log = self.log
        if self.followed is None:
            return
        bottom = (log.count if self.bottom is None else self.bottom) + lines
        self.bottom = max(bottom, min(log.first + self.page - 1, log.count))
        if self.bottom >= log.count:
            self.bottom = None

    def _find_pattern(self, *, forwards: bool) -> None:
        """Looks for the next line with the pattern: up, or down with ``forwards``. Lower case finds either case."""
        rank, log = self.followed, self.log
        if rank is None:
            return
        start = self.match or log.count + 1
        match = log.search(self.pattern, start, forwards=forwards, fold=self.pattern.islower())
        if match:
            self.match = match
            self.bottom = min(max(match + self.page // 2, log.first + self.page - 1), log.count)
            return
        where = f"in the log of rank {rank.rank}"
        if forwards:
            where = "further down"
        elif self.match:
            where = "further up"
        elif log.first > 1:
            where = f"from line {log.first:,} on, the first that is held"
        self.answer = f"no «{self.pattern}» {where}   "

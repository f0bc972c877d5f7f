"""Shell text as commands: their words without quotes, redirections, the operators between them, and line numbers.

Nothing is executed or expanded. What a shell would replace (``$NAME``, ``$(…)``, a glob) stays in its word, between
marks: `QUOTED` or `BARE` (outside of quotes, where the value is split into words) and `END`."""

import re
import shlex
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping

from ipexctl.model.json_values import Record

QUOTED, BARE, END = "\ue000", "\ue001", "\ue002"
EXPANSION = re.compile(f"[{QUOTED}{BARE}]([^{END}]*){END}")
LOOPS = frozenset(("for", "while", "until", "select"))
_NESTING_LIMIT = 100  # compound commands in one another that are known of a command, and its here-documents
_MARKS = dict.fromkeys(map(ord, (QUOTED, BARE, END)))
_BLANKS = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_BLANKS_IN_ARRAY = re.compile(r"(?:[ \t\n]|\\\n|(?<=[\s(])#[^\n]*)*")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"(?![<>]\()(?:\d*(?:<<<|<<-?|<>|<&|>>|>\||>&|<|>)|&>>?)")
_BRACES = re.compile(r"\{(?=[^\s{}'\"$;]*\})[^}]*(?:,|\.\.)[^}]*\}")  # {a,b}, {1..4}
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_ARRAY = re.compile(r"([A-Za-z_]\w*\+?)=\(")
_CONTINUATION = re.compile(r"\\\n[ \t]*")
_OPENING = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
_CLOSING = {*_OPENING.values()}
_SKIPPED = {"then", "do", "else", "elif", "{", "}", "!", "coproc"}


class SimpleCommand(Record):
    """A simple command. ``before`` and ``after`` are the operators beside it; ``inside`` are the compound commands
    around it, such as ``for``; ``input`` is the file of its standard input; ``arrays`` are those that it assigns, or
    appends to (``NAME+``); ``here`` is the text of its here-document with the number of its first line."""

    words: tuple[str, ...]
    line: int
    redirections: tuple[str, ...]
    input: str
    before: str
    after: str
    inside: tuple[str, ...]
    arrays: Mapping[str, tuple[str, ...]]
    here: tuple[str, int] | None


def remove_marks(text: str) -> str:
    """Returns the word as it was written, but for its quotes."""
    return text.translate(_MARKS)


def list_expansions(words: Iterable[str]) -> list[str]:
    """Returns what a shell would replace in these words."""
    return [match[1] for word in words for match in EXPANSION.finditer(word)]


def quote_word(word: str) -> str:
    """Returns the word for a shell, which replaces in it what was to be replaced, and nothing else."""
    if END not in word:
        return shlex.quote(word)
    parts = EXPANSION.split(word)  # literal text and expansions in turn
    if BARE not in word:
        literal = [re.sub(r'(["\\$`])', r"\\\1", part) for part in parts[::2]]
        return '"' + "".join(a + b for a, b in zip(literal, [*parts[1::2], ""], strict=True)) + '"'
    marks = re.findall(f"[{QUOTED}{BARE}]", word)
    live = [part if mark == BARE else f'"{part}"' for mark, part in zip(marks, parts[1::2], strict=True)]
    literal = [shlex.quote(part) if part else "" for part in parts[::2]]
    return "".join(a + b for a, b in zip(literal, [*live, ""], strict=True))


def split_commands(text: str) -> list[SimpleCommand]:
    """Returns the simple commands of a shell file, in order. Raises `ValueError` for quotes that are not closed, or
    brackets that are nested too deeply."""
    return split_marked_commands(remove_marks(text))


def split_marked_commands(text: str) -> list[SimpleCommand]:
    """Returns the commands in a word that was read: what a shell has replaced in the word stays marked."""
    try:
        return list(_Reader(text.replace("\r\n", "\n")).read())
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


class _Reader:
    """Reads commands from ``at`` on."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.ends = [match.start() for match in re.finditer("\n", text)]  # of lines
        self.inside: list[str] = []
        self.depth = 0  # of parentheses
        self.input = ""
        self.delimiters: list[str] = []  # of here-documents that begin with the next line

    def read(self) -> Iterator[SimpleCommand]:
        before = "\n"
        while self.at < len(self.text):
            command = self._read_command(before)
            before = command.after
            is_pattern = before == ")" and not self.depth and "case" in self.inside
            self.depth = max(0, self.depth + (before == "(") - (before == ")"))
            if not is_pattern and (command.words or command.redirections or command.arrays):
                yield command

    def _read_command(self, before: str) -> SimpleCommand:
        words: list[str] = []
        redirections: list[str] = []
        arrays: dict[str, tuple[str, ...]] = {}
        self._skip(_BLANKS)
        line, after, self.input = bisect(self.ends, self.at - 1) + 1, "\n", ""
        while self.at < len(self.text):
            if match := _REDIRECTION.match(self.text, self.at):
                redirections.append(self._read_redirection(match))
            elif match := _OPERATOR.match(self.text, self.at):
                self.at, after = match.end(), match[0]
                break
            elif match := _ARRAY.match(self.text, self.at):
                self.at = match.end()
                arrays[match[1]] = self._read_array()
            else:
                self._add_word(self.read_word(), words)
            self._skip(_BLANKS)
        here = self._read_here_documents() if after == "\n" else None
        inside = tuple(self.inside)
        return SimpleCommand(tuple(words), line, tuple(redirections), self.input, before, after, inside, arrays, here)

    def _add_word(self, word: str, words: list[str]) -> None:
        """Adds a word to its command, unless it is one that begins or ends a compound command."""
        if words:
            words.append(word)
        elif word in _OPENING:
            self.inside = [*self.inside[-_NESTING_LIMIT:], word]
            if word in {"for", "select", "case"}:
                words.append(word)
        elif word in _CLOSING:
            del self.inside[-1:]
        elif word not in _SKIPPED:
            words.append(word)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _read_array(self) -> tuple[str, ...]:
        items: list[str] = []
        self._skip(_BLANKS_IN_ARRAY)
        while self.at < len(self.text) and self.text[self.at] not in ";&|()<>":
            items.append(self.read_word())
            self._skip(_BLANKS_IN_ARRAY)
        self._expect(")", "parenthesis")
        return tuple(items)

    def _read_redirection(self, match: re.Match[str]) -> str:
        start, self.at = self.at, match.end()
        self._skip(_BLANKS)
        target = self.read_word()
        if match[0] in {"<", "0<"}:
            self.input = target
        elif match[0].lstrip("0123456789") in {"<<", "<<-"} and len(self.delimiters) < _NESTING_LIMIT:
            self.delimiters.append(remove_marks(target))
        return _CONTINUATION.sub("", self.text[start : self.at])

    def _read_here_documents(self) -> tuple[str, int] | None:
        last = None
        for delimiter in self.delimiters:
            match = re.compile(rf"^\t*{re.escape(delimiter)}$\n?", re.MULTILINE).search(self.text, self.at)
            end = match.start() if match else len(self.text)
            last = (self.text[self.at : end], bisect(self.ends, self.at - 1) + 1)
            self.at = match.end() if match else end
        self.delimiters = []
        return last

    def read_word(self) -> str:
        pieces, start = list[str](), self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and self.text[self.at + 1 : self.at + 2] != "("):
                break
            pieces.append(self._read_piece(char, self.at == start))
        return "".join(pieces)

    def _read_piece(self, char: str, is_first: bool) -> str:
        if char in QUOTED + BARE:
            return self._take_to(END)
        if char == "\\":
            piece = self._take(2)
            return "" if piece == "\\\n" else piece[1:]
        if char == "$" and self.text[self.at + 1 : self.at + 2] in {"'", '"'}:
            self.at += 1
            return ""
        if char == "'":
            self.at += 1
            return self._take_to("'")[:-1]
        if char == '"':
            self.at += 1
            return self._read_double_quotes()
        if char in "$`<>":
            return self._read_expansion(BARE)
        if char in "*?" or (char == "~" and is_first):
            return f"{BARE}{self._take(1)}{END}"
        if match := _BRACES.match(self.text, self.at):
            return f"{BARE}{self._take(len(match[0]))}{END}"
        return self._take(1)

    def _read_double_quotes(self) -> str:
        pieces: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                piece = self._take(2)
                if piece[1:] in {'"', "\\", "$", "`"}:
                    piece = piece[1:]
                pieces.append("" if piece == "\\\n" else piece)
            elif char in "$`":
                pieces.append(self._read_expansion(QUOTED))
            else:
                pieces.append(self._take(1))
        self._expect('"', "quotation")
        return "".join(pieces)

    def _read_expansion(self, mark: str) -> str:
        """Returns what begins here with ``$``, a backquote, ``<(`` or ``>(``."""
        start = self.at
        following = self.text[start + 1 : start + 2]
        if self.text[start] == "`":
            self.at += 1
            self._take_to("`")
        elif following in {"(", "{"}:
            self.at += 2
            self._skip_brackets(following, ")" if following == "(" else "}")
        elif match := _NAME.match(self.text, start):
            self.at = match.end()
        else:
            return self._take(1)
        return f"{mark}{remove_marks(self.text[start : self.at])}{END}"

    def _skip_brackets(self, opening: str, closing: str) -> None:
        """Goes on behind the closing bracket; quotes and brackets in between are skipped as wholes."""
        while self.at < len(self.text) and self.text[self.at] != closing:
            char = self._take(1)
            if char == "\\":
                self.at += 1
            elif char == "'" and closing == ")":
                self._take_to("'")
            elif char == '"':
                self._read_double_quotes()
            elif char == opening:
                self._skip_brackets(opening, closing)
        self._expect(closing, "parenthesis")

    def _expect(self, char: str, what: str) -> None:
        if self._take(1) != char:
            raise ValueError(f"no closing {what}")

    def _take_to(self, char: str) -> str:
        end = self.text.find(char, self.at)
        if end < 0:
            raise ValueError("no closing quotation")
        return self._take(end + 1 - self.at)

    def _take(self, count: int) -> str:
        piece = self.text[self.at : self.at + count]
        self.at += len(piece)
        return piece

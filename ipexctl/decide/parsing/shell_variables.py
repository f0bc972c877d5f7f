"""Variables of a shell file, as far as they can be known without running it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ipexctl.decide.parsing.shell import BARE, END, EXPANSION, QUOTED, SimpleCommand, remove_marks

Value = str | tuple[str, ...]  # the latter of an array
_REPLACED_LIMIT = 4 << 20  # characters that the variables of a file stand for; each may stand for others twice
_NUMBER_LENGTH, _PRODUCT_LENGTH = 20, 1000  # characters of a variable in a product, and of the product
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*\+?)=(.*)", re.DOTALL)  # NAME+=VALUE appends
_PLAIN = re.compile(r"\$\{?([A-Za-z_]\w*|[0-9@*])\}?")
_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_PARAMETER = re.compile(r"\$\{?[\d@*]")
_PRODUCT = re.compile(r"[\s(]*\d{1,9}(?:[\s)]*\*[\s(]*\d{1,9})*[\s)]*")
_FIELD = re.compile(rf"(?:[{QUOTED}{BARE}][^{END}]*{END}|\S)+")
_DECLARING = {"export", "declare", "typeset", "readonly", "local", "setenv"}


class ShellVariables:
    """``exports`` are those that programs see. A variable is known if it is assigned outside of conditions and loops
    alone, and once in a file with functions; ``given`` are known from elsewhere."""

    def __init__(self, commands: Sequence[SimpleCommand], given: Mapping[str, Value]) -> None:
        self.values: dict[str, Value] = dict(given)
        self.exports: dict[str, str] = {}
        self._room = _REPLACED_LIMIT
        has_functions = any(command.after == "(" or command.words[:1] == ("function",) for command in commands)
        counts = Counter(name for command in commands for name in (*_list_assigned(command), *_list_read(command)))
        self._repeated = {name for name, count in counts.items() if count > 1}
        self._unknown = self._repeated.copy() if has_functions else set()
        for command in commands:
            is_conditional = bool(command.inside) or command.before in {"&&", "||"}
            self._unknown.update(_list_read(command), _list_assigned(command) if is_conditional else ())

    def read(self, command: SimpleCommand) -> None:
        """Takes what a command assigns and exports."""
        for name, items in command.arrays.items():
            self._assign(name, tuple(each for item in items for each in self.expand(item)))
        head = command.words[0] if command.words else ""
        if head == "shift":
            given = self.values.get("@", ())
            texts = {name: f"${name} {value}" for name, value in self.values.items()}
            self._room -= sum(map(len, texts.values()))
            kept = [name for name, text in texts.items() if self._room >= 0 and not _PARAMETER.search(text)]
            self.values = {name: self.values[name] for name in kept}
            count = (*command.words[1:], "1")[0]
            if given and self._room >= 0 and count.isdecimal() and not command.inside:
                self.values |= name_parameters(given[int(count) :])
        if head not in _DECLARING:
            if all(map(_ASSIGNMENT.fullmatch, command.words)):
                self._assign_words(command.words)
            return
        words = command.words[1:]
        if head == "setenv" and len(words) == 2:
            words = (f"{words[0]}={words[1]}",)
        self._assign_words(words)
        if head in {"export", "setenv"} or any(re.match(r"-\w*x", word) for word in words):
            for word in words:
                name = word.partition("=")[0]
                if re.fullmatch(r"[A-Za-z_]\w*", name):
                    value = self.values.get(name)
                    self.exports[name] = value if isinstance(value, str) else f"{QUOTED}${name}{END}"

    def _assign_words(self, words: Sequence[str]) -> None:
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word):
                self._assign(match[1], self._fill(match[2]))

    def _assign(self, target: str, value: Value) -> None:
        """``target`` is a name, or ``NAME+``, to which the value is appended."""
        name = target.rstrip("+")
        before = self.values.pop(name, None)
        if name in self._unknown or self._room < 0:
            return
        if target == name:
            text = value if isinstance(value, str) else " ".join(value)
            own = (re.search(rf"\b{name}\b", each) for each in EXPANSION.findall(text))  # what it was is not known
            if name not in self._repeated or not any(own):
                self.values[name] = value
            return
        if isinstance(before, str) and isinstance(value, str):
            self.values[name] = before + value
        elif isinstance(before, tuple) and isinstance(value, tuple):
            self.values[name] = (*before, *value)
        self._room -= len(before or "")

    def expand(self, word: str) -> list[str]:
        """Returns the words that a word becomes; what is not known stays as it is."""
        match = EXPANSION.fullmatch(word)
        value = self._find(match[1]) if match else None
        if value is None:
            return [self._fill(word)]
        every = [_mark(each, word[0]) for each in (value if isinstance(value, tuple) else (value,))]
        return every if word[0] == QUOTED else [field for each in every for field in _FIELD.findall(each)]

    def _fill(self, word: str) -> str:
        def fill(match: re.Match[str]) -> str:
            value = self._find(match[1])
            if value is None:
                return match[0]
            return _mark(value if isinstance(value, str) else " ".join(value), match[0][0])

        return EXPANSION.sub(fill, word)

    def _find(self, expansion: str) -> Value | None:
        """Returns what an expansion stands for; None where it is not known, or where all of them stand for too much."""
        value = self._look_up(expansion)
        self._room -= sum(len(each) + 1 for each in value) if isinstance(value, tuple) else len(value or "")
        return value if self._room >= 0 else None

    def _look_up(self, expansion: str) -> Value | None:
        """Returns the value of ``$NAME``, ``${NAME}``, ``${NAME[@]}`` or a product ``$((A * B))``."""
        if match := _PLAIN.fullmatch(expansion) or _ARRAY.fullmatch(expansion):
            return self.values.get(match[1])
        if not expansion.startswith("$((") or not expansion.endswith("))"):
            return None
        inner = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", self._fill_number, expansion[3:-2])
        if len(inner) > _PRODUCT_LENGTH or not _PRODUCT.fullmatch(inner):
            return None
        product = 1
        for number in re.findall(r"\d+", inner):
            product *= int(number)
        return str(product)

    def _fill_number(self, match: re.Match[str]) -> str:
        value = self.values.get(match[1])
        return value if isinstance(value, str) and len(value) <= _NUMBER_LENGTH else match[0]


def _mark(value: str, mark: str) -> str:
    """Returns a value in which everything that is not known is quoted, or bare, as the variable is that has it."""
    return value.translate({ord(QUOTED): mark, ord(BARE): mark})


def name_parameters(arguments: Sequence[str]) -> dict[str, Value]:
    """Returns ``$1`` … and ``$@`` of a shell file that gets these arguments."""
    named: dict[str, Value] = {str(number): word for number, word in enumerate(arguments, 1)}
    return named | {"@": tuple(arguments), "*": tuple(arguments)}


def _list_assigned(command: SimpleCommand) -> list[str]:
    names, words = list(command.arrays), command.words
    if words[:1] == ("setenv",):
        names += words[1:2]
    declares = bool(words) and words[0] in _DECLARING
    matches = [_ASSIGNMENT.fullmatch(word) for word in (words[1:] if declares else words)]
    if declares or all(matches):
        names += [match[1] for match in matches if match]
    return [name.rstrip("+") for name in names]


def _list_read(command: SimpleCommand) -> list[str]:
    """Variables whose values come from elsewhere: of a loop, or of what is read."""
    words = command.words
    if words[:1] in {("for",), ("select",)}:
        return [*map(remove_marks, words[1:2])]
    if words[:1] in {("read",), ("mapfile",), ("readarray",), ("unset",)}:
        return [word for word in words[1:] if word.isidentifier()]
    return []

"""Changes of a command line, which is a list of words without ``ipexctl``, and what is in it."""

from collections.abc import Collection, Sequence

VALUE_LIKENESS = 0.6  # least likeness of a value and the one it is taken for: that of difflib.get_close_matches
HOST_OPTIONS = ("-f", "--hostfile", "--hosts", "-l", "--limit")


def find_value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns what the command line has behind one of these names."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, equal, value = word.partition("=")
        if name in names:
            return value if equal else following
    return None


def replace_word(words: Sequence[str], old: str, new: str | None) -> list[str] | None:
    """The command line with another word in place of the first that is ``old``, or the option or value ``old``."""
    if new is None:
        return None
    for at, word in enumerate(words):
        name, equal, value = word.partition("=")
        if word == old:
            return [*words[:at], new, *words[at + 1 :]]
        if equal and old in (name, value):
            replaced = f"{new}={value}" if name == old else f"{name}={new}"
            if old == new:
                replaced = new
            return [*words[:at], replaced, *words[at + 1 :]]
    return None


def leave_out(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command line without arguments; the same words that options have for their values stay."""
    left = list(words)
    for name in names:
        places = [at for at, word in enumerate(left) if word == name]
        del left[next((at for at in places if not left[at - 1].startswith("-")), places[-1])]
    return left


def start_python(words: Sequence[str], option: str, own: Collection[str]) -> list[str]:
    """The command line that starts Python with an option of it: behind the command's own ones."""
    at = words.index(option)
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    end = next((each for each in range(at + 1, script) if words[each].partition("=")[0] in own), script)
    return [*words[:at], *words[end:script], "python", *words[at:end], *words[script:]]


def move_behind_script(words: Sequence[str], option: str, own: Collection[str]) -> list[str] | None:
    """The command line with an option and its values behind the script; None without a script."""
    first = next((at for at, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    script = next((at for at, word in enumerate(words) if at > first and word.endswith(".py")), None)
    if script is None:
        return None
    end = next((at for at in range(first + 1, script) if words[at].partition("=")[0] in own), script)
    return [*words[:first], *words[end : script + 1], *words[first:end], *words[script + 1 :]]


def find_nearest(word: str, names: Sequence[str], least: float = VALUE_LIKENESS) -> str | None:
    """The name that is most like the word: two letters exchanged, one letter less, one missing, one other,
    else those that most of it shares, from ``least`` on; of several the one that begins alike."""
    from difflib import SequenceMatcher

    def compute_likeness(name: str) -> tuple[float, int]:
        different = sum(a != b for a, b in zip(word, name, strict=True)) if len(name) == len(word) else len(name)
        if different <= 2 and sorted(name) == sorted(word):
            return 1.0, 0
        if name[:-1] == word or any(word[:at] + word[at + 1 :] == name for at in range(len(word))):
            return 0.995, 0
        if any(name[:at] + name[at + 1 :] == word for at in range(len(name))):
            return 0.992, 0
        if different == 1 and len(word) > 2:
            return 0.99, 0
        same = next(
            (at for at, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name))
        )
        return SequenceMatcher(None, word.lstrip("-"), name.lstrip("-")).ratio(), same

    best = max(names, key=compute_likeness, default=None)
    return best if best is not None and compute_likeness(best)[0] >= least else None

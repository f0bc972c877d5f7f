"""Errors of pydantic, as the end of a sentence whose subject is a key or a flag."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_TEXTS = {
    "missing": "is missing", "tuple_type": "must be a list", "dict_type": "must be a mapping",
    "string_type": "must be a single value", "bool_type": "must be yes or no", "too_short": "is empty",
    "string_too_short": "must have at least one character",
    "string_pattern_mismatch": "must be words of letters and digits",
}  # fmt: skip
_PARSING = {"integer": "must be a whole number", "number": "must be a number", "boolean": "must be yes or no"}
_PARTS = {  # of the patterns in `tasks`
    r"/.+": "a path that begins with /", r"[1-9][0-9]*": "a number",
    r"[1-9]\d{0,6}": "a number of steps", r"\d{1,7}:\d{1,7}": "the first and the last step such as 10:15",
}  # fmt: skip


def describe_error(error: "ErrorDetails") -> str:
    """Describes an error of pydantic, or a message of another library, which has no ``type``."""
    kind, message = error["type"], error["msg"]
    pattern = str(error.get("ctx", {}).get("pattern", ""))
    text = message.removeprefix("Value error, ")
    if words := re.fullmatch(r"\^\((.*)\)\$", pattern):
        *names, last = (_PARTS.get(word, word) for word in words.group(1).split("|"))
        return f"must be {', '.join(names)} or {last}"
    if unable := re.match(r"Input should be a valid (\w+), unable to (?:parse|interpret)", text):
        return _PARSING.get(unable.group(1), text)
    if kind in _TEXTS:
        return _TEXTS[kind]
    if text.startswith("Input should be"):
        return text.replace("Input should be", "must be", 1)
    if text != message:
        return text
    return f"is wrong: {message}" if kind else message

"""Why something was decided, and what to know about it: decisions read the code, people the text."""

from ipexctl.model.json_values import Record


class Note(Record):
    """A remark or a reason: a stable ``code``, a sentence, and the hosts it is about (none: all of them). ``str(note)``
    is the sentence behind the names of its hosts: ``n1, n2: glibc 2.17, the wheels need 2.28``."""

    code: str
    text: str
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.hosts)
        return f"{names}: {self.text}" if names else self.text

"""Launch lines as guides, job scripts and reports have them, and the words of ``ipexctl run`` that do the same.

Each row of `LINES`: the line, the words, and the codes of what is said about it. A batch file or hostfile in a line is
one of `FILES`. Sources: guides of Hugging Face, Horovod, DeepSpeed, Lightning and Slurm; job scripts and issues on
GitHub."""

from tests.tables import read_table

FILES: dict[str, str] = dict(read_table("launch_lines/files"))

LINES: list[tuple[str, str, str]] = read_table("launch_lines/lines")

REFUSED: list[tuple[str, str]] = read_table("launch_lines/refused")

"""Pages as HTML. Everything that a user, a rank or a host wrote passes `clean` and Jinja's escaping."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import StringIO
from statistics import median
from typing import Any

from markupsafe import Markup, escape

from ipexctl import __version__
from ipexctl.model.answers.doctor import LinkSpeed
from ipexctl.model.answers.saved import CompareAnswer
from ipexctl.model.facts import Facts
from ipexctl.model.page import DoctorRecord, Figure, HostPart, LogExcerpt, LogLine, RankRow, RunPage
from ipexctl.model.profile import Profile
from ipexctl.model.text import format_clock, format_size, format_time, group_pairs, pluralize, strip_colours
from ipexctl.show.answers.run import format_profile
from ipexctl.show.compare_screen import describe_run, list_figure_rows, name_columns
from ipexctl.show.page import drawings
from ipexctl.show.page.verdict import make_verdict
from ipexctl.show.phrases import format_backend, format_duration, format_hosts
from ipexctl.show.sanitise import escape as clean
from ipexctl.show.sanitise import escape_lines

_LOGS = 8 << 20  # characters of all logs of a page, markup included
_KINDS = (
    ("start", "start"), ("python", "Python"), ("torch", "torch"), ("rendezvous", "rendezvous"),
    ("setup", "setup of the script"), ("running", "running"),
    ("wait", "waits in a collective"), ("stall", "no progress"), ("odd", "the others wait for it"),
    ("straggles", "still running when the others were done"), ("lost", "no sign of its host"),
)  # fmt: skip
_MARKS: Mapping[str, str] = {
    "ended": "ended well", "stopped": "ended by ipexctl", "failed": "failed or lost", "lost": "failed or lost",
    "restart": "started again", "figure": "a figure is no number",
}  # fmt: skip
_SECTIONS = (
    ("time", "Time"), ("figures", "Figures"), ("resources", "Over time"), ("hosts", "Hosts"), ("network", "Network"),
    ("profile", "Profile"), ("plan", "Plan"), ("logs", "Logs"),
)  # fmt: skip
_PROFILE = 120  # columns of the tables of a profile
_DRAWN = 64  # hosts whose processors are drawn


@cache
def _make_environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    directory = files("ipexctl.show.page")
    loader = FunctionLoader(lambda name: directory.joinpath(name).read_text("utf-8"))
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    filters: dict[str, Callable[..., object]] = {
        "clean": lambda value: clean(strip_colours(str(value))),
        "clean_lines": lambda value: "\n".join(escape_lines(strip_colours(str(value)))),
        "figure": lambda value: "" if value is None else drawings.format_value(value),
        "clock": format_clock,
        "described": describe_run,
        "events": _describe_row,
    }
    environment.filters |= filters
    return environment


def render_template(name: str, **values: object) -> str:
    """A page from its template, with the style and the script in it and their hashes in its policy."""
    texts = {kind: files("ipexctl.show.page").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")}
    template = _make_environment().get_template(f"{name}.html.j2")
    sources = {"style": Markup(texts["css"]), "script": Markup(texts["js"])}
    # What Content-Security-Policy calls an inline style or script.
    digests = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in sources.items()
    }
    hashes = {f"{name}_hash": f"sha256-{digest}" for name, digest in digests.items()}
    return str(template.render(**values, **sources, **hashes, version=__version__))


def render_run(page: RunPage, *, renew: bool = False) -> str:
    """The page of a run. ``renew``: it asks for itself again."""
    study = []
    if page.study:
        from ipexctl.show.page.study import draw_study

        study = draw_study(page.study)
    return render_template("run", renew=renew, study=study, **_draw_parts(page))


def _draw_parts(page: RunPage) -> dict[str, object]:
    """What the template shows of a run."""
    drawn: dict[str, list[dict[str, object]]] = {"rank": [], "host": []}
    for figure in page.figures:
        by = "host" if figure.key in ("rank cpu", "rank memory") else figure.by
        least = page.length / 500  # seconds of a curve that is seen
        if curves := tuple(curve for curve in figure.curves if curve.points[-1][0] - curve.points[0][0] > least):
            figure = replace(figure, curves=curves)
            drawn[by].append(_draw_figure(figure, page.length, page.restarts, _find_broken(page, figure.key)))
    used = {span.kind for row in page.rows for span in row.spans}
    marks = {mark.kind for row in page.rows for mark in row.marks}
    present = {"figures": drawn["rank"], "resources": drawn["host"], "profile": page.profile}
    harmless = sum(bool(line.harmless) for log in page.logs for line in log.lines)
    lines, hidden = pluralize(sum(len(log.lines) for log in page.logs), "line"), pluralize(harmless, "harmless line")
    joules = [host.joules for host in page.hosts if host.joules is not None]
    return {
        "page": page,
        "verdict": make_verdict(page),
        "summary": _format_summary(page),
        "sections": [(name, title) for name, title in _SECTIONS if present.get(name, True)],
        "timeline": drawings.draw_timeline(page.rows, page.length),
        "kinds": [(kind, title) for kind, title in _KINDS if kind in used],
        "marks": dict.fromkeys((drawings.GLYPHS[kind], title) for kind, title in _MARKS.items() if kind in marks),
        "figures": drawn,
        "hosts": _list_hosts([(host.host, host.facts, host.lost or host.straggles) for host in page.hosts]),
        "topologies": _draw_topologies(page),
        "heat": _draw_links([host.host for host in page.hosts], page.links),
        "measured": format_time(page.doctor.speed_at) if page.doctor else "",
        "variables": _list_variables(page),
        "stacks": _list_installed_stacks(page),
        "held": [(finding, format_hosts(finding.hosts) or "all") for finding in page.findings],
        "checked": _describe_checks(page.doctor, bool(page.findings)),
        "tiles": _list_tiles(page, joules),
        "harmless": f"show {hidden} of {lines}" if harmless else f"{lines}, none known as harmless",
        "profile": _format_profile(page.profile) if page.profile else "",
        "logs": _render_logs(page.logs, page.launcher),
    }


def render_comparison(answer: CompareAnswer, figures: Sequence[Figure]) -> str:
    """The page of several runs side by side; ``figures`` have a curve per run."""
    runs = list(zip(name_columns(len(answer.compared)), answer.compared, strict=True))
    length = max(run.seconds for _, run in runs)
    return render_template(
        "compare",
        renew=False,
        title=f"{pluralize(len(runs), 'run')} side by side",
        runs=runs,
        rows=list_figure_rows(answer),
        summary=answer.summary,
        length=length,
        figures=[_draw_figure(figure, length) for figure in figures],
        groups=list(group_pairs((each.of, each) for each in answer.differences).items()),
    )


def _draw_links(names: Sequence[str], links: Sequence[LinkSpeed]) -> list[tuple[str, Markup]]:
    figures = {"Latency in µs": "latency", "Bandwidth in Gbit/s": "rate"}
    drawn = {title: drawings.draw_heat_map(names, links, figure) for title, figure in figures.items()}
    return [(title, drawing) for title, drawing in drawn.items() if drawing]


def _format_summary(page: RunPage) -> str:
    parts = [pluralize(len(page.rows), "rank"), pluralize(len(page.hosts), "host")]
    if page.launch:
        used = page.report.run.backend if page.report.run else ""
        parts += [page.launch.launcher, format_backend(used or page.launch.backend, page.launch.backend)]
    parts.append(format_time(page.begun, "%Y-%m-%d %H:%M:%S"))
    return " · ".join(clean(part) for part in parts if part)


def _list_tiles(page: RunPage, joules: Sequence[float]) -> list[tuple[str, str]]:
    """The few figures that stand above all: name and value."""
    figures = {figure.key: figure.curves for figure in page.figures if figure.by == "rank"}
    paces = [row.pace for row in page.rows if row.pace is not None]
    first = min((curve.points[0][0] for name in ("loss", "pace") for curve in figures.get(name, ())), default=None)
    memory = [value for curve in figures.get("rank memory", ()) for _, value in curve.points]
    unit = next((figure.unit for figure in page.figures if figure.key == "rank memory"), "")
    tiles = [("time", format_duration(page.seconds))]
    if paces:
        tiles.append(("pace", f"{drawings.format_value(median(paces))} it/s"))
    for key in ("loss", "train_loss", "eval_loss"):
        if curves := figures.get(key):
            values = [drawings.format_value(curves[0].points[at][1]) for at in (0, -1)]
            if _find_broken(page, key):
                values.append("no number")
            tiles.append((key.replace("_", " "), " → ".join(dict.fromkeys(values))))
    if first is not None:
        tiles.append(("first figure", f"after {format_duration(first)}"))
    if memory:
        tiles.append(("memory of a rank", f"{drawings.format_value(max(memory))} {unit}"))
    return [*tiles, *([("energy", _format_energy(joules, len(page.hosts)))] if joules else [])]


def _find_broken(page: RunPage, figure: str) -> list[float]:
    """When a value of this figure was no number for the first time, if ever."""
    return sorted(mark.at for row in page.rows for mark in row.marks if mark.figure == figure)[:1]


def _format_profile(profile: Profile) -> str:
    from rich.console import Console

    stream = StringIO()
    console = Console(file=stream, width=_PROFILE, color_system=None, markup=False, emoji=False, highlight=False)
    for item in format_profile(profile):
        console.print(item, crop=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _draw_figure(
    figure: Figure, length: float, breaks: Sequence[float] = (), broken: Sequence[float] = ()
) -> dict[str, object]:
    high, low = drawings.list_scale(figure)
    shown, alike = drawings.choose_curves(figure)
    keys = [(f"c{number % 8}", curve.name) for number, curve in enumerate(shown)]
    if alike:
        keys.append(("band", f"{len(alike)} {figure.by}s, least to greatest"))
    if broken:
        keys.append(("nan", f"no number from {format_clock(broken[0])} on"))
    drawing = drawings.draw_chart(figure, length, breaks, broken)
    return {"title": figure.title, "unit": figure.unit, "keys": keys, "high": high, "low": low, "drawing": drawing}


def _format_energy(joules: Sequence[float], hosts: int) -> str:
    total = sum(joules) / 3600
    text = f"{total / 1000:.3g} kWh" if total >= 1000 else f"{total:.3g} Wh"
    return f"{text} on {len(joules)} of {pluralize(hosts, 'host')}"


def _describe_row(row: RankRow) -> str:
    """What happened to a rank, for the table and for those who do not see the drawing."""
    kinds = ("wait", "stall", "odd", "straggles")
    waits = [span for span in row.spans if span.kind in kinds]
    notes = [(span.begin, f"{span.text} for {format_duration(span.end - span.begin)}") for span in waits]
    notes += [(mark.at, mark.text) for mark in row.marks]
    texts = [f"{format_clock(at)} {clean(text)}" for at, text in sorted(notes)]
    return "; ".join([*texts, *([clean(row.straggles)] if row.straggles else [])])


def _list_hosts(hosts: Iterable[tuple[str, Facts | None, str]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("host", "processor", "ISA", "cores", "memory", "system", "Python", "remark")]
    for name, facts, remark in hosts:
        if facts is None:
            rows.append((name, *[""] * 6, remark or "nothing is recorded of it"))
            continue
        cores = " × ".join(
            str(n) if n else "?" for n in (facts.sockets, facts.cores_per_socket, facts.threads_per_core)
        )
        memory = format_size(facts.mem_total_kb * 1024) if facts.mem_total_kb else ""
        system = ", ".join(part for part in (facts.distribution, facts.glibc and f"glibc {facts.glibc}") if part)
        python = facts.installed.python if facts.installed else None
        model = facts.uarch or facts.model_name or ""
        rows.append((name, model, facts.isa_level or "", cores, memory, system, python or "", remark))
    return rows


def _draw_topologies(page: RunPage) -> list[tuple[str, Markup, str]]:
    drawn = []
    for host in page.hosts[:_DRAWN]:
        if drawing := drawings.draw_topology(host.host, host.facts, page.launch):
            drawn.append((host.host, drawing, clean(" · ".join(_describe_placement(page, host)))))
    return drawn


def _describe_placement(page: RunPage, host: HostPart) -> list[str]:
    """How many ranks a host has, and which network card they use."""
    words = [pluralize(sum(row.host == host.host for row in page.rows), "rank")]
    planned = page.launch.hosts.get(host.host) if page.launch else None
    if planned is None:
        return words
    cards = {card.name: card.speed for card in (host.facts.interfaces if host.facts else ())}
    speed = cards.get(planned.interface)
    return [*words, f"{planned.interface} {planned.address}", *([f"{speed / 1000:g} Gbit/s"] if speed else [])]


def _list_variables(page: RunPage) -> list[tuple[str, str, str, str]]:
    """Variable, value, reason and hosts: a row per value."""
    rows = []
    everywhere = len(page.launch.hosts) if page.launch else 0
    for name, hosts in sorted(page.variables.items()):
        groups = group_pairs((setting, host) for host, setting in hosts.items())
        for (value, source), members in groups.items():
            rows.append((name, value, source, "all" if len(members) == everywhere else format_hosts(members)))
    return rows


def _list_installed_stacks(page: RunPage) -> list[tuple[str, str]]:
    stacks = []
    for host in page.hosts:
        if host.facts and (installed := host.facts.installed):
            marker = installed.marker
            text = f"{marker.stack.name} · lock {marker.id} · {marker.prefix}" if marker else installed.venv
            stacks.append((text, host.host))
    return [(text, format_hosts(members)) for text, members in group_pairs(stacks).items()]


def _describe_checks(doctor: DoctorRecord | None, held: bool) -> str:
    if doctor:
        at = format_time(doctor.at)
        return f"Findings of doctor, {at}." if held else f"doctor, {at}: no finding that lasts."
    return "" if held else "The hosts were not checked in this run: ipexctl doctor does."


# logs -------------------------------------------------------------------------------------------------------------


_LOG = Markup(
    '<details class="log" id="{}"><summary>{} <span class="quiet">{} · {}</span></summary>'
    '<div class="lines" tabindex="0" role="log" aria-label="{}">{}</div></details>'
)


def _render_logs(logs: Sequence[LogExcerpt], launcher: Sequence[LogLine]) -> Markup:
    room = _LOGS // max(len(logs), 1)
    parts = [_render_log(log, room) for log in logs]
    if launcher:
        lines, count = Markup("".join(map(_render_line, launcher[-200:]))), pluralize(len(launcher), "line")
        parts.append(_LOG.format("mpirun", "mpirun", "", count, "Lines of mpirun", lines))
    return Markup("\n").join(parts)


def _render_line(line: LogLine) -> str:
    """Markup, as a string: a page has tens of thousands of lines, and `Markup` would copy each of them."""
    classes = " ".join(name for name, holds in (("e", line.error), ("h", line.harmless)) if holds)
    attribute = f' class="{classes}"' if classes else ""
    tenths = int(max(line.at, 0.0) * 10)
    moment = f"{format_clock(tenths // 10)}.{tenths % 10}"
    return f'<p data-t="{moment}"{attribute}>{escape(clean(strip_colours(line.text)))}</p>'


def _render_log(log: LogExcerpt, room: int) -> Markup:
    """The lines of a rank, as many as ``room`` characters hold: a quarter of it from the beginning."""
    lines, who = log.lines, f"rank {log.rank}"
    head = _render_fitting(lines[: log.gap or None], room // 4)
    tail = _render_fitting(reversed(lines[max(len(head), log.gap) :]), room - sum(map(len, head)))
    dropped = lines[len(head) : len(lines) - len(tail)]
    omitted = log.omitted + sum(len(line.text.encode()) + 1 for line in dropped)
    if omitted:
        words = f"{format_size(omitted)} of this rank's output are left out; the saved run has them"
        head.append(Markup('<p class="cut">{}</p>').format(words))
    harmless = sum(bool(line.harmless) for line in lines)
    about = pluralize(len(lines), "line") + (f", {harmless} of them harmless" if harmless else "")
    text = Markup("".join([*head, *reversed(tail)]))
    return _LOG.format(f"rank-{log.rank}", who, clean(log.host), about, f"Lines of {who}", text)


def _render_fitting(lines: Iterable[LogLine], room: int) -> list[str]:
    rendered: list[str] = []
    for line in lines:
        if room <= 0:
            break
        rendered.append(_render_line(line))
        room -= len(rendered[-1])
    return rendered

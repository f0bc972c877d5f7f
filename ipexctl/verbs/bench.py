"""``ipexctl bench bert``: BERT in fp32 and bf16, by stock torch, torch.compile and IPEX, as one study."""

from dataclasses import replace
from pathlib import Path

from ipexctl.act.bundled_files import find_bundled_file
from ipexctl.act.context import Context
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.events import Workflow
from ipexctl.model.hosts import Inventory
from ipexctl.model.tasks import Bench, Run, Tune
from ipexctl.model.text import pluralize
from ipexctl.show.page.study import draw_bars
from ipexctl.verbs.common.pages import check_destination, write_page
from ipexctl.verbs.run.request import read_request
from ipexctl.verbs.run.run import prepare_run
from ipexctl.verbs.tune import HostStudy, run_study

_PACKAGES = {"torch": "torch", "IPEX": "intel-extension-for-pytorch"}
_FORMS = ("stock-bf16", "compile-fp32", "compile-bf16", "ipex-fp32", "ipex-bf16")  # beside the default, stock-fp32


class FormStudy(HostStudy):
    """A study that tries each form once; one may take as long as all of them."""

    def search(self) -> Workflow[None]:
        for form in self.started.knobs["--form"]:
            if self.count_left() > 0:
                yield from self.try_launch({"--form": form})
        if self.count_left() > 0:
            yield from self.try_default()  # which shows the noise

    def choose_limit(self) -> float:
        return max(self.started.budget - self.watch(), 60.0)


def bench(task: Bench, inventory: Inventory, context: Context, *, dry: bool = False) -> Workflow[None]:
    """Measures each form that the hosts can compute, in turn with stock torch in fp32, and yields a `TuneAnswer`."""
    if task.plot:
        check_destination(Path(task.plot))
    words = ["--mode", task.mode, "--size", task.size, "--batch", str(task.batch), "--steps", str(task.steps)]
    base = Run(
        script=str(find_bundled_file("examples", "bench/bert.py")),
        args=tuple(words),
        ppn=1 if task.cluster else None,
        instances=None if task.cluster else "1",
        backend="gloo" if task.cluster else Run.__dataclass_fields__["backend"].default,
        venv=task.venv,
        stall_warn=0.0,
        metrics_every=0.0,
    )
    request = read_request(base, context.environ, dry=dry, emit=None)
    prepared = yield from prepare_run("bench", request, inventory, context)
    if prepared is None:
        return
    settings = Tune(script=base.script, metric="samples_s", steps=task.steps, budget=f"{task.time_limit:g}s")
    installed = [fact.installed.packages if fact.installed else {} for fact in prepared.facts.values()]
    with_ipex = all(_PACKAGES["IPEX"] in packages for packages in installed)
    skipped = [*([] if with_ipex else ["ipex"]), *([] if task.compile else ["compile"])]
    forms = [form for form in _FORMS if form.partition("-")[0] not in skipped]
    study = FormStudy(settings, prepared, context, {"--form": forms})
    size = f"{pluralize(task.batch, 'sample')} a step on each of {pluralize(len(prepared.facts), 'host')}"
    title = f"BERT {task.size}, {'training' if task.mode == 'train' else 'inference'}, {size}"
    versions = {name: installed[0].get(package) for name, package in _PACKAGES.items()}  # those of all hosts
    title += "".join(f", {name} {version}" for name, version in versions.items() if version)

    def finish(answer: TuneAnswer, interrupted: bool) -> TuneAnswer:
        rows = tuple(replace(row, name=str(row.values.get("--form", "stock-fp32"))) for row in answer.launches)
        if task.plot:
            write_page(Path(task.plot), draw_bars(title, answer.metric, rows), 0o644)
        return replace(answer, script=title, launches=rows)

    yield from run_study("bench", study, finish, dry=dry)

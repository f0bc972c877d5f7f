"""Packages that do not fit the build of torch beside them, from the text of ``ipexctl/data/torch_builds.toml``."""

from collections.abc import Iterable, Mapping

from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml


class Misfit(Record):
    """A package that cannot work beside this torch: ``why``, and what to do instead."""

    name: str
    why: str
    fix: str


class TorchBuilds(Record):
    """The table; its comment explains the fields."""

    cpu_builds: Mapping[str, str]
    ended: Mapping[str, str]
    needs_cuda: Mapping[str, str]

    def find_other_builds(self, packages: Mapping[str, str], index: str) -> list[Misfit]:
        """Packages of another build than torch itself: one is for the CPU, the other for CUDA. ``index`` is the URL of
        the index that has the CPU builds."""
        torch = packages.get("torch", "")
        misfits = []
        for name in self.cpu_builds.keys() & packages.keys():
            version = packages[name]
            for_cpu, fits = _is_for_cpu(version), _is_for_cpu(version) == _is_for_cpu(torch)
            why = f"{name} {version} is built for {'the CPU build of torch' if for_cpu else 'a torch with CUDA'}"
            fix = f"--extra-index-url {index}, or --find-links DIRECTORY, that has the CPU builds of torch and {name}"
            misfits += [] if fits else [Misfit(name, f"{why}, and beside it is torch {torch}", fix)]
        return sorted(misfits, key=lambda misfit: misfit.name)

    def find_misfits(self, packages: Mapping[str, str], failed: Iterable[str], index: str) -> list[Misfit]:
        """All packages that may be why an environment cannot be imported. ``failed`` are those that were not."""
        torch = packages.get("torch", "")
        ended = [
            Misfit(name, f"{name} ended with torch {last}, and beside it is torch {torch}", f"leave {name} out")
            for name, last in self.ended.items()
            if name in packages and not torch.startswith(f"{last}.")
        ]
        return [*self.find_other_builds(packages, index), *ended, *self.find_for_cuda(failed)]

    def find_for_cuda(self, names: Iterable[str]) -> list[Misfit]:
        """Returns those of these packages that are of no use without CUDA."""
        names = sorted(self.needs_cuda.keys() & set(names))
        return [
            Misfit(name, f"{name} is made for CUDA", f"leave {name} out: {self.needs_cuda[name]}") for name in names
        ]


def parse_torch_builds(text: str) -> TorchBuilds:
    """Returns the table of ``torch_builds.toml``."""
    return TorchBuilds(**parse_toml(text))


def _is_for_cpu(version: str) -> bool:
    return version.partition("+")[2].startswith("cpu")

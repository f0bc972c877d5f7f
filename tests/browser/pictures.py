"""The pictures of pages in docs/images: python -m tests.browser.pictures"""

import tempfile
from pathlib import Path

from ipexctl.decide.page.compare import compare_runs, overlay_figures
from ipexctl.show.page.render import render_comparison, render_run
from tests.browser.driver import start_browser
from tests.unit.page.runs import fold_page, make_doctor, make_run
from tests.unit.page.test_compare import make_other
from tests.unit.show.streams import names

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def take_pictures(images: Path) -> None:
    with tempfile.TemporaryDirectory() as directory, start_browser(Path(directory) / "profile") as browser:
        page = Path(directory) / "page.html"
        for name, kind, ranks, hosts, width, height, dark in [
            ("page-run", "failed", 8, 4, 1400, 1150, False),
            ("page-hang", "hang", 8, 4, 1400, 620, True),
            ("page-small", "lost", 4, 2, 390, 844, False),
        ]:
            page.write_text(
                render_run(
                    fold_page(
                        make_run(kind, ranks, hosts, 600.0, words="batch 812 has no label"), make_doctor(names(hosts))
                    )
                )
            )
            browser.show(page.as_uri(), width=width, dark=dark)
            browser.take_picture(images / f"{name}.png", height)
        runs = [
            ("1120-103112-a3f2", fold_page(make_run("good"))),
            ("1120-110240-19c0", fold_page(make_other(0.9, threads="28"))),
        ]
        page.write_text(render_comparison(compare_runs(runs), overlay_figures(runs)))
        browser.show(page.as_uri())
        browser.take_picture(images / "page-compare.png", 900)


if __name__ == "__main__":
    take_pictures(IMAGES)

"""docs/findings.md says what the catalogue says."""

from tests.unit.doctor.corpus import ROOT
from tests.unit.doctor.test_findings import CATALOGUE
from tools.findings_page import render_findings_page

PAGE = ROOT / "docs" / "findings.md"


def test_the_page_is_the_catalogue() -> None:
    assert PAGE.read_text() == render_findings_page(CATALOGUE)


if __name__ == "__main__":
    PAGE.write_text(render_findings_page(CATALOGUE))

"""The bars of a benchmark as a picture."""

import xml.etree.ElementTree as ET

from ipexctl.model.answers.tune import TriedLaunch
from ipexctl.show.page.study import draw_bars


def test_the_picture_is_xml_with_a_bar_for_each_rate_whatever_the_labels() -> None:
    rates = {"stock-fp32": 10.0, "stock-bf16": 20.0, "ipex-bf16": None}
    rows = [
        TriedLaunch(name, {}, 1, rate, rate, None, None, False, "" if rate else "no \x1bIPEX", "")
        for name, rate in rates.items()
    ]
    picture = draw_bars("BERT <&>", "samples/s", rows)
    root = ET.fromstring(picture)
    bars = [float(bar.get("width", "0")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [160.0, 320.0, 0.0]
    assert "\x1b" not in picture

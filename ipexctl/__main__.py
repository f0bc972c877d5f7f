"""``python -m ipexctl`` is ``ipexctl``."""

from ipexctl.cli import main

main()

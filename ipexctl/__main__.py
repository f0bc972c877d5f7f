"""The program: ``ipexctl``, and ``python -m ipexctl``."""

import gc
import os
import sys


def main() -> None:
    """Runs the command line. Ctrl-C is 130 until a command takes signals over; once it ended, its code stands."""
    # Nearly all we make lives to the end: looking for what does not costs a tenth. A short run makes 90,000 objects.
    gc.set_threshold(100_000, 20, 50)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # a service has closed it: no file of ours may take its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from ipexctl.cli import main as run
    except KeyboardInterrupt:  # before there was our handler
        os._exit(130)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # what is left ends with the process, and needs no last collection


if __name__ == "__main__":
    main()

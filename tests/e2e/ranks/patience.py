"""For scripts that are to stall later: says that the rank still loads torch, which takes long beside other tests."""

import threading

loaded = threading.Event()


def tell() -> None:
    while not loaded.wait(5):
        print("loading", flush=True)


threading.Thread(target=tell, daemon=True).start()

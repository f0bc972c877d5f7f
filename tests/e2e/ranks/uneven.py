"""The last rank goes on long after the others have ended well."""

import os
import time

if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
    time.sleep(300)

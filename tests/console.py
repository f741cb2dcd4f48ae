"""The console script, as users start it. (Python ends `-m evolve` by the signal where an interrupt came in an unlucky
moment; a shell's status is the same.)"""

import sys
from pathlib import Path

EVOLVE = (sys.executable, str(Path(sys.executable).with_name("evolve")))

"""Never answers, and has a helper of its own that holds stdout open and never ends either."""

import subprocess
import sys
import time

import program


def fault(call: program.Message) -> None:
    """Sleep until killed."""
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    time.sleep(3600)


program.serve(fault)

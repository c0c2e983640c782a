import os
import subprocess
import sys

import pytest

from coterie.wire.cores import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to cores here")
def test_only_the_cores_that_this_process_may_use_count():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from coterie.wire.cores import usable_cores; print(usable_cores())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said) == 1 <= usable_cores() == len(os.sched_getaffinity(0))

"""What a device's installation can do: every method's client half, without anything that only the server has."""

import subprocess
import sys

from coterie.cli.entry import REST
from coterie.strategies.registry import BUILT_IN

SCRIPT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {rest!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import coterie.client.app as app
print({{name: sorted(app.handlers_of(name)) for name in {names!r}}})
"""


def test_no_client_half_needs_what_only_the_server_has():
    script = SCRIPT.format(rest=REST, names=list(BUILT_IN))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    handlers = eval(done.stdout)
    own = {name: kinds for name, kinds in handlers.items() if kinds}
    assert own == {
        "coterie": ["evaluate.head", "query.prototypes", "train.judged"],
        "ditto": ["train.ditto"],
        "fedamp": ["train.drawn"],
        "feddyn": ["train.dynamic"],
        "fedfomo": ["train.fomo"],
        "fedrod": ["evaluate.two_heads", "train.two_heads"],
        "ifca": ["evaluate.choose", "train.choose"],
        "per-fedavg": ["train.meta"],
        "pfedme": ["train.moreau"],
        "pfedocf": ["evaluate.mix", "query.errors", "train.coalitions"],
        "pfedsv": ["train.deliver", "train.personalize"],
        "spo": ["train.judge", "train.rays"],
        "ce": ["train.judge", "train.rays"],
    }

"""What `--json` prints when it is over, and how `--json` and `--quiet` go together."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.progress import Shown
    from coterie.runs import Comparison, Run


def shown(json: bool, quiet: bool) -> "Shown":
    """Both: the last line only."""
    return False if quiet else "json" if json else True


def tell_run(run: "Run") -> None:
    from coterie.progress import tell

    suspects = run.findings["suspects"].facts["suspects"] if "suspects" in run.findings else None
    tell("result", run=run.title, **{"run-dir": str(run.path)}, suspects=suspects, result=run.result)


def tell_comparison(compared: "Comparison") -> None:
    from coterie.progress import tell

    tell("result", **{"run-dir": str(compared.path)}, report=str(compared.report), rows=list(compared.rows))


def tell_end(number: int) -> None:
    """Of a run whose directory is on a server."""
    from coterie.progress import tell

    tell("result", number=number)

"""Going on with a run that stopped, wherever it ran, and with one that came to its end, for more rounds."""

from collections.abc import Sequence
from pathlib import Path

from coterie.client.participant import pick_device
from coterie.progress import Shown, progress_of
from coterie.runs import Run
from coterie.simulate import prepare, simulate, worker_pool
from coterie.strategies.method import Method
from coterie.strategies.observer import Observer
from coterie.strategies.registry import register
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError


def resume(
    path: str | Path,
    num_server_rounds: int | None = None,
    workers: int | None = None,
    progress: Shown = True,
    observers: Sequence[Observer] = (),
    strategy: type[Method] | None = None,
) -> Run:
    """Go on with the run in this directory after its last finished round; it ends as if it had never stopped.

        coterie.resume("runs/a")
        coterie.resume("runs/a", num_server_rounds=40)  # more rounds than it was begun with

    A run of `coterie up` goes on as real processes. `strategy` is the method's class, if the run was begun with one. The rest is
    as for `coterie.run`. Raises CoterieError if code or settings are not those that the run was begun with.
    """
    run = Run(path)
    if strategy is not None:
        register(strategy)
    config = prepare(config_of(run, num_server_rounds))
    if (run.path / "keys").is_dir():
        from coterie.deploy import up_again

        return up_again(config, run.path, progress)
    if config["run-id"]:
        raise ConfigError(
            f"{path}: is a run of a server; go on with it there: `coterie resume {path} --server HOST:PORT "
            "--root-certificates ca.crt`. What the clients of `flwr run`'s simulation kept ended with it: begin a new run"
        )
    pick_device(str(config["device"]))
    with worker_pool(workers) as pool, progress_of(progress, run.title, config) as shown:
        return simulate(config, run.path, pool, shown, observers)


def resume_on(
    server: str, authority: Path, path: str | Path, num_server_rounds: int | None = None, progress: Shown = True
) -> Run:
    """The same for a run of a server, which has its directory at the same place as this machine."""
    from coterie.deploy import submit

    run = Run(path)
    submit(config_of(run, num_server_rounds), server, authority, progress)
    return run


def config_of(run: Run, num_server_rounds: int | None) -> dict[str, Value]:
    return {**run.config, **({} if num_server_rounds is None else {"num-server-rounds": num_server_rounds})}

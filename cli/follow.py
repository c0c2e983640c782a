"""`coterie runs`, `watch` and `stop`: runs here by their directories, and those of a server by its address."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.machines import shown, tell_end, tell_run
from coterie.cli.show import say, show
from coterie.wire.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from coterie.page import Page
    from coterie.remote import Remote


def runs(place: str, server: str, root_certificates: str) -> None:
    from coterie.following import list_runs, listed, runs_table

    if server:
        if place:
            raise ConfigError(f"{place}: is a directory here; leave it out, or leave --server out")
        with _remote(server, root_certificates) as remote:
            found = remote.runs()
    else:
        found = listed(list_runs(*([place] if place else [])))
    if found:
        show([runs_table(found)])
    else:
        say(f"no runs {f'on {server}' if server else f'in {place}' if place else 'in runs and server/runs here'}")


def watch(
    run: str,
    server: str,
    root_certificates: str,
    web: bool,
    host: str,
    port: int | None,
    json: bool,
    quiet: bool,
) -> None:
    page = page_at(host, port, "web", web)
    if page:
        return _serve(run, server, page)
    try:
        from coterie.following import the_running, watch_run
        from coterie.runs import open_run

        if server:
            with _remote(server, root_certificates) as remote:
                number = remote.number(run)
                remote.watch(number, shown(json, quiet))
            if json:
                tell_end(number)
        else:
            done = watch_run(open_run(run) if run else the_running(), shown(json, quiet))
            if json:
                tell_run(done)
                return
            show(table for table in (done.result_table(), done.gain_table()) if table)
    except KeyboardInterrupt:
        say("not watched any more; the run goes on")


def page_at(host: str, port: int | None, flag: str, wanted: bool) -> "Page | None":
    if not wanted:
        if host or port:
            raise ConfigError(f"{'host' if host else 'port'}: is where the live page is to be; give --{flag}, too")
        return None
    from coterie.page import Page

    return Page(host or Page.host, port or 0)


def _serve(run: str, server: str, page: "Page") -> None:
    from coterie.following import the_running
    from coterie.page import serve

    if server:
        raise ConfigError(f"server = {server!r}: the page is made from a run directory; begin it where that is")
    place = Path(run).expanduser() if run else the_running().path
    if not place.is_dir():
        raise ConfigError(f"{run}: there is no such directory; `coterie runs` lists those of runs")
    serve(place.absolute(), page)
    say("the page is gone; the run is not touched")


def stop(run: str, server: str, root_certificates: str) -> None:
    from coterie.following import in_words, stop_run, the_running
    from coterie.runs import open_run

    if server:
        with _remote(server, root_certificates) as remote:
            number = remote.number(run)
            say(f"run {number}: {remote.stop(number)}", stderr=False)
    else:
        chosen = open_run(run) if run else the_running()
        say(f"{chosen.path}: {in_words(stop_run(chosen))}", stderr=False)


@contextmanager
def _remote(server: str, root_certificates: str) -> "Iterator[Remote]":
    import httpx

    from coterie.remote import Remote

    if not root_certificates:
        raise ConfigError("root-certificates: is needed with --server; it is ca.crt in the server's keys directory")
    remote = Remote(server, Path(root_certificates))
    try:
        yield remote
    except httpx.HTTPError as error:
        raise RunFailed(f"server = {server!r}: does not answer any more ({error})") from None
    finally:
        remote.control.close()

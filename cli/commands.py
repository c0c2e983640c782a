"""What each command does with its options: a call of the library, and what it prints. Imports wait until they are needed."""

import csv
import io
import math
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coterie
from coterie.cli.follow import page_at
from coterie.cli.machines import shown, tell_comparison, tell_end, tell_run
from coterie.cli.options import given_values, parse_list, parse_seeds, parse_sweep
from coterie.cli.show import say, show, show_matrix

if TYPE_CHECKING:
    import numpy as np

    from coterie.tasks.personal import PersonalModel


def run(
    settings: tuple[str, ...],
    workers: int | None,
    watch: bool,
    host: str,
    port: int | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    from coterie.runtime.foreground import stoppable

    page = page_at(host, port, "watch", watch)
    with _ended_by_signals("finished rounds are in the run directory"), stoppable():
        values = given_values(options, settings)
        done = coterie.run(settings=values, workers=workers, page=page, progress=shown(json, quiet))
    _show_run(done, json, quiet)


def resume(
    run: str,
    num_server_rounds: int | None,
    workers: int | None,
    server: str,
    root_certificates: str,
    json: bool,
    quiet: bool,
) -> None:
    from coterie.resuming import resume_on
    from coterie.runtime.foreground import stoppable

    with _ended_by_signals("finished rounds are in the run directory"), stoppable():
        if server:
            done = resume_on(server, Path(root_certificates), run, num_server_rounds, shown(json, quiet))
        else:
            done = coterie.resume(run, num_server_rounds, workers, shown(json, quiet))
    _show_run(done, json, quiet)


def _show_run(done: coterie.Run, json: bool, quiet: bool) -> None:
    if json:
        tell_run(done)
        return
    from coterie.folds import FILE, advice, folds_table
    from coterie.server.findings import suspects_in_words
    from coterie.server.results import judged_in_words, privacy_in_words

    show(table for table in (done.result_table(), done.gain_table()) if table)
    if (done.path / FILE).exists():
        show([folds_table(done.folds)])
    elif done.config["task"] == "own" and (advised := advice(done)):
        say(advised)
    if "suspects" in (findings := done.findings):
        say(suspects_in_words(findings["suspects"]), stderr=False)
    for finding in findings.values():
        if "in-words" in finding.facts:
            say(finding.facts["in-words"], stderr=False)
    for line in (*judged_in_words(done.result), *privacy_in_words(done.result)):
        say(line, stderr=False)
    if not quiet:
        say(f"run directory: {done.path}")


def compare(
    settings: tuple[str, ...],
    workers: int | None,
    strategies: str | None,
    seeds: str | None,
    preset: str,
    quick: bool,
    cell: str,
    sweep: tuple[str, ...],
    open: bool,
    json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    compared = coterie.compare(
        None if strategies is None else parse_list("strategies", strategies),
        None if seeds is None else parse_seeds(seeds),
        preset,
        quick,
        settings=given_values(options, settings),
        workers=workers,
        progress=shown(json, quiet),
        cell=cell,
        sweep=parse_sweep(sweep),
    )
    if json:
        tell_comparison(compared)
    else:
        show(compared.tables)
        _show_best(compared)
        if not quiet:
            say(f"run directory: {compared.path}")
        print(compared.report)
    if open:
        webbrowser.open(compared.report.as_uri())


def _show_best(compared: coterie.Comparison) -> None:
    """In words and as a picture: what the best method found out."""
    from coterie.server.report import best_of

    if compared.runs:
        sentences, run = best_of({one.path: "" for one in compared.runs})
        say(" ".join(sentences), stderr=False)
        show_matrix(run)


def data(settings: tuple[str, ...], plot: str, **options: Any) -> None:
    from coterie.overview import data_sets, who_gets_what

    values = given_values(options, settings)
    if "task" not in values and not plot:
        show([data_sets(str(values.get("data-root", "data")))])
        return
    show([who_gets_what(values, plot)])
    if plot:
        say(f"drawn: {Path(plot).absolute()}")


def schema(files: tuple[str, ...], settings: tuple[str, ...], output: str, **options: Any) -> None:
    from coterie.table_data import look_at, shown
    from coterie.wire.config import RunConfig
    from coterie.wire.files import write_atomically

    given = {**given_values(options, settings), "task": "own", "data": ",".join(files)}
    found, remarks, warnings = look_at(RunConfig.parse(given))
    show([shown(found)])
    for remark in (*remarks, *warnings):
        say(remark)
    if output:
        write_atomically(Path(output), [(found.bare().to_json(indent=2) + "\n").encode()])
        say(f"written: {Path(output).absolute()}")


def report(runs: tuple[str, ...], output: str, open: bool) -> None:
    from coterie.following import in_words
    from coterie.reporting import report_of
    from coterie.server.status import read_status

    path = report_of(runs, output)
    for run in runs:
        if (status := read_status(Path(run))).state == "running":
            say(f"still {in_words(status)}")
    print(path)
    if open:
        webbrowser.open(path.as_uri())


def export(model: str, onnx: str, network: str) -> None:
    from coterie.tasks.export import export_onnx
    from coterie.tasks.personal import load_personal

    facts = export_onnx(load_personal(Path(model), network), Path(onnx))
    say(f"written: {Path(onnx).absolute()}, and what goes in and comes out: {facts.absolute()}")


def predict(model: str, data: str, output: str, network: str, coverage: float, **reading: str) -> None:
    import numpy as np

    from coterie.tasks.own import load_inputs
    from coterie.tasks.personal import load_personal
    from coterie.wire.files import write_atomically

    personal = load_personal(Path(model), network)
    if personal.schema is not None:
        names, found = _ask_about_table(personal, data, reading)
    else:
        x, names = load_inputs(data, personal.input_shape)
        found = personal.predict(x)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if personal.schema is not None and personal.labels:
        table.writerow(["sample", "label", "probability", *personal.labels])
        for name, label, row in zip(names, personal.said(found), found, strict=True):
            table.writerow([name, personal.labels[label], *(f"{value:.4f}" for value in (row[label], *row))])
    elif personal.labels:
        table.writerow(["sample", "label", "probability"])
        for name, label, row in zip(names, personal.said(found), found, strict=True):
            table.writerow([name, personal.labels[label], f"{row[label]:.4f}"])
    else:
        low, high = personal.interval(found, coverage)
        table.writerow(["sample", "value", "low", "high"])
        rows = zip(names, found, low, high, strict=True)
        table.writerows([name, *(f"{value:.6g}" for value in values)] for name, *values in rows)
        if not np.isfinite(low).all():
            few = f"{len(personal.residuals)} validation samples are too few for an interval with coverage {coverage:g}"
            say(f"{few}; {math.ceil(coverage / (1 - coverage))} are needed")
    if output:
        write_atomically(Path(output), [text.getvalue().encode()])
    else:
        print(text.getvalue(), end="")


def _ask_about_table(
    personal: "PersonalModel", data: str, reading: Mapping[str, str]
) -> tuple[list[str], "np.ndarray"]:
    """What to call each row, and what the model says of it; warns of cells that are not like those it has seen."""
    from coterie.tasks.preparing import outside
    from coterie.tasks.reading import Reading

    assert personal.schema is not None
    told = Reading(**{name: value for name, value in reading.items() if value})
    rows = personal.read(data, told)
    found = personal.predict(rows)
    for cell in outside(personal.schema, rows):
        say(f"{data}, {cell}")
    return [str(i) for i in range(len(rows))], found


def up(
    settings: tuple[str, ...],
    control_port: int | None,
    fleet_port: int | None,
    watch: bool,
    host: str,
    port: int | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    from coterie import deploy

    page = page_at(host, port, "watch", watch)
    with _ended_by_signals():
        values = given_values(options, settings)
        done = deploy.up(values, control_port, fleet_port, shown(json, quiet), page)
    _show_run(done, json, quiet)


def submit(
    settings: tuple[str, ...],
    server: str,
    root_certificates: str,
    detach: bool,
    json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    from coterie import deploy

    with _ended_by_signals():
        values, authority = given_values(options, settings), Path(root_certificates)
        number = deploy.submit(values, server, authority, shown(json, quiet), detach)
    if json and not detach:
        tell_end(number)


@contextmanager
def _ended_by_signals(*left: str) -> Iterator[None]:
    """Say which one it was and what is left."""
    from coterie.runtime.foreground import Stopped

    try:
        yield
    except Stopped as stopped:
        notes = getattr(stopped, "__notes__", [])
        print("; ".join([f"error: stopped by {stopped}", *left, *notes]), file=sys.stderr)
        raise SystemExit(stopped.code) from None

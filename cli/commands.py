"""What each command does with its options: a call of the library, and what it prints. Imports wait until they are needed."""

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coterie
from coterie.cli.options import given_values, parse_list, parse_seeds
from coterie.cli.show import say, show

if TYPE_CHECKING:
    import numpy as np

    from coterie.tasks.personal import PersonalModel


def run(settings: tuple[str, ...], workers: int | None, **options: Any) -> None:
    from coterie.server.findings import suspects_in_words

    done = coterie.run(settings=given_values(options, settings), workers=workers)
    show([done.result_table()])
    if "suspects" in (findings := done.findings):
        say(suspects_in_words(findings["suspects"]), stderr=False)
    say(f"run directory: {done.path}")


def compare(
    settings: tuple[str, ...],
    workers: int | None,
    strategies: str | None,
    seeds: str | None,
    preset: str,
    quick: bool,
    **options: Any,
) -> None:
    compared = coterie.compare(
        None if strategies is None else parse_list("strategies", strategies),
        None if seeds is None else parse_seeds(seeds),
        preset,
        quick,
        settings=given_values(options, settings),
        workers=workers,
    )
    show(compared.tables)
    say(f"run directory: {compared.path}")


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
    found, remarks = look_at(RunConfig.parse(given))
    show([shown(found)])
    for remark in remarks:
        say(remark)
    if output:
        write_atomically(Path(output), [(found.bare().to_json(indent=2) + "\n").encode()])
        say(f"written: {Path(output).absolute()}")


def report(run: str) -> None:
    print(coterie.open_run(run).report())


def predict(model: str, data: str, output: str, network: str) -> None:
    from coterie.tasks.own import load_inputs
    from coterie.tasks.personal import load_personal
    from coterie.wire.files import write_atomically

    personal = load_personal(Path(model), network)
    if personal.schema is not None:
        names, found = _ask_about_table(personal, data)
    else:
        x, names = load_inputs(data, personal.input_shape)
        found = personal.predict(x)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if personal.schema is not None and personal.labels:
        table.writerow(["sample", "label", "probability", *personal.labels])
        for name, label, row in zip(names, found.argmax(axis=1), found, strict=True):
            table.writerow([name, personal.labels[label], *(f"{value:.4f}" for value in (row[label], *row))])
    elif personal.labels:
        table.writerow(["sample", "label", "probability"])
        for name, label, row in zip(names, found.argmax(axis=1), found, strict=True):
            table.writerow([name, personal.labels[label], f"{row[label]:.4f}"])
    else:
        table.writerow(["sample", "value"])
        table.writerows([name, f"{value:.6g}"] for name, value in zip(names, found, strict=True))
    if output:
        write_atomically(Path(output), [text.getvalue().encode()])
    else:
        print(text.getvalue(), end="")


def _ask_about_table(personal: "PersonalModel", data: str) -> tuple[list[str], "np.ndarray"]:
    """What to call each row, and what the model says of it; warns of cells that are not like those it has seen."""
    from coterie.tasks.preparing import outside

    assert personal.schema is not None
    rows = personal.read(data)
    found = personal.predict(rows)
    for cell in outside(personal.schema, rows):
        say(f"{data}, line {cell.line}, column {cell.column}: {cell.text}")
    return [str(i) for i in range(len(rows))], found


def up(settings: tuple[str, ...], control_port: int | None, fleet_port: int | None, **options: Any) -> None:
    from coterie import deploy
    from coterie.runtime.foreground import Stopped

    try:
        done = deploy.up(given_values(options, settings), control_port, fleet_port)
    except Stopped as stopped:
        print("; ".join([f"error: stopped by {stopped}", *stopped.__notes__]), file=sys.stderr)
        raise SystemExit(stopped.code) from None
    show([done.result_table()])
    say(f"run directory: {done.path}")


def submit(settings: tuple[str, ...], server: str, root_certificates: str, **options: Any) -> None:
    from coterie import deploy

    deploy.submit(given_values(options, settings), server, Path(root_certificates))

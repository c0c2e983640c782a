"""`coterie predict`: what a personal model says of new samples."""

import csv
import io
from pathlib import Path

from coterie.tasks.own import load_inputs
from coterie.tasks.personal import load_personal
from coterie.wire.files import write_atomically


def predict_command(model: str, data: str, output: str, network: str) -> None:
    personal = load_personal(Path(model), network)
    x, names = load_inputs(data, personal.input_shape)
    found = personal.predict(x)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if personal.labels:
        table.writerow(["sample", "label", "probability"])
        best = found.argmax(axis=1)
        for name, label, row in zip(names, best, found, strict=True):
            table.writerow([name, personal.labels[label], f"{row[label]:.4f}"])
    else:
        table.writerow(["sample", "value"])
        table.writerows([name, f"{value:.6g}"] for name, value in zip(names, found, strict=True))
    if output:
        write_atomically(Path(output), [text.getvalue().encode()])
    else:
        print(text.getvalue(), end="")

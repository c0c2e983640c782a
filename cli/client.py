"""`coterie client`: one device, connected to a server for good (runtime/supervise.py).

It checks the server's certificate, connects with its key, answers messages, and connects again when the connection is
lost or the server restarts. What it keeps is in one directory (`--state`): its own model parts and its personal model.
"""

from typing import Any

import click
from typer.core import TyperCommand, TyperOption

from coterie.cli.alone import run_alone


def client_command(key: str, **options: Any) -> None:
    from coterie.runtime.device import check_key, find_key, make_device  # not for `--help`
    from coterie.runtime.supervise import keep_connected

    path, lock = find_key(key)
    with lock:
        check_key(path)
        keep_connected(make_device(path, **options))


def _option(name: str, text: str, **more: Any) -> TyperOption:
    return TyperOption(param_decls=[f"--{name}"], help=text, **{"metavar": "TEXT", "default": None, **more})


def _flag(name: str, text: str) -> TyperOption:
    return TyperOption(param_decls=[f"--{name}"], is_flag=True, help=text)


def command(**more: Any) -> TyperCommand:
    number = {"type": click.IntRange(min=0), "metavar": "N"}
    return TyperCommand(
        name="client",
        callback=client_command,
        params=[
            _option("server", "Where the server is.", metavar="HOST:PORT", required=True),
            _option(
                "key",
                "This client's private key; of a directory, the first that no other client on this machine uses.",
                metavar="FILE",
                required=True,
            ),
            _option(
                "root-certificates",
                "The federation's ca.crt, by which the server is known. Default: the one beside the key.",
                metavar="FILE",
            ),
            _option("name", "Who this is. Default: the name of the key.", metavar="NAME"),
            _option(
                "data",
                "Data of its own: a table, a folder of images, an .npz or .py file; with --partition its share of them.",
                metavar="PATH",
            ),
            _option("delimiter", "Of its table: what separates cells. Default: it is found.", metavar="TEXT"),
            _option("decimal", "Of its table: the decimal sign. Default: it is found.", metavar="TEXT"),
            _option("encoding", "Of its table: how text is written, e.g. latin-1. Default: the run's.", metavar="TEXT"),
            _option("missing", "Of its table: codes for missing cells. Default: the run's.", metavar="TEXT"),
            _option(
                "partition",
                "Or its share of the run's data set, from 0. Default: the name, if it is a number.",
                **number,
            ),
            _option("num-partitions", "Into how many shares that is dealt. Default: the run's num-clients.", **number),
            _option(
                "data-root",
                "Directory of the data sets on this machine.",
                metavar="DIR",
                default="data",
                show_default=True,
            ),
            _option("state", "What it keeps: its state and its personal model. Default: clients/NAME.", metavar="DIR"),
            _option("device", "cpu, cuda, cuda:1 or mps on this machine. Default: the run's.", metavar="TEXT"),
            _option("threads", "Threads on this machine. Default: the run's.", type=click.IntRange(min=1), metavar="N"),
            _option(
                "method",
                "The .py file of a method that this client may run beside those that are installed; may be given again.",
                metavar="FILE",
                multiple=True,
            ),
            _option(
                "model",
                "The .py file of a network that this client may build, if a run names one so; may be given again.",
                metavar="FILE",
                multiple=True,
            ),
            _option(
                "pretrained",
                "The weights that a run begins with, if it names a file of them: a copy of it.",
                metavar="FILE",
            ),
            _flag("require-privacy", "Refuse runs that do not train with a guarantee (privacy.mode=dp-sgd)."),
            _option(
                "max-epsilon",
                "Refuse to train beyond this epsilon, over all runs with this state. Implies --require-privacy.",
                type=float,
                metavar="E",
            ),
            _option("allow-strategies", "Refuse runs with other methods than these.", metavar="A,B"),
            _option("attack", "For experiments: do this harm in every round, e.g. sign-flip.", metavar="KIND"),
            _flag(
                "installed-code-only",
                "Refuse runs whose code is not what is installed here. Default: run what the server sends, unless "
                "--require-privacy, --max-epsilon or --allow-strategies is given.",
            ),
        ],
        help="""Take part in a federation, as one device, until stopped.

Example: `coterie client --server fl.example.org:9092 --name ward-7 --data /srv/images --key ward-7`""",
        rich_markup_mode="markdown",
        **more,
    )


def main(arguments: list[str]) -> None:
    run_alone(command(), arguments)

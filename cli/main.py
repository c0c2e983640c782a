"""The `coterie` command: its sub-commands, their help, and what becomes of errors.

What they need is loaded when one of them is called (cli/lazy.py): the list of them is shown at once.
"""

import sys

import click
from typer.core import TyperGroup, TyperOption

import coterie
from coterie.cli import client, server
from coterie.cli.lazy import LazyCommand, Stopped, argument, option

WORKERS_HELP = "Worker processes; results do not depend on it. 0: all in this process. Default: one per core."
PLACES = "Places"


def _workers() -> click.Parameter:
    return option("workers", WORKERS_HELP, PLACES, type=click.IntRange(min=0), metavar="N")


def _told() -> list[click.Parameter]:
    flag: dict[str, bool] = {"is_flag": True, "default": False, "show_default": False}
    return [
        option("json", "For machines: an object a line on standard output, and nothing else there.", PLACES, **flag),
        option("quiet", "Show no progress, only what it came to.", PLACES, **flag),
    ]


def _port(name: str, text: str) -> click.Parameter:
    return option(name, text, PLACES, type=click.IntRange(1, 65535), metavar="N")


def _text(name: str, metavar: str, text: str, panel: str | None = None) -> click.Parameter:
    return option(name, text, panel, default="", show_default=False, metavar=metavar)


def _page(flag: str, text: str) -> list[click.Parameter]:
    return [
        option(flag, text, PLACES, is_flag=True, default=False, show_default=False),
        _text("host", "ADDRESS", "Where that page is to be seen. Default: on this machine only, 127.0.0.1.", PLACES),
        _port("port", "And at which port. Default: a free one."),
    ]


WATCH = "Show the run in the browser while it goes: a page at an address that is printed."
WEB = "Show the run, or the newest one in a directory of runs, in the browser: a page at an address that is printed."


def _configured(leave_out: tuple[str, ...] = ()) -> list[click.Parameter]:
    from coterie.cli.options import config_options  # knows every method, and so imports torch

    return config_options(leave_out)


NOT_DATA = (
    "strategy",
    "model",
    "local-epochs",
    "batch-size",
    "learning-rate",
    "momentum",
    "weight-decay",
    "buffers",
    "device",
    "threads",
    "num-server-rounds",
    "fraction-train",
    "evaluate-every",
    "quorum",
    "round-retries",
    "round-timeout",
    "join-timeout",
    "strategy-file",
    "observers",
    "run-dir",
)


def _what_to_compare() -> list[click.Parameter]:
    from coterie.presets import PLAIN, PRESETS, Methods

    numbers = [name for name, preset in PRESETS.items() if isinstance(preset, Methods) and preset.paper]
    presets = f"An experiment of a paper: {', '.join(PRESETS)}. With the paper's numbers: {', '.join(numbers)}."
    seeds = "Every method runs once with each; the table has mean and standard deviation."
    panel = "What to run"
    return [
        _text("preset", "NAME", presets, panel),
        option("quick", "A short form of the preset.", panel, is_flag=True, default=False, show_default=False),
        _text("cell", "NAME", "One cell of the preset, for example mnist.", panel),
        TyperOption(
            param_decls=["--sweep", "sweep"],
            multiple=True,
            metavar="KEY=A,B,...",
            help="Run all with each of these values, for example --sweep pfedsim.warmup=0,0.5,1. Several: all combinations.",
            rich_help_panel=panel,
        ),
        option("strategies", "The methods to compare.", panel, metavar="A,B,...", show_default=PLAIN.strategies),
        option("seeds", seeds, panel, metavar="N,N,...", show_default="1"),
        *_configured(("strategy", "seed")),
        _workers(),
        _opened(),
        *_told(),
    ]


def _processes() -> list[click.Parameter]:
    return [
        TyperOption(
            param_decls=["--clients", "--num-clients", "num_clients"],
            type=click.IntRange(min=1),
            default=4,
            show_default=True,
            metavar="N",
            help="How many clients to start.",
            rich_help_panel="Data",
        ),
        *_configured(("num-clients",)),
        _port("control-port", "Where runs are submitted, on this machine only. Default: a free one."),
        _port("fleet-port", "Where clients connect, over gRPC with TLS. Default: a free one."),
        *_page("watch", WATCH),
        *_told(),
    ]


CERTIFICATE = "The federation's ca.crt, by which the server is known."


def _submitted() -> list[click.Parameter]:
    return [
        option("server", "Where runs are submitted.", PLACES, metavar="HOST:PORT", default="127.0.0.1:8000"),
        option("root-certificates", CERTIFICATE, PLACES, metavar="FILE", required=True),
        option(
            "detach",
            "Do not follow the run: say how to, and end.",
            PLACES,
            is_flag=True,
            default=False,
            show_default=False,
        ),
        *_configured(),
        *_told(),
    ]


def _elsewhere() -> list[click.Parameter]:
    return [
        _text("server", "HOST:PORT", "A server where runs are submitted. Default: run directories here.", PLACES),
        _text("root-certificates", "FILE", f"{CERTIFICATE} Needed with --server.", PLACES),
    ]


MORE_ROUNDS = "Rounds in all, if it should be more than the run was begun with."
RUN_TEXT = (
    "A run directory, or with --server the number of a run. Default: the one that is running, if it is the only one."
)


def _keys() -> list[click.Parameter]:
    reached = "Names and addresses under which clients reach the server, beside localhost and 127.0.0.1."
    revoked = "Make nothing, but take these clients' keys away: the server refuses them from now on."
    return [
        argument("directory", "DIR", "Where to put them; what is there already is kept."),
        option("clients", "Clients called 0, 1, ..., N-1.", type=click.IntRange(min=1), metavar="N"),
        _text("names", "A,B,...", "Or clients with these names."),
        _text("server-names", "HOST,IP,...", reached),
        _text("revoke", "A,B,...", revoked),
    ]


def _predicted() -> list[click.Parameter]:
    from coterie.wire.config import RunConfig

    data = (
        "A table, an .npz file with x, a .py file, or a folder of images, of the kind it was trained with; "
        "labels are not needed."
    )
    return [
        argument("model", "MODEL", "A personal model, models/NAME.safetensors."),
        argument("data", "DATA", data),
        _text("output", "FILE", "Where to write the table. Default: to the terminal."),
        _text("network", "FILE", NETWORK),
        option(
            "coverage",
            "Probability with which a value lies between low and high, of a regression.",
            type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
            default=0.9,
        ),
        *(_text(name, "TEXT", str(RunConfig.model_fields[name].description)) for name in OF_A_FILE),
    ]


NETWORK = "The .py file that defines the network, for a model of your own."


def _exported() -> list[click.Parameter]:
    return [
        argument("model", "MODEL", "A personal model, models/NAME.safetensors."),
        option("onnx", "Where to write it; FILE.json, beside it, says what goes in.", metavar="FILE", required=True),
        _text("network", "FILE", NETWORK),
    ]


def _reported() -> list[click.Parameter]:
    return [
        argument("runs", "RUN...", "Run directories, or that of a comparison.", number=-1),
        _text("output", "FILE", "Where to write it. Default: report.html in the directory; of several, here."),
        _opened(),
    ]


def _opened() -> click.Parameter:
    return option("open", "Show it in the browser.", is_flag=True, default=False, show_default=False)


OF_A_FILE = ("delimiter", "decimal", "encoding", "missing")
OF_TABLES = ("label", "classes", "ignore", "missing", "min-count", "delimiter", "decimal", "encoding")


def _looked_at() -> list[click.Parameter]:
    from coterie.wire.config import RunConfig

    files = "Tables: .csv, .csv.gz or .parquet files, or a folder of them."
    output = "Where to write the schema, to look at, mend, and give to a run."
    others = tuple(key for key in RunConfig.keys() if key not in OF_TABLES)
    return [
        argument("files", "FILE...", files, number=-1),
        _text("output", "FILE", output, PLACES),
        *_configured(others),
    ]


def _dealt() -> list[click.Parameter]:
    drawn = "Draw the labels of every client as a bubble chart, .png or .svg."
    return [_text("plot", "FILE", drawn, PLACES), *_configured(NOT_DATA)]


COMMANDS = [
    LazyCommand(
        "run",
        "commands:run",
        lambda: [*_configured(), _workers(), *_page("watch", WATCH), *_told()],
        """Run one method, simulated on this machine, and write a run directory.

Example: `coterie run --strategy fedper --task digits --num-server-rounds 20`""",
    ),
    LazyCommand(
        "resume",
        "commands:resume",
        lambda: [
            argument("run", "RUN", "A run directory."),
            option("num-server-rounds", MORE_ROUNDS, type=click.IntRange(min=1), metavar="N"),
            _workers(),
            *_elsewhere(),
            *_told(),
        ],
        """Go on with a run that stopped, or with a finished one for more rounds; it ends as if it had never stopped.

Example: `coterie resume runs/20261116-120000-fedavg-digits --num-server-rounds 40`""",
    ),
    LazyCommand(
        "compare",
        "commands:compare",
        _what_to_compare,
        """Run several methods on the same data: one table, who trains with whom, and a report.

Alone it takes local, fedavg and pfedsv on data of three kinds that are always there, with two seeds. Started again with
the same `--run-dir` it goes on where it stopped.

Example: `coterie compare --strategies local,fedavg,fedper --task digits --seeds 1,2,3`""",
    ),
    LazyCommand(
        "up",
        "commands:up",
        _processes,
        """Run one method as real processes on this machine: a server and clients, over gRPC with TLS and client keys.

All processes end with the run, and with Ctrl-C. Certificates, logs and what the clients keep are in the run directory.

Example: `coterie up --clients 4 --strategy fedper --task digits --num-server-rounds 3`""",
    ),
    server.command(),
    client.command(),
    LazyCommand(
        "submit",
        "commands:submit",
        _submitted,
        """Give a run to a running server and follow it to its end. The run directory is on the server.

Ctrl-C stops the run; any other end of this command does not.

Example: `coterie submit --root-certificates keys/ca.crt --strategy fedper --num-server-rounds 20`""",
    ),
    LazyCommand(
        "runs",
        "follow:runs",
        lambda: [
            argument("place", "[DIR]", "Where to look. Default: runs and server/runs here.", required=False),
            *_elsewhere(),
        ],
        """Show what runs, what ran and what failed: round, time left, clients, and whom it waits for.

Example: `coterie runs --server 127.0.0.1:8000 --root-certificates keys/ca.crt`""",
    ),
    LazyCommand(
        "watch",
        "follow:watch",
        lambda: [argument("run", "[RUN]", RUN_TEXT, required=False), *_elsewhere(), *_page("web", WEB), *_told()],
        """Follow a run to its end, in the terminal or with `--web` in the browser. Ctrl-C ends the watching, not the run.

Example: `coterie watch runs/20261116-120000-fedavg-digits`""",
    ),
    LazyCommand(
        "stop",
        "follow:stop",
        lambda: [argument("run", "[RUN]", RUN_TEXT, required=False), *_elsewhere()],
        """End a run that is running. Its finished rounds stay.

Example: `coterie stop runs/20261116-120000-fedavg-digits`""",
    ),
    LazyCommand(
        "keys",
        "keys:keys_command",
        _keys,
        """Make a certificate authority, the server's certificate, and a key pair for each client.

Example: `coterie keys keys --names ward-7,ward-8 --server-names fl.example.org,10.0.0.5`""",
    ),
    LazyCommand(
        "report",
        "commands:report",
        _reported,
        """Make the page of a run, finished or not, of several runs, or of a comparison.

It says what each client gained, who trains with whom, what each is worth, what went wrong and what it cost. It is one file
that needs no network.

Example: `coterie report runs/20261116-120000-fedavg-digits --open`""",
    ),
    LazyCommand(
        "predict",
        "commands:predict",
        _predicted,
        """Ask a personal model about new samples: a line with the label and its probability for each.

Example: `coterie predict clients/ward-7/models/ward-7.safetensors new-images`""",
    ),
    LazyCommand(
        "export",
        "commands:export",
        _exported,
        """Write a personal model as ONNX, with all preparing of its inputs inside, for programs that know nothing of Coterie.

Example: `coterie export clients/ward-7/models/ward-7.safetensors --onnx ward-7.onnx`""",
    ),
    LazyCommand(
        "schema",
        "commands:schema",
        _looked_at,
        """Show what tables have in common: columns, kinds, categories, label, and what is left out and why.

Example: `coterie schema north.csv south.csv west.csv --label ill --output schema.json`""",
    ),
    LazyCommand(
        "data",
        "commands:data",
        _dealt,
        """Show which data sets are here, or with `--task` who gets which labels.

Example: `coterie data --task digits --partition dirichlet --dirichlet-alpha 0.1 --plot labels.png`""",
    ),
]


def _print_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        context.exit()


program = TyperGroup(
    name="coterie",
    params=[
        TyperOption(
            param_decls=["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Which version this is.",
        )
    ],
    help="""Personalised and robust federated learning on Flower.

For every client: with whom should it train, what is each of them worth to it, and which model is its own?

Begin with `coterie compare`, which runs three methods on data that are always there.""",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    suggest_commands=False,  # click does that
    commands={str(command.name): command for command in COMMANDS},
)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; a user's mistake ends in one line and a code that is not zero, never in a stack trace."""
    try:
        program(args=arguments, prog_name="coterie", standalone_mode=True)
    except coterie.CoterieError as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except (Stopped, KeyboardInterrupt):
        fail("stopped; finished rounds are in the run directory", 130)


def fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)

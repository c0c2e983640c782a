"""The ServerApp as Flower loads it: the one of server/app.py, with a grid on which no client can hold up the others."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.server.app import main as run

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    try:
        from coterie.runtime.pull import patient
    except (ImportError, AttributeError) as error:
        log.warning(
            "Flower is not as expected (%s): a client that uploads half an answer can hold up the others", error
        )
        run(grid, context)
    else:
        run(patient(grid), context)

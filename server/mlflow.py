"""A run in MLflow: `--observers mlflow`. It is told to the server that MLFLOW_TRACKING_URI names, else written below the run
directory, under `mlflow`; its experiment is the task, or MLFLOW_EXPERIMENT_NAME."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from coterie.server.observers import numbers_of
from coterie.strategies.observer import Observer
from coterie.wire.config import Value

FILES = ("config.json", "result.json", "report.html")


class MLflow(Observer):
    def __init__(self, run_dir: Path, config: Mapping[str, Value]) -> None:
        self.run_dir = run_dir
        if not (address := os.environ.get("MLFLOW_TRACKING_URI")):
            address = (run_dir / "mlflow").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or MLflow 3 refuses to write files
        self.client = MlflowClient(tracking_uri=address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", str(config["task"]))
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.run = self.client.create_run(experiment, run_name=run_dir.name).info.run_id
        params = [Param(key, str(value)) for key, value in config.items() if value != ""]
        for start in range(0, len(params), 100):  # as many as it takes at once
            self.client.log_batch(self.run, params=params[start : start + 100])

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        step = event["round"]
        self.client.log_batch(self.run, [Metric(name, value, 0, step) for name, value in numbers_of(event).items()])

    def ended(self, result: Mapping[str, Any]) -> None:
        for name in FILES:
            self.client.log_artifact(self.run, str(self.run_dir / name))
        self.client.set_terminated(self.run, "FINISHED")

    def failed(self, error: BaseException) -> None:
        self.client.set_tag(self.run, "error", f"{type(error).__name__}: {error}"[:5000])
        self.client.set_terminated(self.run, "FAILED")

"""Processes that are started as commands: they end, and what they said is found."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coterie.runtime.processes import Processes, last_words, marked, must_be_free
from coterie.runtime.programs import quoted
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.fingerprint import source_files


def test_processes_that_will_not_end_are_ended(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); "
    detached = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf + 'time.sleep(600)'!r}], "
    stubborn = detached + f"start_new_session=True); {deaf} time.sleep(600)"
    with Processes(tmp_path) as processes:
        processes.start("stubborn", [sys.executable, "-c", stubborn], dict(os.environ), tmp_path)
        while (tmp_path / "stubborn.log").read_text().count("here") < 2:
            processes.check()
        assert len(marked(processes.mark)) == 2
    assert marked(processes.mark) == []


def test_a_process_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start(
            "client-0", [sys.executable, "-c", "raise SystemExit('no such key')"], dict(os.environ), tmp_path
        )
        processes.running["client-0"].wait()
        with pytest.raises(RunFailed, match="client-0 ended with code 1: no such key"):
            processes.check()


def test_the_reason_is_taken_out_of_flowers_log(tmp_path: Path) -> None:
    log = tmp_path / "client-0.log"
    log.write_text(
        "INFO : Starting\nERROR :     Exit Code: 305\nFailed to connect.\nSocket closed\nHelp\n\nFor more: <url>\n"
    )
    assert last_words(log) == "Failed to connect. Socket closed"
    log.write_text("")
    assert last_words(log) == "it said nothing"


def test_a_port_in_use_is_refused_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match="fleet-port = "):
            must_be_free("fleet-port", taken.getsockname()[1])


def test_paths_are_quoted_as_flower_reads_them() -> None:
    from flwr.common.config import parse_config_args

    for path in ("/a b/c", "/it's here", '/a "b"', "/back\\slash", "/equals=sign"):
        assert parse_config_args([f"partition-id=0 state-dir={quoted(path)}"]) == {"partition-id": 0, "state-dir": path}
    for path in ('/it\'s "both"', "/it's \\ that"):
        with pytest.raises(ConfigError, match="quotation marks"):
            quoted(path)


def test_they_may_be_started_and_stopped_in_any_thread(tmp_path: Path) -> None:
    ended: list[bool] = []

    def work() -> None:
        with Processes(tmp_path) as processes:
            processes.start(
                "sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ), tmp_path
            )
        ended.append(marked(processes.mark) == [])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert ended == [True]


@pytest.mark.parametrize("installed", [False, True], ids=["checkout", "installed"])
def test_programs_find_this_very_code_and_none_of_its_folders_under_another_name(
    tmp_path: Path, installed: bool
) -> None:
    """Installed, the folders lie inside the package: `client` must not become a module of that name."""
    for name, path in source_files().items():
        place = tmp_path / (name if not installed or name.startswith("coterie/") else f"coterie/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    if not installed:
        (tmp_path / "pyproject.toml").touch()
    told = "from coterie.runtime.programs import environment; print(environment(__import__('pathlib').Path('x'))['PYTHONPATH'])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", told], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.strip().split(os.pathsep)) == {str(tmp_path)}

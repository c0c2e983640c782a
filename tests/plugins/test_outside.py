"""Methods from outside: files and entry points; their names, settings and privacy; what clients do without them."""

import json
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

import coterie
from coterie.cli.options import given_values
from coterie.client.app import hello
from coterie.client.participant import Participant
from coterie.runtime.device import make_device
from coterie.server.app import checked_config
from coterie.strategies import plugins, registry
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.registry import BUILT_IN, default_config, method_of, names, parse_config, sections
from coterie.wire import installed
from coterie.wire.errors import ConfigError, Refused, RunFailed
from coterie.wire.fingerprint import fingerprint, fingerprint_with

DITTO = Path(__file__).parents[2] / "docs" / "how-to" / "ditto.py"
HEAD = "from coterie.strategies.fedavg import FedAvg\nfrom coterie.strategies.method import *\n"


@pytest.fixture
def write(tmp_path):
    def to(text: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(HEAD + text)
        return str(tmp_path / name)

    return to


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package with an entry point, as pip leaves it: a module, and a dist-info beside it."""

    def put(files: dict[str, str], **entries: str) -> None:
        for name, text in files.items():
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        info = tmp_path / "site" / "outside-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[coterie.methods]", *lines, ""]))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        installed.entry_points.cache_clear()
        installed.load.cache_clear()

    yield put
    installed.entry_points.cache_clear()
    installed.load.cache_clear()
    for name in [name for name in sys.modules if name.startswith("outside")]:
        del sys.modules[name]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_a_strategy(federate):
    run = federate(strategy=str(DITTO), **{"my-ditto.mu": 0.5, "model": "linear"})
    config = json.loads((run.path / "config.json").read_text())
    assert (config["strategy"], config["strategy-file"], config["my-ditto.mu"]) == ("my-ditto", str(DITTO), 0.5)
    assert run.result["strategy"] == "my-ditto" and set(run.result["models"]) == {"global", "personal"}
    assert "my-ditto.mu" in (run.path / "report.html").read_text()
    again = federate(**{key: value for key, value in config.items() if key != "run-dir"})
    assert again.result == run.result


def test_its_settings_are_checked():
    with pytest.raises(ConfigError, match=r"my-ditto.nu: there is no such key, did you mean 'my-ditto.mu'\?"):
        checked_config({"strategy": str(DITTO), "my-ditto.nu": 1.0})
    with pytest.raises(ConfigError, match=r"my-ditto.mu = -1.0: must be greater"):
        checked_config({"strategy": str(DITTO), "my-ditto.mu": -1.0})
    assert checked_config({"strategy": str(DITTO)})["my-ditto.mu"] == 0.1


def test_they_do_not_leak_into_other_runs(write):
    assert checked_config({"strategy": str(DITTO)}).keys() - default_config().keys() == {"my-ditto.mu"}
    assert checked_config({}).keys() == default_config().keys()
    # ... but who compares methods gives the settings of all to each
    assert checked_config({"strategy": "fedavg", "my-ditto.mu": 0.2})["my-ditto.mu"] == 0.2
    with pytest.raises(ConfigError, match="no method has keys under 'my-dito'"):
        checked_config({"strategy": str(DITTO), "my-dito.mu": 0.2})


def test_a_relative_path_is_made_absolute(monkeypatch):
    monkeypatch.chdir(DITTO.parent)
    assert checked_config({"strategy": "ditto.py"})["strategy-file"] == str(DITTO)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has one public subclass of Method, and this one has none"),
        ("class A(FedAvg):\n  name='a'\nclass B(FedAvg):\n  name='b'", "this one has 2: A, B"),
        ("class A(FedAvg): pass", "A has the name 'fedavg', which Coterie uses itself"),
        ("class A(FedAvg): name = 'pfedsim'", "A has the name 'pfedsim', which Coterie uses itself"),
        ("class A(FedAvg): name = 'attack'", "A has the name 'attack', which Coterie uses itself"),
        ("class A(FedAvg): name = 'My.Method'", "A needs a name of small letters"),
        ("class A(Method): pass", "A needs a name of small letters"),
        ("class A(Method): name = 'a'", r"A does not say what it does in round\(\), test_orders\(\)"),
        ("class A(FedAvg:", "failed with SyntaxError"),
        ("1 / 0", "failed with ZeroDivisionError: division by zero"),
        (
            "class A(FedAvg):\n  name = 'a'\n  section = 'fedprox'\n  class Settings(MethodSettings):\n    x: int = 1",
            "A has settings of its own; they stand under its name: section = None",
        ),
    ],
)
def test_a_file_that_will_not_do(text, complaint, write):
    with pytest.raises(ConfigError, match=complaint):
        checked_config({"strategy": write(text)})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.py': cannot be read here \(No such file or directory\)"):
        checked_config({"strategy": str(tmp_path / "nowhere.py")})
    with pytest.raises(ConfigError, match="strategy = 'fedavg': strategy-file has the method 'my-ditto'"):
        checked_config({"strategy": "fedavg", "strategy-file": str(DITTO)})


def test_classes_that_only_help_begin_with_an_underscore(write):
    path = write("class _Base(FedAvg): pass\nclass A(_Base): name = 'a'")
    assert checked_config({"strategy": path})["strategy"] == "a"


def test_a_file_that_changed_is_read_again_for_the_next_run(write):
    path = write("class A(FedAvg): name = 'a'")
    first = method_of("a", parse_config({"strategy": path})[0].strategy_file)
    write("class A(FedAvg):\n  name = 'a'\n  kinds = ('personal',)")
    assert registry.on_client("a", path) is first  # a run that goes on
    second = method_of("a", parse_config({"strategy": path})[0].strategy_file)
    assert second.kinds == ("personal",) and registry.on_client("a", path) is second
    assert fingerprint_with(first) != fingerprint_with(second)


# --- entry points ----------------------------------------------------------------------------------------------------


def test_an_installed_method_has_a_name_and_settings(install, federate):
    install({"outside_ditto.py": DITTO.read_text()}, **{"my-ditto": "outside_ditto:Ditto"})
    assert names() == [*BUILT_IN, "my-ditto"] and sections()["my-ditto"].keys() == ["mu"]
    assert default_config().keys() == checked_config({}).keys()  # what pyproject.toml must have
    assert checked_config({"strategy": "my-ditto"})["my-ditto.mu"] == 0.1
    with pytest.raises(ConfigError, match="strategy = 'my-dito': unknown, did you mean 'my-ditto'"):
        checked_config({"strategy": "my-dito"})
    installed = federate(strategy="my-ditto", model="linear")
    from_file = federate(strategy=str(DITTO), model="linear")
    assert installed.result == from_file.result and "strategy-file" in installed.grid.contexts[2].run_config


def test_file_and_installed_module_have_the_same_fingerprint(install):
    install({"outside_ditto.py": DITTO.read_text()}, **{"my-ditto": "outside_ditto:Ditto"})
    assert (
        fingerprint_with(method_of("my-ditto")) == fingerprint_with(method_of("my-ditto", str(DITTO))) != fingerprint()
    )
    assert fingerprint_with(FedAvg) == fingerprint()


def test_the_fingerprint_covers_all_of_a_package(install, tmp_path):
    files = {"outside/__init__.py": "", "outside/more.py": "X = 1", "outside/method.py": DITTO.read_text()}
    install(files, **{"my-ditto": "outside.method:Ditto"})
    method = method_of("my-ditto")
    before = fingerprint_with(method)
    (tmp_path / "site" / "outside" / "more.py").write_text("X = 2")
    assert fingerprint_with(method) != before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise OSError('no disk')", r"cannot be loaded \(OSError: no disk\)"),
        ("It = 3", "is no subclass of coterie.strategies.method.Method"),
        (HEAD + "class It(FedAvg): name = 'other'", "has the name 'other'; an entry point is called as its method"),
    ],
)
def test_an_entry_point_that_will_not_do(text, complaint, install):
    install({"outside_it.py": text}, it="outside_it:It")
    with pytest.raises(ConfigError, match=complaint):
        checked_config({"strategy": "it"})
    assert checked_config({"strategy": "fedavg"}).keys() == default_config().keys()  # harms nobody else


def test_nobody_takes_the_name_of_a_method_of_ours(install):
    install({"outside_it.py": HEAD + "class It(FedAvg): name = 'fedavg'"}, fedavg="outside_it:It")
    assert method_of("fedavg") is FedAvg and names() == list(BUILT_IN)


# --- clients ---------------------------------------------------------------------------------------------------------


def client(name: str = "ward-7", strategy: str = "my-ditto", **node) -> Participant:
    config = {**default_config(), "strategy": strategy, "strategy-file": str(DITTO), "model": "linear"}
    where = {"client-name": name, "partition-id": 0, "num-partitions": 4, **node}
    return Participant.of(Context(run_id=1, node_id=2, node_config=where, state=RecordDict(), run_config=config))


def test_a_client_opens_no_file_that_its_owner_did_not_name(monkeypatch):
    monkeypatch.setattr(plugins, "_files", {})
    with pytest.raises(
        Refused,
        match=r"client 'ward-7' has no method 'my-ditto': install it there, or start the client with --method my-ditto.py",
    ):
        hello(client())
    assert not plugins._files
    assert hello(client(methods=str(DITTO))).code == fingerprint_with(method_of("my-ditto", str(DITTO)))


def test_its_own_file_is_found_by_the_methods_name(write):
    other = write("class A(FedAvg): name = 'a'")
    code = hello(client(methods=f"{other}:{DITTO}")).code
    assert code == fingerprint_with(method_of("my-ditto", str(DITTO)))
    assert hello(client(strategy="fedavg", methods=other)).code == fingerprint()


def test_a_client_without_the_method_is_refused_by_that_reason(federate, monkeypatch):
    from coterie.runtime.simulation import SimulationGrid

    make = SimulationGrid.__init__

    def forgetful(self, *args):
        make(self, *args)
        del self.contexts[4].node_config["methods"]

    monkeypatch.setattr(SimulationGrid, "__init__", forgetful)
    with pytest.raises(
        RunFailed, match=r"3 of 4 clients joined .* client '2' has no method 'my-ditto': install it there"
    ):
        federate(strategy=str(DITTO), model="linear", quorum=1.0)


def test_a_client_with_another_version_is_refused_with_both_fingerprints(federate, monkeypatch, tmp_path):
    from coterie.runtime.simulation import SimulationGrid

    make = SimulationGrid.__init__
    (tmp_path / "ditto.py").write_text(DITTO.read_text() + "\n# newer\n")

    def other(self, *args):
        make(self, *args)
        self.contexts[4].node_config["methods"] = str(tmp_path / "ditto.py")

    monkeypatch.setattr(SimulationGrid, "__init__", other)
    with pytest.raises(RunFailed) as caught:
        federate(strategy=str(DITTO), model="linear", quorum=1.0)
    here, there = (fingerprint_with(method_of("my-ditto", str(path))) for path in (DITTO, tmp_path / "ditto.py"))
    assert here != there and f"client '2' runs other code ('{there}') than the server ({here})" in str(caught.value)


# --- privacy ---------------------------------------------------------------------------------------------------------


def test_privacy_must_be_declared(write):
    """What a method from outside inherits says nothing of what it does itself."""
    path = write("class A(FedAvg): name = 'a'")
    with pytest.raises(
        ConfigError, match=r"strategy 'a' does not say that it can train privately; use privacy.mode='off'"
    ):
        checked_config({"strategy": path, "privacy.mode": "dp-sgd"})
    path = write("class A(FedAvg):\n  name = 'a'\n  private = ('dp-sgd',)")
    assert checked_config({"strategy": path, "privacy.mode": "dp-sgd"})["privacy.mode"] == "dp-sgd"
    with pytest.raises(ConfigError, match=r"use privacy.mode='dp-sgd' or 'off'"):
        checked_config({"strategy": path, "privacy.mode": "weights"})
    assert "dp-sgd" in FedAvg.private


# --- the library and the commands ------------------------------------------------------------------------------------

FEW = {"num_clients": 3, "num_server_rounds": 1, "model": "linear", "local_epochs": 1, "workers": 0, "progress": False}


def test_methods_of_files_are_compared_with_others(tmp_path):
    compared = coterie.compare(
        ["fedavg", str(DITTO)], seeds=[1], settings={"my-ditto.mu": 0.3}, run_dir=tmp_path / "compared", **FEW
    )
    assert [run.config["strategy"] for run in compared.runs] == ["fedavg", "my-ditto"]
    assert compared.runs[1].config["my-ditto.mu"] == 0.3 and compared.runs[1].path.name == "my-ditto-seed1"


def test_a_class_is_a_strategy(tmp_path):
    class Mine(FedAvg):
        name = "mine"
        kinds = ("global",)

    run = coterie.run(Mine, run_dir=tmp_path / "run", **FEW | {"workers": 2})
    assert run.config["strategy"] == "mine" and set(run.result["models"]) == {"global"}
    with pytest.raises(ConfigError, match="has the name 'fedavg', which Coterie uses itself"):
        coterie.run(type("Other", (FedAvg,), {}), run_dir=tmp_path / "other", **FEW)


def test_a_setting_that_is_a_text_stays_one(write):
    path = write("class A(FedAvg):\n  name='a'\n  class Settings(MethodSettings):\n    who: str = setting('', 'Who.')")
    assert given_values({"strategy": path}, ["a.who=3"])["a.who"] == "3"
    assert given_values({"strategy": str(DITTO)}, ["my-ditto.mu=3"])["my-ditto.mu"] == 3


def test_the_files_of_a_device(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("")
    (tmp_path / "ca.crt").write_text("")
    monkeypatch.chdir(DITTO.parent)
    options = {"server": "host:1", "partition": 0, "name": "a", "state": str(tmp_path / "state")}
    assert make_device(tmp_path / "key", method=["ditto.py"], **options).node_config["methods"] == str(DITTO)
    assert "methods" not in make_device(tmp_path / "key", **options).node_config
    with pytest.raises(ConfigError, match=r"method = 'dito.py': there is no file .*dito.py"):
        make_device(tmp_path / "key", method=["dito.py"], **options)

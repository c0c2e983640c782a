"""What others install: wheel and sdist are built from a clean copy, and the wheel works where the checkout is not."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from coterie.wire.fingerprint import DOOR, fingerprint, source_files

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


def call(*command: str | Path, cwd: Path) -> str:
    """What it prints. Nothing in the environment leads back to the checkout."""
    unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in unset} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("built")
    for name in call("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, copy, cwd=built)
    return built


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it, which borrows the packages of this one but not its Coterie."""
    home = tmp_path_factory.mktemp("fresh")
    call(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (site / "borrowed.pth").write_text(
        sysconfig.get_path("purelib")
    )  # after `site`, and its own .pth files do not count
    return python


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(archive.read(name))


def test_the_wheel_holds_one_package_and_all_of_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    assert {name.split("/")[0] for name in files} == {DOOR, f"{DOOR}-{metadata(wheel)['Version']}.dist-info"}
    expected = {
        name if name.startswith(f"{DOOR}/") else f"{DOOR}/{name}": path.read_bytes()
        for name, path in source_files().items()
    }
    expected[f"{DOOR}/py.typed"] = b""
    page = [path for path in (ROOT / "server" / "report").iterdir() if path.suffix in (".css", ".html", ".js")]
    expected |= {f"{DOOR}/server/report/{path.name}": path.read_bytes() for path in page}
    assert {name: text for name, text in files.items() if name.startswith(f"{DOOR}/")} == expected


def test_the_sdist_has_what_the_wheel_is_built_from(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*source_files(), "coterie/py.typed", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= names


def test_the_image_installs_by_hash_what_was_tested_together():
    """All of it but PyTorch; docker/lock writes the file anew."""
    locked, tested = (
        {},
        dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line),
    )
    for package in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip()):
        name, version, *hashes = re.split(r"==| ", package.replace("\\\n", "").split("#")[0], maxsplit=2)
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", hashes[0]), name
        if "sys_platform == 'win32'" not in hashes[0]:
            locked[canonical(name)] = version
    tested = {canonical(name): version for name, version in tested.items()}
    assert len(locked) > 80 and set(locked) - set(tested) <= {"setuptools"}  # which `constraints.txt` leaves to pip
    assert {name: version for name, version in locked.items() if name in tested}.items() <= tested.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["all"]]
    names = {canonical(re.match(r"[\w.-]+", line)[0]) for line in wanted}
    assert names - set(locked) == {"torch", "torchvision"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_metadata(wheel):
    told = metadata(wheel)
    assert told["Name"] == DOOR and told["Summary"] and told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == ">=3.11"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(told.get_all("Classifier"))
    assert {"client", "all", "dev", "tensorboard", "mlflow", "onnx"} == set(told.get_all("Provides-Extra"))
    assert told["Description-Content-Type"] == "text/markdown"
    description = told.get_payload(decode=True).decode()
    assert description.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    shown = MarkdownIt().enable("table").render(description)
    assert "<h1>Coterie</h1>" in shown and "<td><code>fedavg</code></td>" in shown


def test_the_installed_package_is_used_and_is_the_same_code(python, tmp_path):
    lines = call(
        python,
        "-c",
        "import coterie; from coterie.wire.fingerprint import fingerprint; "
        "print(coterie.__file__); print(fingerprint()); print(*coterie.__path__)",
        cwd=tmp_path,
    ).splitlines()
    home = python.parents[1]
    assert Path(lines[0]).is_relative_to(home) and not Path(lines[0]).is_relative_to(ROOT)
    assert lines[1] == fingerprint()
    assert lines[2] == str(Path(lines[0]).parent)  # no checkout beside it


def test_the_installed_commands_work(python, tmp_path):
    assert "Personalised and robust federated learning" in call(python.parent / "coterie", "--help", cwd=tmp_path)
    keys = {"strategy": "fedavg", "model": "linear", "num-server-rounds": 1, "num-clients": 2, "run-dir": "there"}
    call(python, "-m", "coterie", "run", *(f"--{key}={value}" for key, value in keys.items()), cwd=tmp_path)
    assert (tmp_path / "there" / "result.json").exists() and (tmp_path / "there" / "report.html").exists()

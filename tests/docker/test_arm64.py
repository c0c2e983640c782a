"""The image and the packages of a client on 64-bit ARM, as in a Raspberry Pi."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = "python:3.11-slim"
STAND_IN, IMAGE = "coterie-test-base:arm64", "coterie-test:arm64"
ARM64 = ("--platform", "linux/arm64")
TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux_2_31")
NEED_TORCH = ("torch", "torchvision", "opacus")
# Of later versions pip's own index has builds with CUDA for ARM, too, gigabytes of it. (PyTorch's index has others.)
LAST_WITHOUT_CUDA = {"torch": "2.10.0", "torchvision": "0.25.0"}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_-]+", requirement)[0]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_for_arm(command: str, requirements: Sequence[str], *options: str) -> None:
    platforms = [option for tag in TAGS for option in ("--platform", f"{tag}_aarch64")]
    options = ("--quiet", "--only-binary=:all:", "--python-version", "3.11", *platforms, *options)
    run(sys.executable, "-m", "pip", command, *options, *requirements)


@pytest.mark.slow
@pytest.mark.parametrize(
    "requirements",
    [("--require-hashes", "--requirement", "requirements.lock"), ("--constraint", "constraints.txt", *NEED_TORCH)],
    ids=["by hash", "with torch"],
)
def test_all_that_the_image_needs_is_there_as_a_wheel(requirements, tmp_path):
    """A small board cannot compile. What docker/lock wrote on another machine has the hashes of these wheels, too."""
    options = ("--dry-run", "--ignore-installed", "--target", str(tmp_path), "--no-deps")
    pip_for_arm("install", requirements, *options)


def cannot(problem: str) -> NoReturn:
    (pytest.fail if os.environ.get("COTERIE_DOCKER") == "required" else pytest.skip)(problem)


def with_a_stand_in(tmp_path: Path, wheels: Path) -> tuple[Path, list[str]]:
    """What to build where there is no registry, and how: on a Debian that has all wheels, which pip on this machine
    finds many times faster than pip under emulation. Of the project, only the pins of LAST_WITHOUT_CUDA differ."""
    made = subprocess.run([ROOT / "tests/docker/arm64-base", STAND_IN], capture_output=True, text=True)
    if made.returncode:
        cannot(f"no registry with {BASE} for arm64 can be reached, and no stand-in be made: {made.stderr.strip()}")

    context = tmp_path / "context"
    context.mkdir()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source = ROOT / line[1:]
            (shutil.copytree if source.is_dir() else shutil.copy)(source, context / line[1:])
    shutil.copy(ROOT / ".dockerignore", context)
    constraints = context / "constraints.txt"
    for name, version in LAST_WITHOUT_CUDA.items():
        changed, pins = re.subn(rf"(?m)^{name}==.*$", f"{name}=={version}", constraints.read_text())
        assert pins == 1
        constraints.write_text(changed)

    into = ("--dest", str(wheels), "--constraint", str(constraints))
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["all"]]
    others = [line.replace("[simulation]", "") for line in requirements if name_of(line) not in NEED_TORCH]
    pip_for_arm("download", NEED_TORCH, "--no-deps", *into)
    pip_for_arm("download", [*others, "jinja2", "opt-einsum", "setuptools>=77", "sympy"], *into)
    (wheels / "Dockerfile").write_text(
        f"FROM {STAND_IN}\nCOPY *.whl /opt/wheels/\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels\n"
    )
    base = f"{STAND_IN}-wheels"
    run("docker", "build", *ARM64, "-t", base, str(wheels))
    return context, ["--build-arg", f"BASE={base}", "--build-arg", "PIP_EXTRA_INDEX_URL="]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_image_for_arm64_builds_and_imports(engine, tmp_path, request):
    look = ["docker", "buildx", "imagetools", "inspect", BASE]
    if subprocess.run(look, capture_output=True).returncode:
        context, arguments = with_a_stand_in(tmp_path, request.config.cache.mkdir("arm64-wheels"))
    elif platform.machine() == "aarch64" or Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        index = os.environ.get("PIP_EXTRA_INDEX_URL")
        context, arguments = ROOT, [] if index is None else ["--build-arg", f"PIP_EXTRA_INDEX_URL={index}"]
    else:
        cannot("emulation of arm64 is missing: apt-get install qemu-user-static")
    dockerfile = str(context / "docker/Dockerfile")
    run("docker", "build", *ARM64, *arguments, "-f", dockerfile, "-t", IMAGE, str(context))
    code = "import platform, coterie.client.app, coterie.server.app, torch; print(platform.machine())"
    assert run("docker", "run", "--rm", *ARM64, "--entrypoint", "python", IMAGE, "-c", code).strip() == "aarch64"
    assert "Usage: coterie" in run("docker", "run", "--rm", *ARM64, IMAGE, "--help")

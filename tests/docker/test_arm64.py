"""The image and the packages of a client on 64-bit ARM, as in a Raspberry Pi."""

import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = "python:3.11-slim"
TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux_2_31")
NAMES_CUDA = (
    "torch",
    "torchvision",
    "opacus",
)  # their wheels for ARM name CUDA's packages, unless they are PyTorch's +cpu


@pytest.mark.slow
@pytest.mark.parametrize("with_dependencies", [True, False])
def test_all_that_a_client_needs_is_there_as_a_wheel(with_dependencies, tmp_path):
    """A small board cannot compile. Torch and what needs it are looked at without their own dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[A-Za-z0-9_-]+", line)[0] for line in project["dependencies"]]
    chosen = [name for name in names if (name in NAMES_CUDA) != with_dependencies]
    assert chosen
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--only-binary=:all:",
    ]
    command += [option for tag in TAGS for option in ("--platform", f"{tag}_aarch64")]
    command += ["--python-version", "3.11", "--target", str(tmp_path), "--constraint", str(ROOT / "constraints.txt")]
    command += [] if with_dependencies else ["--no-deps"]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_for_arm64_builds_and_imports(engine):
    if platform.machine() != "aarch64" and not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        pytest.skip("needs emulation of arm64: install qemu-user-static and binfmt-support")
    base = os.environ.get("COTERIE_ARM64_BASE", BASE)
    look = ["docker", "buildx", "imagetools", "inspect", base]
    if base == BASE and subprocess.run(look, capture_output=True).returncode:
        pytest.skip(f"no registry with {BASE} for arm64 can be reached; name an image in COTERIE_ARM64_BASE")
    arguments = ["--build-arg", f"BASE={base}"]
    if "PIP_EXTRA_INDEX_URL" in os.environ:
        arguments += ["--build-arg", f"PIP_EXTRA_INDEX_URL={os.environ['PIP_EXTRA_INDEX_URL']}"]
    build = ["docker", "build", "--platform", "linux/arm64", "-f", "docker/Dockerfile", "-t", "coterie-test:arm64", "."]
    built = subprocess.run([*build, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    code = "import platform, client.app, server.app; print(platform.machine())"
    run = ["docker", "run", "--rm", "--platform", "linux/arm64", "--entrypoint", "python", "coterie-test:arm64"]
    ran = subprocess.run([*run, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "aarch64", ran.stderr

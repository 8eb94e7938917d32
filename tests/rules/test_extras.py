"""Each service stands alone: its extra installs into an empty environment, its image needs only its own folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.rules.repository import ROOT, texts

IMAGES = {
    "gateway": {"rollway_gateway"},
    "dispatcher": {"rollway_dispatcher"},
    "emulator": {"rollway_emulator", "rollway_shim"},
    "agent": {"rollway_shim"},
}
SHARED = {"rollway_wire", "rollway_kit"}
PACKAGES = {
    "gateway": ("rollway_gateway",),
    "dispatcher": ("rollway_dispatcher",),
    "emulator": ("rollway_emulator",),
    "client": ("rollway_driver.client",),
    "local": (
        "rollway_local.cli",
        "rollway_local.up",
        "rollway_local.s3_server",
        "rollway_local.leash",
        "rollway_driver.evaluation",
    ),
}
# Imports every module of the packages named, so that a dependency that the extra forgot is missed here.
PROBE = """
import importlib, json, pkgutil, sys
done = []
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    done.append(package.__file__)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(json.dumps(done))
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    ended = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, f"{shlex.join(map(str, command))}\n{ended.stdout[-4000:]}{ended.stderr[-4000:]}"
    return ended.stdout


def wheel_of(source: Path, out: Path) -> Path:
    """The wheel of a source folder, by the build backend that is installed here."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    return next(out.glob("*.whl"))


def copied(image: str) -> list[tuple[str, str]]:
    """(source, target) of every COPY from the repository, stage by stage."""
    lines = (ROOT / f"deploy/images/{image}.Dockerfile").read_text().splitlines()
    found = []
    for words in (line.split()[1:] for line in lines if line.startswith("COPY ") and "--from=" not in line):
        found += [(source, words[-1]) for source in words[:-1]]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the whole repository, built from what git tracks."""
    source = tmp_path_factory.mktemp("source")
    for name, _ in texts():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", sorted(PACKAGES))
def test_an_extra_installs_alone_and_imports(extra: str, wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"rollway[{extra}] @ file://{wheel}")
    run(python, "-m", "pip", "check")
    for imported in json.loads(run(python, "-I", "-c", PROBE, *PACKAGES[extra], cwd=tmp_path)):
        assert Path(imported).is_relative_to(tmp_path)


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_what_a_dockerfile_copies_exists_and_is_its_own(image: str) -> None:
    sources = [source for source, _ in copied(image)]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    code = {Path(s).name for s in sources if s.startswith(("services/", "deploy/rollway_"))}
    assert code == IMAGES[image]


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_the_folders_that_an_image_copies_build_a_wheel_that_imports(image: str, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for path, target in copied(image):
        if target.startswith("/"):
            continue
        where = source / target / (Path(path).name if target == "./" else "")
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / target, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / path, where)
    built = wheel_of(source, tmp_path / "out")
    with zipfile.ZipFile(built) as archive:
        packages = {name.split("/")[0] for name in archive.namelist() if not name.startswith("rollway-")}
        archive.extractall(tmp_path / "site")
    assert packages == IMAGES[image] | SHARED
    probe = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{PROBE}"
    flags = ["-W", "ignore", "-I"]
    for imported in json.loads(run(sys.executable, *flags, "-c", probe, *sorted(IMAGES[image]), cwd=tmp_path)):
        assert Path(imported).is_relative_to(tmp_path)


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_an_image_runs_as_a_person_without_rights_and_installs_only_what_was_built(image: str) -> None:
    text = (ROOT / f"deploy/images/{image}.Dockerfile").read_text()
    last_stage = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER (rollway|agent)$", last_stage, re.MULTILINE)
    assert "--no-index" in last_stage
    port = re.search(r"^EXPOSE (\d+)$", last_stage, re.MULTILINE)
    assert port is not None
    if image != "agent":
        assert f"_PORT={port[1]}" in last_stage
        assert f"http://127.0.0.1:{port[1]}/health" in last_stage


class TestCompose:
    """The compose file says what `rollway up` does."""

    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())

    def test_it_has_the_stacks_services_built_from_their_dockerfiles(self) -> None:
        services = self.compose["services"]
        assert set(services) == {"s3", "s3-bucket", "emulator", "gateway", "dispatcher", "agent"}
        for name, service in services.items():
            assert set(service) <= {
                "image", "build", "command", "entrypoint", "environment", "volumes", "ports", "healthcheck",
                "depends_on", "restart", "init", "extra_hosts", "profiles",
            }  # fmt: skip
            if "build" in service:
                assert (ROOT / "deploy" / service["build"]["context"]).resolve() == ROOT
                assert service["build"]["dockerfile"] == f"deploy/images/{name}.Dockerfile"
            else:
                assert re.fullmatch(r"[\w/]+:RELEASE[\w.-]+", service["image"]), "an image is pinned by its tag"

    def test_what_a_service_waits_for_exists_and_can_come_true(self) -> None:
        services = self.compose["services"]
        for service in services.values():
            for other, how in service.get("depends_on", {}).items():
                assert other in services
                if how["condition"] == "service_healthy":
                    dockerfile = ROOT / f"deploy/images/{other}.Dockerfile"
                    assert "healthcheck" in services[other] or "HEALTHCHECK" in dockerfile.read_text()

    def test_ports_are_published_to_this_machine_alone_and_are_the_images(self) -> None:
        for name, service in self.compose["services"].items():
            for published in service.get("ports", []):
                host, _, inside = published.split(":")
                assert host == "127.0.0.1"
                dockerfile = ROOT / f"deploy/images/{name}.Dockerfile"
                assert not dockerfile.exists() or f"EXPOSE {inside}\n" in dockerfile.read_text()

    def test_addresses_between_services_name_services_and_their_ports(self) -> None:
        ports = {"s3": {"9000"}, "gateway": {"8700", "8701"}, "dispatcher": {"8800"}, "emulator": {"8900"}}
        for service in self.compose["services"].values():
            for value in service.get("environment", {}).values():
                for name, port in re.findall(r"http://([\w.-]+):(\d+)", str(value)):
                    assert port in ports[name]

    def test_settings_are_settings_that_the_services_have(self) -> None:
        for name, service in self.compose["services"].items():
            folder = next(
                (p for p in (ROOT / f"services/rollway_{name}", ROOT / f"deploy/rollway_{name}") if p.exists()), None
            )
            for variable in service.get("environment", {}):
                if variable.startswith("ROLLWAY_"):
                    assert folder is not None
                    field = variable.removeprefix(f"ROLLWAY_{name.upper()}_").lower()
                    assert re.search(rf"^    {field}:", (folder / "settings.py").read_text(), re.MULTILINE), variable

    def test_every_volume_is_declared(self) -> None:
        used = {v.split(":")[0] for s in self.compose["services"].values() for v in s.get("volumes", [])}
        assert used == set(self.compose["volumes"])

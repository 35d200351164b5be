"""What the roles driver, interconnect and cuda decide without a host: names of packages, ACS bits, versions."""

import importlib.util
import json
import struct
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from aerie.lock import driver_packages
from aerie.paths import repository

ROLES = repository() / "roles"


def role_file(path: str) -> ModuleType:
    """A program that a role sends to hosts, as a module."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROLES / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


apt_set = role_file("driver/files/apt_set.py")
modules = role_file("driver/files/modules.py")
acs = role_file("interconnect/files/acs.py")
assemble = role_file("cuda/files/assemble.py")


def role_variables(role: str, **given: Any) -> Any:
    """Ansible's own view of a role's vars with the given variables."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    raw = yaml.safe_load((ROLES / role / "vars/main.yml").read_text())
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in raw.items()}
    templar = Templar(loader=DataLoader(), variables={**trusted, **given})
    return lambda name: templar.template(trust_as_template(f"{{{{ {name} }}}}"))


@pytest.mark.parametrize("flavour", ["open", "closed"])
@pytest.mark.parametrize("os_id", ["ubuntu", "debian"])
@pytest.mark.parametrize("version", ["580.105.08", "590.48.01", "595.58.03", "610.43.02"])
def test_role_and_library_name_the_same_packages(version: str, flavour: str, os_id: str) -> None:
    wanted = driver_packages(version, flavour, os_id)
    value = role_variables("driver", driver_version=version, driver_flavour=flavour)
    assert [one["name"] for one in value("driver_set")] == [*filter(None, [wanted.pinning]), *wanted.packages]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("590.48.01-1ubuntu1", "590.48.01", True),
        ("590.48.01-1", "590.48.01", True),
        ("1:590.48.01-1", "590.48.01", True),
        ("590.48.010-1", "590.48.01", False),
        ("13.1.115-1", "13.1.115-1", True),
        ("13.1.1-1", "13.1.115-1", False),
        ("590.48.01-1ubuntu1", "", True),
        ("", "", False),
    ],
)
def test_a_packages_version_is_the_wanted_one_up_to_its_packaging(version: str, wanted: str, fits: bool) -> None:
    assert apt_set.matches(version, wanted) is fits


def test_apts_simulation_is_read_into_new_old_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = """\
Reading package lists...
Remv nvidia-driver-pinning-590.44.01 [590.44.01-1ubuntu1]
Inst nvidia-open [590.44.01-1ubuntu1] (590.48.01-1ubuntu1 NVIDIA:NVIDIA CUDA [amd64]) []
Inst nvidia-driver-pinning-590.48.01 (590.48.01-1ubuntu1 NVIDIA:NVIDIA CUDA [all])
Conf nvidia-open (590.48.01-1ubuntu1 NVIDIA:NVIDIA CUDA [amd64])
"""
    madison = "".join(f" nvidia-open | 590.{minor}.01-1ubuntu1 | http://x  Packages\n" for minor in (48, 44))
    answers = {"dpkg-query": "installed nvidia-open 590.44.01-1ubuntu1\n", "apt-cache": madison, "apt-get": simulated}
    monkeypatch.setattr(apt_set, "run", lambda argv, **_: (0, answers[argv[0]]))
    packages = [{"name": "nvidia-open", "version": "590.48.01"}, {"name": "nvidia-none", "version": "590.48.01"}]
    assert apt_set.resolve({"packages": packages, "pins": "", "offline": ""})["unknown"] == [
        {"name": "nvidia-none", "version": "590.48.01", "known": []}
    ]
    answer = apt_set.resolve({"packages": packages[:1], "pins": "", "offline": ""})
    assert answer["specs"] == ["nvidia-open=590.48.01-1ubuntu1"]
    assert answer["install"] == [
        {"name": "nvidia-open", "new": "590.48.01-1ubuntu1", "old": "590.44.01-1ubuntu1"},
        {"name": "nvidia-driver-pinning-590.48.01", "new": "590.48.01-1ubuntu1", "old": ""},
    ]
    assert answer["remove"] == [{"name": "nvidia-driver-pinning-590.44.01", "old": "590.44.01-1ubuntu1"}]


def test_driver_packages_of_another_repository_are_foreign_and_others_are_not(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = """\
nvidia-open:
  Installed: 590.48.01-1ubuntu1
  Candidate: 590.48.01-1ubuntu1
  Version table:
 *** 590.48.01-1ubuntu1 1000
        600 https://mirror.example/repos/ubuntu2404/x86_64  Packages
        100 /var/lib/dpkg/status
libnvidia-compute-590-server:
  Installed: 590.48.01-0ubuntu1
  Candidate: 590.48.01-0ubuntu1
  Version table:
     595.71.05-0ubuntu1 500
        500 https://mirror.example/repos/ubuntu2404/x86_64  Packages
 *** 590.48.01-0ubuntu1 500
        500 http://archive.example/ubuntu noble/restricted amd64 Packages
        100 /var/lib/dpkg/status
nvidia-utils:
  Installed: 580.1-1
  Candidate: 580.1-1
  Version table:
 *** 580.1-1 100
        100 /var/lib/dpkg/status
"""
    names = (
        "nvidia-open",
        "libnvidia-compute-590-server",
        "nvidia-utils",
        "nvidia-container-toolkit",
        "libnvidia-container1",
    )
    dpkg = "".join(f"installed {name} 590.48.01-0ubuntu1\n" for name in names)
    asked: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> tuple[int, str]:
        asked.append(argv)
        return 0, dpkg if argv[0] == "dpkg-query" else policy

    monkeypatch.setattr(apt_set, "run", run)
    source = tmp_path / "aerie.sources"
    assert apt_set.foreign({"uri": "https://new.example/", "source": str(source)})["packages"] != []
    source.write_text("Types: deb\nURIs: https://mirror.example/repos/ubuntu2404/x86_64/\n")
    found = apt_set.foreign({"uri": "https://new.example/", "source": str(source)})
    assert found == {"packages": ["libnvidia-compute-590-server=590.48.01-0ubuntu1 from http://archive.example/ubuntu"]}
    assert not [name for name in asked[-1] if "container" in name]


def test_an_archive_that_is_not_the_proven_one_is_refused_and_removed(tmp_path: Any) -> None:
    file = tmp_path / "nvidia-open_590.48.01-1_amd64.deb"
    file.write_bytes(b"another")
    apt_set.check(file, "nvidia-open", {})
    with pytest.raises(apt_set.Refused, match="SHA-256"):
        apt_set.check(file, "nvidia-open", {"nvidia-open": "0" * 64})
    assert not file.exists()


def test_kernels_are_ordered_as_boot_loaders_do() -> None:
    names = ["6.8.0-31-generic", "6.17.0-20-generic", "6.8.0-9-generic", "6.12.43+deb13-amd64"]
    assert sorted(names, key=modules.order) == [
        "6.8.0-9-generic",
        "6.8.0-31-generic",
        "6.12.43+deb13-amd64",
        "6.17.0-20-generic",
    ]


def pci_function(tree: Any, path: str, *, vendor: int, kind: int, acs_control: int | None = None) -> None:
    """A device of a made-up bus; with ACS its capability stands behind another one, as on real bridges."""
    folder = tree / "devices" / path
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"0x{vendor:04x}\n")
    (folder / "class").write_text(f"0x{kind:06x}\n")
    space = bytearray(4096)
    if acs_control is not None:
        struct.pack_into("<I", space, 0x100, 0x148 << 20 | 0x10001)
        struct.pack_into("<IHH", space, 0x148, 0x0001000D, 0x005F, acs_control)
    (folder / "config").write_bytes(bytes(space))
    (tree / "bus").mkdir(exist_ok=True)
    (tree / "bus" / folder.name).symlink_to(folder)


def test_access_control_is_cleared_above_gpus_only(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acs, "DEVICES", tmp_path / "bus")
    pci_function(tmp_path, "pci0000:80/0000:80:01.1", vendor=0x1022, kind=0x060400, acs_control=0x1D)
    pci_function(tmp_path, "pci0000:80/0000:80:01.1/0000:81:00.0", vendor=0x10DE, kind=0x030200)
    pci_function(tmp_path, "pci0000:c0/0000:c0:01.1", vendor=0x1022, kind=0x060400, acs_control=0x1D)
    pci_function(tmp_path, "pci0000:c0/0000:c0:01.1/0000:c1:00.0", vendor=0x144D, kind=0x010802)
    pci_function(tmp_path, "pci0000:e0/0000:e0:01.1", vendor=0x1022, kind=0x060400)  # no ACS at all
    pci_function(tmp_path, "pci0000:e0/0000:e0:01.1/0000:e1:00.0", vendor=0x10DE, kind=0x030000)
    assert acs.acs() == {"0000:80:01.1": 0x1D}
    assert acs.clear() == ["0000:80:01.1"]
    assert acs.clear() == []
    assert acs.acs() == {"0000:80:01.1": 0}
    disk = tmp_path / "bus/0000:c0:01.1"
    assert acs.read(disk, acs.control(disk)) == 0x1D


@pytest.mark.parametrize(
    ("group", "word"), [(None, "off"), ("identity", "pt"), ("DMA-FQ", "translated"), ("DMA", "translated")]
)
def test_the_iommus_word_is_that_of_the_gpus_group(
    group: str | None, word: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acs, "DEVICES", tmp_path / "bus")
    pci_function(tmp_path, "pci0000:80/0000:81:00.0", vendor=0x10DE, kind=0x030200)
    if group is not None:
        (tmp_path / "bus/0000:81:00.0/iommu_group").mkdir()
        (tmp_path / "bus/0000:81:00.0/iommu_group/type").write_text(f"{group}\n")
    assert acs.iommu() == {"0000:81:00.0": word}


def test_wheels_become_a_toolkit_in_place_of_the_one_before(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wheels = tmp_path / "cuda-13.1", tmp_path / "cuda-13.1.wheels"
    (path / "bin").mkdir(parents=True)
    (path / "old").write_text("")
    tree = wheels / "tree/nvidia/cu13"
    for name in ("bin/nvcc", "lib/libcudart.so.13", "lib/libcublas.so.13"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    (wheels / "requirements.txt").write_text("nvidia-cuda-nvcc==13.1.115\n")
    monkeypatch.setattr(sys, "argv", ["assemble.py", str(path), "13.1.1"])
    assert assemble.main() == 0
    assert (path / "bin/nvcc").exists() and not (path / "old").exists() and not wheels.exists()
    assert (path / "lib64/libcudart.so").resolve() == path / "lib/libcudart.so.13"
    assert json.loads((path / "version.json").read_text())["cuda"]["version"] == "13.1.1"
    assert (path / ".aerie-wheels").read_text() == "nvidia-cuda-nvcc==13.1.115\n"


def test_wheels_without_a_compiler_leave_the_toolkit_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cuda-13.1"
    (path / "bin").mkdir(parents=True)
    (tmp_path / "cuda-13.1.wheels/tree/nvidia/cu13/lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["assemble.py", str(path), "13.1.1"])
    assert assemble.main() == 1
    assert "expected one tree nvidia/cu… with bin/nvcc" in capsys.readouterr().out
    assert (path / "bin").exists()

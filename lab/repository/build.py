"""Builds the repository once, into the user's cache: packages, indexes, signatures, and its two broken variants."""

import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import AerieError

from .. import standin
from ..base import suite_of
from ..cache import kept
from ..command import run
from .packages import DKMS, OPEN_DRIVER, TOOLKITS, Package, cuda_packages, driver_packages, keyrings

__all__ = ["DISTROS", "Repository", "build", "distro_of"]

HERE = Path(__file__).resolve().parent
DISTROS = {"noble": "ubuntu2404", "trixie": "debian13", "bookworm": "debian12"}
KEYRING = "cuda-archive-keyring.gpg"
MAINTAINER = "cudatools <cudatools@nvidia.com>"


@dataclass(frozen=True, slots=True)
class Repository:
    """folder: normal/, bad-hash/ and rotated-key/; what a variant does not have is as in normal/."""

    folder: Path

    @property
    def key_sha256(self) -> str:
        """Of the keyring file, as a lock has it."""
        return hashlib.sha256((self.folder / "normal" / KEYRING).read_bytes()).hexdigest()

    def archives(self, driver: str, toolkit: str) -> list[Path]:
        """The .deb files of a driver (open flavour, 590 or newer), its pin, and a toolkit without metapackages."""
        packages = [one for one in driver_packages(standin.DRIVERS[driver]) if one.name in OPEN_DRIVER]
        packages += [one for one in cuda_packages(toolkit) if one.version != f"{toolkit}-1"]
        names = [f"{one.name}_{one.version}_{one.arch}.deb" for one in packages]
        pin = self.archive(f"nvidia-driver-pinning-{driver}", driver)
        return [*(self.folder / "normal" / name for name in names), *self.folder.glob(f"normal/{DKMS}_*.deb"), pin]

    def archive(self, name: str, driver: str) -> Path:
        """One package of a driver version."""
        (found,) = self.folder.glob(f"normal/{name}_{driver}-*.deb")
        return found

    @property
    def key_fingerprint(self) -> str:
        """40 hex digits of the key in it."""
        return (self.folder / "fingerprint").read_text().strip()


def distro_of(base: Path) -> str:
    """NVIDIA's word for the system of a base image: "debian13" for base-trixie-<hash>."""
    return DISTROS[suite_of(base)]


def build(distro: str, address: str) -> Repository:
    """The repository for hosts of `distro` that reach it at `address`; built now when the cache does not have it."""
    return Repository(kept(f"repository-{_told(distro, address)}", lambda folder: _fill(folder, distro, address)))


def _told(*words: str) -> str:
    sources = [path for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    told = hashlib.sha256(repr((words, standin.DRIVERS)).encode())
    for path in sorted([*sources, *standin.SOURCES]):
        told.update(path.read_bytes())
    return told.hexdigest()[:12]


def _fill(folder: Path, distro: str, address: str) -> None:
    normal = folder / "normal"
    normal.mkdir()
    with tempfile.TemporaryDirectory(prefix="aerie-keys-") as keys:
        key, fingerprint = _key(Path(keys), "cudatools (stand-in) <cudatools@nvidia.com>")
        (normal / KEYRING).write_bytes(key)
        (folder / "fingerprint").write_text(fingerprint)
        packages = [package for driver in standin.DRIVERS.values() for package in driver_packages(driver)]
        packages += [package for release in TOOLKITS for package in cuda_packages(release)]
        _pack([*packages, *keyrings(key, distro, address)], normal)
        _index(normal)
        _sign(normal, Path(keys), fingerprint)
        broken = folder / "bad-hash"
        broken.mkdir()
        (broken / "Packages").write_bytes((normal / "Packages").read_bytes().replace(b"590.", b"591."))
        (broken / "Packages.gz").write_bytes(gzip.compress((broken / "Packages").read_bytes()))
        rotated = folder / "rotated-key"
        rotated.mkdir()
        other, fingerprint = _key(Path(keys), "cudatools (new) <cudatools@nvidia.com>")
        (rotated / KEYRING).write_bytes(other)
        shutil.copy(normal / "Release", rotated)
        _sign(rotated, Path(keys), fingerprint)


def _key(home: Path, name: str) -> tuple[bytes, str]:
    """A new key without passphrase: the keyring file and the fingerprint."""
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
    run([*gpg, "--passphrase", "", "--quick-gen-key", name, "rsa3072", "sign", "never"], timeout_s=120)
    listed = run([*gpg, "--with-colons", "--list-keys", name])
    fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
    file = home / "key.gpg"
    run([*gpg, "--yes", "--output", str(file), "--export", fingerprint])
    return file.read_bytes(), fingerprint


def _pack(packages: Iterable[Package], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="aerie-debs-") as work, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda package: _deb(package, Path(work), folder), packages))


def _deb(package: Package, work: Path, folder: Path) -> None:
    root = work / f"{package.name}_{package.version}"
    control = {"Package": package.name, "Version": package.version, "Architecture": package.arch}
    control |= {"Maintainer": MAINTAINER, "Section": "devel", "Priority": "optional", **package.relations}
    control["Description"] = f"stand-in of {package.name}"
    files = {"DEBIAN/control": ("".join(f"{key}: {value}\n" for key, value in control.items()).encode(), 0o644)}
    files |= {f"DEBIAN/{name}": (text.encode(), 0o755) for name, text in package.scripts.items()}
    files |= {path.lstrip("/"): content for path, content in package.files.items()}
    for path, (content, mode) in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(mode)
    target = folder / f"{root.name}_{package.arch}.deb"
    run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(target)], timeout_s=120)


def _index(folder: Path) -> None:
    """Packages, Packages.gz and Release of a flat repository."""
    packages = run(["sh", "-c", 'cd "$1" && exec apt-ftparchive packages .', "sh", str(folder)], timeout_s=120)
    (folder / "Packages").write_text(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
    words = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"}
    options = [word for key, value in words.items() for word in ("-o", f"APT::FTPArchive::Release::{key}={value}")]
    (folder / "Release").write_text(run(["apt-ftparchive", *options, "release", str(folder)], timeout_s=60))
    if "Package: nvidia-open\n" not in packages:
        raise AerieError(
            "lab repository", seen="an index without nvidia-open", expected="all packages", remedy="Run it again."
        )


def _sign(folder: Path, home: Path, fingerprint: str) -> None:
    gpg = ["gpg", "--homedir", str(home), "--batch", "--yes", "--local-user", fingerprint, "--digest-algo", "SHA512"]
    release = str(folder / "Release")
    run([*gpg, "--armor", "--detach-sign", "--output", str(folder / "Release.gpg"), release])
    run([*gpg, "--clearsign", "--output", str(folder / "InRelease"), release])

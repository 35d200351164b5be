"""What a set of packages means for this host: what apt would do, its archives, and which packages are foreign.

Run on a host by the roles driver and cuda: python3 apt_set.py keyring|prove|resolve|keep|foreign. The request is the
JSON in AERIE_REQUEST, the answer one JSON document on stdout. Needs the standard library and apt; installs nothing.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STORE = Path("/var/cache/aerie/packages")
CONFIG = Path("/var/lib/aerie/apt")  # store.conf: apt with the store as its only source; back.conf: for the way back
CACHE = Path("/var/cache/apt/archives")
INST = re.compile(r"^Inst (?P<name>\S+)(?: \[(?P<old>[^\]]+)\])? \((?P<new>\S+) ")
REMV = re.compile(r"^Remv (?P<name>\S+) \[(?P<old>[^\]]+)\]")
# Of NVIDIA's driver, not of its container tools or of Debian's old toolkit, which have sources of their own.
DRIVER = re.compile(
    r"^(nvidia-(open|driver|dkms|kernel|utils|smi|persistenced|modprobe|settings|firmware|compute|fabricmanager|alternative"
    r"|legacy|vdpau|egl|vulkan|opencl|xconfig)|libnvidia-(?!container|nscq)|libcuda1|libcudadebugger|libnvcuvid|libnvoptix"
    r"|cuda-drivers|firmware-nvidia-gsp|xserver-xorg-video-nvidia|linux-(modules|objects|signatures)-nvidia)"
)


class Refused(Exception):
    """What cannot be done, in one line."""


def run(argv: list[str], *, config: Path | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """Exit code, and stdout followed by stderr."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    if config is not None:
        environment["APT_CONFIG"] = str(config)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


def installed() -> dict[str, str]:
    """Version by name of every package that is unpacked or more."""
    _, text = run(["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"])
    rows = (line.split() for line in text.splitlines())
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] not in ("not-installed", "config-files")}


def candidates(names: list[str], config: Path | None) -> dict[str, list[str]]:
    """Versions by package that some source has, as apt lists them. One call: each reads all indexes."""
    _, text = run(["apt-cache", "madison", *names], config=config)
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in text.splitlines():
        name, *rest = (cell.strip() for cell in line.split("|"))
        if len(rest) == 2 and rest[0] not in found.get(name, [rest[0]]):
            found[name].append(rest[0])
    return found


def matches(version: str, wanted: str) -> bool:
    """Whether a package's version is the wanted one: equal, or NVIDIA's without its packaging suffix; "" is any."""
    if not wanted:
        return bool(version)
    return version == wanted or version.split(":", 1)[-1].startswith(f"{wanted}-")


def keyring(request: dict[str, Any]) -> dict[str, Any]:
    """Write the keyring that a file is or, being a cuda-keyring package, holds. request: file, keyring (paths).

    The package itself is not installed: it would bring a second source of the same address.
    """
    file, target = Path(request["file"]), Path(request["keyring"])
    with tempfile.TemporaryDirectory(prefix="aerie-key-") as folder:
        if file.read_bytes().startswith(b"!<arch>"):
            code, text = run(["dpkg-deb", "--extract", str(file), folder])
            inside = sorted(Path(folder).glob("usr/share/keyrings/*.gpg"))
            if code != 0 or len(inside) != 1:
                raise Refused(f"{file} holds {len(inside)} keyrings, expected one. {text.strip()}")
            file = inside[0]
        key = file.read_bytes()
    changed = not target.exists() or target.read_bytes() != key
    if changed:
        partial = target.with_name(f".{target.name}.new")
        partial.write_bytes(key)
        partial.chmod(0o644)
        partial.replace(target)
    return {"changed": changed}


def prove(request: dict[str, Any]) -> dict[str, Any]:
    """Whether apt accepts a repository, tried beside the host's own lists. request: uri, keyring (a path).

    Raises Refused with apt's words: no answer, another signature, an index that its release file does not describe.
    """
    with tempfile.TemporaryDirectory(prefix="aerie-apt-") as name:
        folder = Path(name)
        config = write_config(folder, "", offline=True)
        (folder / "store.list").write_text(f"deb [signed-by={request['keyring']}] {request['uri']} /\n")
        argv = ["apt-get", "update", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=1"]
        code, text = run([*argv, "-o", "APT::Sandbox::User=root"], config=config)
    if code != 0:
        raise Refused(apt_words(text))
    return {}


def resolve(request: dict[str, Any]) -> dict[str, Any]:
    """request: packages [{name, version}], pins (text of apt preferences), offline (a folder or "").

    specs: name=version of each; install: [{name, new, old}] with old "" for new ones; remove: [{name, old}];
    unknown: [{name, version, known}] that no source has: then nothing else was looked at.
    """
    have = installed()
    with tempfile.TemporaryDirectory(prefix="aerie-apt-") as folder:
        config = write_config(Path(folder), request["pins"], offline=bool(request["offline"]))
        if request["offline"]:
            take_in(Path(request["offline"]))
            update(config)
        specs, unknown = [], []
        offered = candidates([package["name"] for package in request["packages"]], config)
        for package in request["packages"]:
            name, wanted = package["name"], package["version"]
            fits = [version for version in [have.get(name, ""), *offered[name]] if matches(version, wanted)]
            if fits:
                specs.append(f"{name}={fits[0]}")
            else:
                unknown.append({"name": name, "version": wanted, "known": offered[name]})
        answer: dict[str, Any] = {"specs": specs, "unknown": unknown, "install": [], "remove": [], "error": ""}
        if unknown:
            return answer
        code, text = run(["apt-get", "--simulate", "--yes", "--allow-downgrades", "install", *specs], config=config)
    if code != 0:
        return {**answer, "error": text[-2000:]}
    for line in text.splitlines():
        if found := INST.match(line):
            answer["install"].append({"name": found["name"], "new": found["new"], "old": found["old"] or ""})
        elif found := REMV.match(line):
            answer["remove"].append({"name": found["name"], "old": found["old"]})
    return answer


def keep(request: dict[str, Any]) -> dict[str, Any]:
    """Bring the archives of a resolved set, new and old, into the store, and write its index.

    request: install and remove as resolve gave them, sha256 {name: digest}, pins, offline.
    lost: name=version of what is installed now and can no longer be fetched, so that there is no way back to it.
    Raises Refused when a new archive cannot be had or is not the proven one; the host is as it was then.
    """
    STORE.mkdir(parents=True, exist_ok=True, mode=0o755)
    comes = [(package["name"], package["new"]) for package in request["install"]]
    leaves = [(one["name"], one["old"]) for one in [*request["install"], *request["remove"]] if one["old"]]
    words = fetch([one for one in comes if archive(*one) is None])
    for name, version in comes:
        if (path := archive(name, version)) is None:
            raise Refused(f"{name}={version} cannot be downloaded: {words}")
        check(path, name, request["sha256"])
    fetch([one for one in leaves if archive(*one) is None])
    for one in leaves:
        if archive(*one) is None:  # one that no source has spoils a download of many
            fetch([one])
    index()
    CONFIG.mkdir(parents=True, exist_ok=True)
    write_config(CONFIG, "".join(pin(*one) for one in leaves), offline=True, name="back")
    update(write_config(CONFIG, request["pins"], offline=True))
    return {"lost": [f"{name}={version}" for name, version in leaves if archive(name, version) is None]}


def pin(name: str, version: str) -> str:
    """A stanza of apt preferences that wants exactly this version, also where that is a downgrade."""
    return f"Package: {name}\nPin: version {version}\nPin-Priority: 1002\n\n"


def foreign(request: dict[str, Any]) -> dict[str, Any]:
    """request: uri, the repository that driver packages come from, and source, our own list, which may still name
    the repository before. packages: ["name=version from URI"] of those from elsewhere.
    """
    have = {name: version for name, version in installed().items() if DRIVER.match(name)}
    _, text = run(["apt-cache", "policy", *have]) if have else (0, "")
    source = Path(request["source"])
    listed = re.findall(r"(?m)^URIs: *(\S+)", source.read_text()) if source.exists() else []
    ours = tuple(uri.rstrip("/") for uri in (request["uri"], *listed))
    found, name, is_installed, sources = [], "", False, dict[str, list[str]]()
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name = line.rstrip(":")
        elif re.match(r"^ (\*\*\*|   ) \S+( \d+| -\d+)?", line) and not line.startswith("       "):
            is_installed = line.startswith(" ***")
        elif is_installed and (origin := re.match(r"^ +-?\d+ (\w+:\S+)", line)):
            sources.setdefault(name, []).append(origin[1])
    for name, uris in sorted(sources.items()):
        elsewhere = [uri for uri in uris if not uri.rstrip("/").startswith(ours)]
        if len(elsewhere) == len(uris):
            found.append(f"{name}={have.get(name, '?')} from {elsewhere[0]}")
    return {"packages": found}


def write_config(folder: Path, pins: str, *, offline: bool, name: str = "store") -> Path:
    """An apt configuration <name>.conf with preferences of its own; offline: its only source is the store.

    The host's own preferences count online only: what is in the store was resolved under them before.
    """
    (folder / f"{name}.pref").write_text(pins)
    lines = [f'Dir::Etc::preferences "{folder}/{name}.pref";']
    if offline:
        (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        (folder / "none").mkdir(exist_ok=True)
        (folder / "store.list").write_text(f"deb [trusted=yes] file:{STORE} ./\n")
        lines += [
            f'Dir::Etc::sourcelist "{folder}/store.list";',
            f'Dir::Etc::sourceparts "{folder}/none";',
            f'Dir::Etc::preferencesparts "{folder}/none";',
            f'Dir::State::lists "{folder}/lists";',
            f'Dir::Cache::pkgcache "{folder}/pkgcache.bin";',
            f'Dir::Cache::srcpkgcache "{folder}/srcpkgcache.bin";',
        ]
        folder.chmod(0o755)
    config = folder / f"{name}.conf"
    config.write_text("\n".join(lines) + "\n")
    return config


def update(config: Path) -> None:
    """Make apt read the store's index anew."""
    for cached in config.parent.glob("*pkgcache.bin"):
        cached.unlink()
    code, text = run(["apt-get", "update", "-o", "APT::Sandbox::User=root"], config=config)
    if code != 0:
        raise Refused(f"apt cannot read the store {STORE}: {text[-800:]}")


def take_in(folder: Path) -> None:
    """Copy a folder's archives into the store, unless it is the store, and write the index."""
    found = sorted(folder.glob("*.deb"))
    if not found:
        raise Refused(f"{folder} has no .deb file")
    STORE.mkdir(parents=True, exist_ok=True, mode=0o755)
    if folder.resolve() != STORE.resolve():
        for path in found:
            shutil.copyfile(path, STORE / path.name)
    index()


def archive(name: str, version: str) -> Path | None:
    """The archive in the store, brought in from apt's own cache where that has it."""
    pattern = f"{name.split(':')[0]}_{version.replace(':', '%3a')}_*.deb"
    for path in STORE.glob(pattern):
        return path
    for path in CACHE.glob(pattern):
        partial = Path(shutil.copy(path, STORE / f".{path.name}.new"))
        return partial.rename(STORE / path.name)
    return None


def fetch(packages: list[tuple[str, str]]) -> str:
    """Download archives into the store; apt checks each against the signed index. What apt complained of, or ""."""
    if not packages:
        return ""
    with tempfile.TemporaryDirectory(dir=STORE, prefix=".fetch-") as folder:
        argv = ["apt-get", "download", "-o", "APT::Sandbox::User=root"]
        code, text = run([*argv, *(f"{name}={version}" for name, version in packages)], cwd=Path(folder))
        for file in Path(folder).glob("*.deb"):
            file.rename(STORE / file.name)
    return apt_words(text) if code != 0 else ""


def apt_words(text: str) -> str:
    """What apt complained of, in one line."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith(("E:", "W:", "  "))]
    known = [line for line in dict.fromkeys(lines) if "Some index files failed" not in line]
    return " ".join(known[:3])[:600] or text.strip()[-300:] or "apt gave no reason"


def check(path: Path, name: str, proven: dict[str, str]) -> None:
    """Raises Refused, and removes the file, when it is not the proven one."""
    wanted = proven.get(name.split(":")[0])
    if wanted is None:
        return
    with open(path, "rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if seen != wanted:
        path.unlink()
        raise Refused(f"{path.name} has SHA-256 {seen}, the lock wants {wanted}")


def index() -> None:
    """Write the store's Packages file: each archive's own control data, with name, size and digest of the file."""
    stanzas = []
    for path in sorted(STORE.glob("*.deb")):
        code, control = run(["dpkg-deb", "--field", str(path)])
        if code != 0:
            raise Refused(f"{path} is no Debian package: {control.strip()}")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stanzas.append(f"{control.rstrip()}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n")
    partial = STORE / ".Packages.new"
    partial.write_text("\n".join(stanzas))
    partial.replace(STORE / "Packages")


COMMANDS = {"keyring": keyring, "prove": prove, "resolve": resolve, "keep": keep, "foreign": foreign}


def main() -> int:
    """Answer one request; exit 1 with the reason, also on stdout, when it is refused."""
    request = json.loads(os.environ["AERIE_REQUEST"])
    try:
        answer = COMMANDS[sys.argv[1]](request)
    except Refused as error:
        sys.stdout.write(f"{error}\n")  # Ansible runs scripts on a terminal, where stderr is not told apart
        return 1
    except OSError as error:
        sys.stdout.write(f"{error.filename or STORE}: {error.strerror}\n")
        return 1
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

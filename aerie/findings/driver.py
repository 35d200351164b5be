"""What differs in a host's NVIDIA driver as software: packages, sources, modules on disk, the loaded module.

Order matters: a cause that explains what follows ends the judgement (a .run install, no driver at all).
"""

import re
from collections.abc import Collection, Iterator, Mapping

from aerie.lock import DriverPackages, driver_packages
from aerie.snapshot import Package

from .case import Case, known
from .model import Finding, Fix

__all__ = ["judge"]

# Packages of the driver itself carry its version ("590.48.01-1ubuntu1", Debian's with an epoch); tools around it
# (nvidia-prime, nvidia-container-toolkit, nvidia-settings of the archive) do not count.
STACK = re.compile(r"(nvidia-|libnvidia-|cuda-drivers|linux-modules-nvidia-|firmware-nvidia-)")
VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?=[-~+]|$)")
TOOLS = ("nvidia-settings", "nvidia-driver-pinning", "nvidia-fabricmanager")
OPEN = re.compile(
    r"nvidia-(open(-\d+)?|driver(-\d+)?(-server)?-open|dkms(-\d+)?(-server)?-open|kernel-open-dkms|open-kernel-dkms)"
    r"|linux-modules-nvidia-\d+(-server)?-open-.+"
)
CLOSED = re.compile(
    r"nvidia-(dkms(-\d+)?(-server)?|kernel-dkms)|cuda-drivers(-\d+)?|linux-modules-nvidia-\d+(-server)?-(?!open).+"
)
TREE = re.compile(r"/compute/cuda/repos/([a-z]+\d+)/")  # NVIDIA's repository, or a mirror with its layout
SXM = re.compile(r"SXM|HBM3|\bH200$|\bB[123]00$|\bGB[123]00")  # names of GPUs that reach each other by NVSwitch
NVIDIA = "NVIDIA"
ORIGINS = {"nvidia.com": NVIDIA, "ubuntu.com": "Ubuntu", "canonical.com": "Ubuntu", "debian.org": "Debian"}


def judge(case: Case, causes: Collection[str]) -> Iterator[Finding]:
    """The findings of the driver's software. causes: ids of findings of the layers before."""
    driver = case.snapshot.driver
    if driver.runfile is not None:
        yield case.finding("driver.runfile", seen=driver.runfile, expected="a driver from packages, or none")
        return
    stack = _stack(case.packages)
    if "base.unsupported-system" not in causes:
        yield from _repository(case, is_installed=bool(stack))
    mine = list(_installed(case, stack) if stack else _absent(case))
    yield from mine
    yield from _fabric(case)
    if not stack and driver.loaded_version is None:
        return
    if stack:
        fixes = {finding.id: finding.fix for finding in mine}
        yield from _kept(case, fixes)
        yield from _on_disk(case, fixes)
    yield from _loaded(case, causes, {finding.id for finding in mine})


def _stack(packages: Mapping[str, Package]) -> dict[str, Package]:
    return {
        name: package
        for name, package in packages.items()
        if STACK.match(name) and VERSION.match(package.version) and not name.startswith(TOOLS)
    }


def _wanted(case: Case) -> DriverPackages:
    lock = case.lock.driver
    system = case.snapshot.os.id if case.snapshot.os.id in ("ubuntu", "debian") else "ubuntu"
    return driver_packages(lock.version, lock.flavour, system)


def _absent(case: Case) -> Iterator[Finding]:
    """No package of the driver; a container may have it from its host."""
    driver, lock = case.snapshot.driver, case.lock.driver
    yield from _closed(case, [])
    if known(case.snapshot.base.packages) is None:
        return
    if driver.loaded_version not in (None, lock.version):
        yield case.finding(
            "driver.version-mismatch",
            seen=f"no package, library {_word(driver.library_version)}, loaded {driver.loaded_version}",
            expected=f"{lock.version} in each",
        )
        return
    wanted = _wanted(case)
    names = ", ".join(name for name in (wanted.pinning, *wanted.packages) if name)
    has_repository = any(
        _same(source.uri, lock.repository.uri) for source in known(case.snapshot.base.apt_sources) or ()
    )
    yield case.finding(
        "driver.not-installed",
        seen="no package" + (f", {driver.loaded_version} loaded" if driver.loaded_version else ""),
        expected=f"{lock.version} {lock.flavour}",
        packages=names,
        when="" if has_repository else " (to be resolved after the repository is added)",
    )


def _installed(case: Case, stack: Mapping[str, Package]) -> Iterator[Finding]:
    """Flavour, origin and version of what is installed, against what is loaded."""
    lock = case.lock.driver
    open_, closed = (sorted(name for name in stack if which.fullmatch(name)) for which in (OPEN, CLOSED))
    if open_ and closed:
        yield case.finding(
            "driver.mixed-flavours",
            seen=f"open: {', '.join(open_)}; closed: {', '.join(closed)}",
            expected=f"only {lock.flavour}",
            packages=" ".join(closed if lock.flavour == "open" else open_),
        )
    else:
        yield from _closed(case, closed)
    origins: dict[str, list[str]] = {}
    for name, package in stack.items():
        origins.setdefault(_origin(package.maintainer), []).append(name)
    if len(origins) > 1:
        seen = "; ".join(f"{origin}: {_several(names)}" for origin, names in sorted(origins.items()))
        others = sorted(name for origin, names in origins.items() if origin != NVIDIA for name in names)
        yield case.finding(
            "driver.mixed-origins", seen=seen, expected="all driver packages from one", packages=" ".join(others)
        )
    yield from _version(case, stack)


def _closed(case: Case, packages: list[str]) -> Iterator[Finding]:
    """The closed module where the lock wants the open one. packages: of the closed flavour."""
    driver = case.snapshot.driver
    if case.lock.driver.flavour != "open":
        return
    modules = known(driver.modules) or {}
    closed = [f"nvidia.ko for {release}" for release, module in modules.items() if module.license == "NVIDIA"]
    seen = [*packages, *closed, *(["loaded module"] if driver.loaded_flavour == "closed" else [])]
    if seen:
        yield case.finding("driver.closed-module", seen=f"closed: {', '.join(seen)}", expected="open kernel modules")


def _version(case: Case, stack: Mapping[str, Package]) -> Iterator[Finding]:
    driver, wanted = case.snapshot.driver, case.lock.driver.version
    packages = sorted({match[1] for package in stack.values() if (match := VERSION.match(package.version))})
    library, loaded = known(driver.library_version), driver.loaded_version
    if packages == [wanted] and library in (wanted, None) and loaded in (wanted, None):
        return
    is_reboot_enough = packages == [wanted] and loaded != wanted
    is_library_alone = packages == [wanted] and loaded == wanted
    fix = Fix.REBOOT if is_reboot_enough else Fix.PERSON if is_library_alone else Fix.PROVISION
    yield case.finding(
        "driver.version-mismatch",
        seen=f"package {' and '.join(packages)}, library {_word(driver.library_version)}, loaded {loaded or 'none'}",
        expected=f"{wanted} in each",
        fix=fix,
    )


def _repository(case: Case, *, is_installed: bool) -> Iterator[Finding]:
    snapshot, lock = case.snapshot, case.lock.driver.repository
    right = f"{snapshot.os.id}{snapshot.os.version_id.replace('.', '')}"
    tree = TREE.search(lock.uri)
    if tree and tree[1] != right:
        what = f"The lock itself names the wrong tree: give {case.host} a lock whose [driver] repository is {right}."
        yield case.finding(
            "driver.repository-wrong", seen=f"lock: {lock.uri}", expected=f"tree {right}", fix=Fix.PERSON, what=what
        )
        return
    sources = known(snapshot.base.apt_sources)
    if sources is None:
        return
    expected = f"{lock.uri} with key {lock.key_fingerprint[-8:]}"
    others = [source for source in sources if (found := TREE.search(source.uri)) and found[1] != right]
    if others:
        files = ", ".join(dict.fromkeys(source.file for source in others))
        seen = "; ".join(dict.fromkeys(source.uri for source in others))
        what = f"On {case.host}: remove {files}, whose packages are for another system; then run again."
        yield case.finding("driver.repository-wrong", seen=seen, expected=expected, fix=Fix.PERSON, what=what)
        return
    mine = [source for source in sources if _same(source.uri, lock.uri)]
    wrong = [
        f"{source.uri} with key {', '.join(key[-8:] for key in keys) or 'none'}"
        for source in mine
        if (keys := known(source.fingerprints)) is not None and lock.key_fingerprint not in keys
    ]
    if wrong:
        yield case.finding("driver.repository-wrong", seen="; ".join(wrong), expected=expected)
    elif not mine and is_installed:
        yield case.finding("driver.repository-missing", seen="no such source", expected=lock.uri)


def _kept(case: Case, mine: Mapping[str, Fix]) -> Iterator[Finding]:
    """Does it stay at its version?"""
    wanted, names = _wanted(case), case.packages
    is_moving = mine.get("driver.version-mismatch") is Fix.PROVISION
    if is_moving and any(name.startswith("nvidia-driver-pinning-") for name in names):
        return  # the pin of the version that is there goes with it
    has_pin = wanted.pinning in names if wanted.pinning else True
    if not (has_pin and case.snapshot.driver.pin_files):
        others = [name for name in names if name.startswith("nvidia-driver-pinning-")]
        seen = ", ".join(others) or ("no preference" if has_pin else "no pinning package")
        yield case.finding(
            "driver.pin-missing",
            seen=seen,
            expected=wanted.pinning or "an apt preference for the driver's packages",
            packages=wanted.pinning or "an apt preference",
        )


def _fabric(case: Case) -> Iterator[Finding]:
    fabric = [name for name in case.packages if name.startswith("nvidia-fabricmanager")]
    gpus = known(case.snapshot.gpus) or ()
    if fabric and gpus and not any(SXM.search(gpu.name) for gpu in gpus):
        yield case.finding("driver.fabricmanager-present", seen=", ".join(fabric), expected="not installed")


def _on_disk(case: Case, mine: Mapping[str, Fix]) -> Iterator[Finding]:
    """Would the next boot load the driver that the packages hold?"""
    driver, wanted, release = case.snapshot.driver, case.lock.driver.version, case.next_release
    modules = known(driver.modules)
    # Packages at another version: provision replaces the module with them, so only its absence counts.
    is_replaced = mine.get("driver.version-mismatch") is Fix.PROVISION or "driver.closed-module" in mine
    if modules is not None:
        module = modules.get(release)
        dkms = (known(driver.dkms) or {}).get(release, "no line of dkms status")
        by_dkms = any("dkms" in name for name in case.packages if STACK.match(name))
        if module is None or (by_dkms and not dkms.endswith("installed")):
            yield case.finding(
                "driver.module-missing", seen=f"{release}: {dkms if by_dkms else 'no module'}", expected=_built(wanted)
            )
        elif module.version != wanted and not is_replaced:
            yield case.finding("driver.module-missing", seen=f"{release}: {module.version}", expected=_built(wanted))
    initramfs = known(driver.initramfs_version)
    if initramfs not in (None, wanted) and not is_replaced:
        yield case.finding(
            "driver.initramfs-stale", seen=f"{initramfs} for {release}", expected=f"{wanted}, or no nvidia.ko in it"
        )


def _built(version: str) -> str:
    return f"{version} built for every kernel that can boot"


def _loaded(case: Case, causes: Collection[str], mine: Collection[str]) -> Iterator[Finding]:
    snapshot, driver, lock = case.snapshot, case.snapshot.driver, case.lock.driver
    if driver.loaded_version is None:
        explained = {"kernel.nouveau-loaded", "kernel.secure-boot-unenrolled"} & set(causes)
        has_module = snapshot.kernel.release in (known(driver.modules) or {})
        if explained or not has_module or "driver.closed-module" in mine or "driver.version-mismatch" in mine:
            return
        yield case.finding("driver.not-loaded", seen="not loaded", expected=f"{lock.version} loaded")
        return
    if lock.uvm_disable_hmm:
        yield from _hmm(case)
    is_explained = {"driver.version-mismatch", "driver.closed-module"} & set(mine)
    if driver.nvml_error is not None and not is_explained:
        yield case.finding("driver.nvml-failed", seen=driver.nvml_error, expected="NVML answers")


def _hmm(case: Case) -> Iterator[Finding]:
    driver = case.snapshot.driver
    gpus = [str(gpu.index) for gpu in known(case.snapshot.gpus) or () if gpu.addressing_mode == "hmm"]
    is_set = "uvm_disable_hmm=1" in driver.modprobe_options.get("nvidia_uvm", "").split()
    if not gpus and driver.uvm_disable_hmm is not False and is_set:
        return
    seen = [f"addressing mode HMM on GPU {', '.join(gpus)}"] if gpus else []
    seen += ["loaded without the option"] if driver.uvm_disable_hmm is False else []
    seen += [] if is_set else ["not in modprobe.d"]
    yield case.finding(
        "driver.uvm-hmm",
        seen=", ".join(seen),
        expected="nvidia_uvm uvm_disable_hmm=1",
        fix=Fix.REBOOT if is_set else Fix.PROVISION,
        needs_reboot=bool(gpus) or driver.uvm_disable_hmm is False,
    )


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _origin(maintainer: str) -> str:
    domain = maintainer.rpartition("@")[2].rstrip("> ").lower()
    return next((name for end, name in ORIGINS.items() if domain == end or domain.endswith(f".{end}")), domain)


def _several(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _word(value: object) -> str:
    return value if isinstance(value, str) else "none" if value is None else "unknown"

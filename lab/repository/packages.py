"""What the stand-in of NVIDIA's repository holds: names, versions and relations as NVIDIA's have them, contents small.

Names and the suffix rule at 590 are those of the Driver Installation Guide; NVIDIA's own index was not at hand, so
relations between parts of the driver are an approximation.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab import standin

__all__ = ["DKMS", "OPEN_DRIVER", "TOOLKITS", "Package", "cuda_packages", "driver_packages", "keyrings"]

FILES = Path(__file__).resolve().parent / "files"
REVISION = "1ubuntu1"
DKMS = "nvidia-dkms-stand-in"
OPEN_DRIVER = (
    "libnvidia-compute", "nvidia-dkms-open", "nvidia-driver-open", "nvidia-firmware", "nvidia-open",
    "nvidia-persistenced", "nvidia-utils",
)  # fmt: skip
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
START = "#!/bin/sh\nset -e\n"
ENABLE = """\
if [ "$1" = configure ]; then
    systemctl daemon-reload || true
    systemctl enable {unit} || true
    systemctl start {unit} || true
fi
"""
BUILD = """\
[ "$1" = configure ] || exit 0
for folder in /lib/modules/*/; do
    kernel=$(basename "$folder")
    if [ -d "/lib/modules/$kernel/build" ]; then
        dkms install -m nvidia -v {version} -k "$kernel"
    else
        echo "Module build for kernel $kernel was skipped since its headers do not seem to be installed."
    fi
done
touch /run/reboot-required
echo {package} >> /run/reboot-required.pkgs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One binary package. relations: control fields; files: path -> (content, mode); scripts: postinst, prerm …"""

    name: str
    version: str
    arch: str = "amd64"
    relations: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)


def _file(name: str, mode: int = 0o644) -> tuple[bytes, int]:
    return (FILES / name).read_bytes(), mode


def _text(text: str, mode: int = 0o644) -> tuple[bytes, int]:
    return text.encode(), mode


def _one_of(what: str) -> dict[str, str]:
    """Only one package that provides `what` at a time; installing another takes the first away."""
    return {"Provides": what, "Conflicts": what, "Replaces": what}


def driver_packages(driver: standin.Driver) -> Iterator[Package]:
    """Every package of one driver version, both flavours, and what pins it."""
    version, branch = f"{driver.version}-{REVISION}", driver.branch
    suffix = f"-{branch}" if int(branch) < 590 else ""
    yield from _userland(driver, version, suffix)
    for flavour, tail in (("open", "-open"), ("closed", "")):
        yield _modules(driver, version, f"nvidia-dkms{suffix}{tail}", flavour)
        parts = (
            f"nvidia-dkms{suffix}{tail}",
            f"libnvidia-compute{suffix}",
            f"nvidia-utils{suffix}",
            _daemon(suffix),
        )
        depends = ", ".join(f"{part} (= {version})" for part in parts)
        kind = f"nvidia-driver{suffix}{tail}"
        yield Package(name=kind, version=version, relations={"Depends": depends, **_one_of("nvidia-driver-any")})
        meta = f"nvidia-open{suffix}" if flavour == "open" else f"cuda-drivers{suffix}"
        other = {"Conflicts": "cuda-drivers-any" if flavour == "open" else "nvidia-open-any"}
        other["Provides"] = "nvidia-open-any" if flavour == "open" else "cuda-drivers-any"
        yield Package(name=meta, version=version, relations={"Depends": f"{kind} (= {version})", **other})
    if not suffix:
        yield from _pinning(driver, version)
    unit = {"/usr/lib/systemd/system/nvidia-fabricmanager.service": _file("nvidia-fabricmanager.service")}
    scripts = {"postinst": START + ENABLE.format(unit="nvidia-fabricmanager")}
    yield Package(
        name="nvidia-fabricmanager", version=version, files=unit, scripts={**scripts, **_stop("nvidia-fabricmanager")}
    )


def _daemon(suffix: str) -> str:
    """The package that has nvidia-persistenced."""
    return f"nvidia-compute-utils{suffix}" if suffix else "nvidia-persistenced"


def _userland(driver: standin.Driver, version: str, suffix: str) -> Iterator[Package]:
    library = f"{LIBRARIES}/libnvidia-ml.so.{driver.version}"
    link = START + 'if [ "$1" = configure ]; then ldconfig; fi\n'
    built = (standin.build(driver.version) / f"libnvidia-ml.so.{driver.version}").read_bytes()
    yield Package(
        name=f"libnvidia-compute{suffix}", version=version, relations=_one_of("libnvidia-compute-any"),
        files={library: (built, 0o644)}, scripts={"postinst": link, "postrm": START + "ldconfig\n"},
    )  # fmt: skip
    yield Package(
        name=f"nvidia-utils{suffix}", version=version, files={"/usr/bin/nvidia-smi": _file("nvidia-smi", 0o755)},
        relations={"Depends": f"libnvidia-compute{suffix} (= {version}), python3", **_one_of("nvidia-utils-any")},
    )  # fmt: skip
    firmware = f"/usr/lib/firmware/nvidia/{driver.version}/gsp_ga10x.bin"
    yield Package(
        name=f"nvidia-firmware{suffix}", version=version, relations=_one_of("nvidia-firmware-any"),
        files={firmware: _text("firmware\n")},
    )  # fmt: skip
    yield Package(
        name=_daemon(suffix), version=version,
        relations={"Depends": f"nvidia-utils{suffix} (= {version})", **_one_of("nvidia-persistenced-any")},
        files={
            "/usr/bin/nvidia-persistenced": _file("nvidia-persistenced", 0o755),
            "/usr/lib/systemd/system/nvidia-persistenced.service": _file("nvidia-persistenced.service"),
        },
        scripts={"postinst": START + ENABLE.format(unit="nvidia-persistenced"), **_stop("nvidia-persistenced")},
    )  # fmt: skip


def _stop(unit: str) -> dict[str, str]:
    return {"prerm": f'{START}if [ "$1" = remove ]; then systemctl disable --now {unit} || true; fi\n'}


def _modules(driver: standin.Driver, version: str, name: str, flavour: str) -> Package:
    source = f"/usr/src/nvidia-{driver.version}"
    built = standin.build(driver.version) / flavour
    files = {f"{source}/{module.name}": (module.read_bytes(), 0o644) for module in sorted(built.iterdir())}
    files[f"{source}/dkms.conf"] = _text(
        f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{driver.version}"\nAUTOINSTALL="yes"\n'
    )
    suffix = f"-{driver.branch}" if int(driver.branch) < 590 else ""
    return Package(
        name=name, version=version, files=files,
        relations={"Depends": f"{DKMS}, nvidia-firmware{suffix} (= {version})", **_one_of("nvidia-dkms-any")},
        scripts={
            "postinst": START + BUILD.format(version=driver.version, package=name),
            "prerm": f"{START}dkms remove -m nvidia -v {driver.version} --all\n",
        },
    )  # fmt: skip


def _pinning(driver: standin.Driver, version: str) -> Iterator[Package]:
    """One for the version, and one for the branch; any of them takes the place of any other."""
    for name, own, pinned in (
        (driver.version, version, f"{driver.version}-*"),
        (driver.branch, f"{driver.branch}-{REVISION}", f"{driver.branch}.*"),
    ):
        text = f"Package: *nvidia* cuda-drivers*\nPin: version {pinned}\nPin-Priority: 1000\n"
        yield Package(
            name=f"nvidia-driver-pinning-{name}", version=own, arch="all", relations=_one_of("nvidia-driver-pinning"),
            # Without the version: apt takes what follows a dot for an extension, and passes over unknown ones.
            files={"/etc/apt/preferences.d/nvidia-driver-pinning": _text(text)},
        )  # fmt: skip


# release -> (nvcc and its kin, cuBLAS, cuSPARSE, cuSOLVER, cuRAND); of 13.0, 13.1.0 and 13.2 not every number is known.
TOOLKITS: Mapping[str, tuple[str, str, str, str, str]] = {
    "13.0.2": ("13.0.88", "13.1.0.3", "12.6.3.3", "12.0.4.66", "10.4.0.35"),
    "13.1.0": ("13.1.80", "13.2.0.9", "12.7.2.19", "12.0.7.41", "10.4.1.34"),
    "13.1.1": ("13.1.115", "13.2.1.1", "12.7.3.1", "12.0.9.81", "10.4.1.81"),
    "13.2.0": ("13.2.51", "13.3.0.5", "12.7.9.17", "12.1.0.51", "10.4.2.51"),
}
NVTX = {"13.1.0": "13.1.68"}
CCCL = {"13.1.0": "13.1.78"}
NVCC = """\
#!/bin/sh
case ${{1:-}} in
    --version|-V) printf '%s\\n' 'nvcc: NVIDIA (R) Cuda compiler driver' 'Copyright (c) 2005-2025 NVIDIA Corporation' \\
        'Cuda compilation tools, release {short}, V{full}' 'Build cuda_{short}.r{short}/compiler.0_0' ;;
    *) echo 'nvcc fatal   : this stand-in compiles nothing' >&2; exit 1 ;;
esac
"""


def cuda_packages(release: str) -> Iterator[Package]:
    """The toolkit of one release: its lean set, its metapackages."""
    nvcc, cublas, cusparse, cusolver, curand = TOOLKITS[release]
    short = release.rpartition(".")[0]
    tail, path = short.replace(".", "-"), f"/usr/local/cuda-{short}"
    common = f"cuda-toolkit-{tail}-config-common"
    alternative = f"update-alternatives --install /usr/local/cuda cuda {path} {short.replace('.', '')}0\n"
    yield Package(
        name=common, version=f"{nvcc}-1", arch="all",
        scripts={
            "postinst": f'{START}if [ "$1" = configure ]; then {alternative}fi\n',
            "prerm": f'{START}if [ "$1" = remove ]; then update-alternatives --remove cuda {path}; fi\n',
        },
    )  # fmt: skip
    runtime = f"cuda-cudart-{tail}"
    rows = {
        f"cuda-nvcc-{tail}": (nvcc, {f"{path}/bin/nvcc": _text(NVCC.format(short=short, full=nvcc), 0o755)}),
        runtime: (nvcc, {f"{path}/lib64/libcudart.so.13": _text("library\n")}),
        f"cuda-cudart-dev-{tail}": (nvcc, {f"{path}/include/cuda_runtime.h": _text("/* header */\n")}),
        f"cuda-nvrtc-dev-{tail}": (nvcc, {f"{path}/include/nvrtc.h": _text("/* header */\n")}),
        f"libcublas-dev-{tail}": (cublas, {f"{path}/include/cublas_v2.h": _text("/* header */\n")}),
        f"libcusparse-dev-{tail}": (cusparse, {f"{path}/include/cusparse.h": _text("/* header */\n")}),
        f"libcusolver-dev-{tail}": (cusolver, {f"{path}/include/cusolverDn.h": _text("/* header */\n")}),
        f"libcurand-dev-{tail}": (curand, {f"{path}/include/curand.h": _text("/* header */\n")}),
        f"cuda-nvtx-{tail}": (NVTX.get(release, nvcc), {f"{path}/include/nvtx3/nvToolsExt.h": _text("/* header */\n")}),
        f"cuda-cccl-{tail}": (CCCL.get(release, nvcc), {f"{path}/include/cccl/cuda/std/version": _text("\n")}),
    }
    for name, (version, files) in rows.items():
        depends = f"{runtime} (>= {nvcc})" if name == f"cuda-cudart-dev-{tail}" else common
        yield Package(name=name, version=f"{version}-1", files=files, relations={"Depends": depends})
    parts = ", ".join(f"{name} (>= {version})" for name, (version, _) in rows.items())
    about = {f"{path}/version.json": _text(json.dumps({"cuda": {"name": "CUDA SDK", "version": release}}))}
    yield Package(name=f"cuda-toolkit-{tail}", version=f"{release}-1", files=about, relations={"Depends": parts})
    yield Package(
        name=f"cuda-{tail}", version=f"{release}-1",
        relations={"Depends": f"cuda-toolkit-{tail} (>= {release}), cuda-drivers | nvidia-open"},
    )  # fmt: skip
    for meta, wanted in (("cuda-toolkit", f"cuda-toolkit-{tail}"), ("cuda", f"cuda-{tail}")):
        yield Package(name=meta, version=f"{release}-1", relations={"Depends": f"{wanted} (>= {release})"})


def keyrings(key: bytes, distro: str, uri: str) -> Iterator[Package]:
    """cuda-keyring, old and new: key, source and preference; and what stands in for dkms."""
    keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
    source = f"deb [signed-by={keyring}] {uri} /\n"
    preference = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
    for version in ("1.0-1", "1.1-1"):
        yield Package(
            name="cuda-keyring", version=version, arch="all",
            files={
                keyring: (key, 0o644),
                f"/etc/apt/sources.list.d/cuda-{distro}-x86_64.list": _text(source),
                "/etc/apt/preferences.d/cuda-repository-pin-600": _text(preference),
            },
        )  # fmt: skip
    # A name of its own: by NVIDIA's preferences a package `dkms` would come from the distribution, with its compilers.
    yield Package(
        name=DKMS, version="3.3.0-1", arch="all", files={"/usr/sbin/dkms": _file("dkms", 0o755)},
        relations={"Depends": "kmod", **_one_of("dkms")},
    )  # fmt: skip

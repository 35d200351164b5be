"""A toolkit's folder out of CUDA's wheels: <path>.wheels/tree/nvidia/cu13 becomes <path>, in one rename.

Run on a host by the role cuda: python3 assemble.py PATH RELEASE. The wheels lack what compilers look for: lib64,
libraries without a version in their names, a stub of libcuda, version.json.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def link_libraries(lib: Path) -> None:
    """libX.so beside each libX.so.N: wheels ship only the latter, and the linker asks for the former."""
    for path in sorted(lib.glob("lib*.so.*")):
        plain = lib / f"{path.name.split('.so.')[0]}.so"
        if not plain.exists():
            plain.symlink_to(path.name)


def make_stub(stubs: Path) -> None:
    """An empty libcuda.so to link against where no driver is; needs a C compiler, as nvcc does."""
    if shutil.which("cc"):
        stubs.mkdir(exist_ok=True)
        argv = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o", str(stubs / "libcuda.so")]
        subprocess.run(argv, input=b"void cuInit(void){}\n", check=True)


def main() -> int:
    """Exit 1 with the reason on stdout when the wheels hold no toolkit; what was at PATH stays then."""
    path, release = Path(sys.argv[1]), sys.argv[2]
    wheels = Path(f"{path}.wheels")
    trees = sorted((wheels / "tree/nvidia").glob("cu[0-9]*"))
    if len(trees) != 1 or not (trees[0] / "bin/nvcc").exists():
        seen = ", ".join(
            sorted(str(found.relative_to(wheels / "tree")) for found in (wheels / "tree").glob("nvidia/*"))
        )
        sys.stdout.write(f"the wheels hold {seen or 'nothing of NVIDIA'}, expected one tree nvidia/cu… with bin/nvcc\n")
        return 1
    tree = trees[0]
    (tree / "lib64").symlink_to("lib")
    link_libraries(tree / "lib")
    make_stub(tree / "lib/stubs")
    (tree / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": release}}) + "\n")
    shutil.copyfile(wheels / "requirements.txt", tree / ".aerie-wheels")
    old = wheels / "old"
    if path.exists():
        os.rename(path, old)
    os.rename(tree, path)
    shutil.rmtree(wheels)
    return 0


if __name__ == "__main__":
    sys.exit(main())

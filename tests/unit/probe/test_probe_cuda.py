"""CUDA toolkits on disk."""

import json
import os

from aerie.probe import cuda
from aerie.probe.reading import Later

NVCC = """\
#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release 13.1, V13.1.115"
"""
LDCONFIG = """\
2 libs found in cache `/etc/ld.so.cache'
\tlibcuda.so.1 (libc6,x86-64) => {}
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/compat/libcudart.so.13
"""


def test_toolkits(tree, tmp_path):
    root = tree(
        {
            "/usr/local/cuda-13.1/version.json": json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.1.1"}}),
            "/usr/local/cuda-13.1/bin/nvcc": NVCC,
            "/usr/local/cuda-13": "-> cuda-13.1",
            "/usr/local/cuda": "-> cuda-13",
            "/opt/cuda-12.8/version.json": "not json",
            "/usr/bin/nvcc": NVCC,
        }
    )
    (tmp_path / "usr/local/cuda-13.1/bin/nvcc").chmod(0o755)
    found = cuda.cuda(f"/nowhere:{root}/usr/bin", Later(lambda: LDCONFIG.format("/usr/lib/libcuda.so.1")), root)
    assert found == {
        "toolkits": [
            {"path": "/opt/cuda-12.8", "version": None, "nvcc": None},
            {"path": "/usr/local/cuda-13.1", "version": "13.1.1", "nvcc": "13.1.115"},
        ],
        "default_path": "/usr/local/cuda-13.1",
        "nvcc_in_path": None,  # a file that cannot be executed is not found
        "compat_in_ld_path": None,
    }
    os.chmod(tmp_path / "usr/bin/nvcc", 0o755)
    assert cuda.cuda(f"/nowhere:{root}/usr/bin", Later(lambda: ""), root)["nvcc_in_path"] == f"{root}/usr/bin/nvcc"


def test_a_compiler_that_does_not_start_is_none(tree, tmp_path):
    root = tree({"/usr/local/cuda-13.1/bin/nvcc": "#!/nonexistent\n"})
    (tmp_path / "usr/local/cuda-13.1/bin/nvcc").chmod(0o755)
    assert cuda.toolkits(root) == [{"path": "/usr/local/cuda-13.1", "version": None, "nvcc": None}]


def test_forward_compatibility_that_the_linker_would_find():
    path = "/usr/local/cuda-13.1/compat/libcuda.so.1"
    assert cuda.compat(LDCONFIG.format(path)) == path

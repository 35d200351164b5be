"""Real output of compilers, and which of its lines is the one to show."""

from pathlib import Path

import pytest

from aerie.extensions.onhost.first_error import first_error

NINJA = """\
[1/3] /tools/nvcc -c a.cu -o a.o
FAILED: [code=2] a.o
/tools/nvcc -c a.cu -o a.o
"""
KILLED = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
PTXAS = """\
ptxas /tmp/b.ptx, line 20; error   : Not a name of any known instruction: 'bogus'
ptxas fatal   : Ptx assembly aborted due to errors
"""
CPP20 = f"""\
{NINJA}\
/env/torch/include/c10/util/strong_type.h(42): error: namespace "std" has no member "strong_ordering"
    std::strong_ordering operator<=>(const T& other) const;
         ^

100 errors detected in the compilation of "a.cu".
b.cu(7): error: identifier "other" is undefined
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "/env/torch/utils/cpp_extension.py", line 2600, in _run_ninja_build
    subprocess.run(
subprocess.CalledProcessError: Command '['ninja', '-v', '-j', '2']' returned non-zero exit status 1.
"""


@pytest.mark.parametrize(
    ("output", "where", "seen"),
    [
        (CPP20, "/env/torch/include/c10/util/strong_type.h:42", 'namespace "std" has no member "strong_ordering"'),
        ("src/x.cpp:3:10: fatal error: cublas_v2.h: No such file or directory\n", "src/x.cpp:3", "cublas_v2.h: No"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n", "nvcc", "fatal   : Unsupported gpu"),
        ("ptxas fatal   : Ptx assembly aborted due to errors\n", "ptxas", "Ptx assembly aborted"),
        ("ld: a.o: in function `f':\na.cpp:(.text+0x5): undefined reference to `g'\n", "a.cpp", "undefined ref"),
        (PTXAS, "/tmp/b.ptx:20", "Not a name of any known instruction"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory\n", "/usr/bin/ld", "cannot find -lcudart"),
        ("CMake Error at CMakeLists.txt:12 (find_package):\n  No package X\n", "CMakeLists.txt", "No package X"),
        ("x\nModuleNotFoundError: No module named 'psutil'\n", "the build's environment", "No module named 'psutil'"),
        ("fatal error: error writing to a.s: No space left on device\n", "the build's folder", "No space left"),
        (KILLED + CPP20, "/env/torch", "strong_ordering"),
        ("all is well\nbut it ended\n", "the build", "all is well | but it ended"),
    ],
    ids=[
        "torch-needs-c++20", "header-missing", "architecture", "ptxas", "undefined", "ptxas-line", "library-missing",
        "cmake", "module-missing", "disk-full", "after-one-that-was-killed-and-ran-again", "unknown",
    ],
)  # fmt: skip
def test_the_first_error_of_a_build(output: str, where: str, seen: str) -> None:
    error = first_error(output.splitlines(keepends=True), log=Path("/work/build.log"), killed=0, budget_bytes=1 << 30)
    assert error.where.startswith(where)
    assert seen in str(error.seen)


def test_a_compiler_that_was_killed_also_alone_is_told_with_the_budget() -> None:
    output = NINJA + KILLED
    error = first_error(output.splitlines(keepends=True), log=Path("/log"), killed=2, budget_bytes=3 << 30)
    assert error.where == "memory"
    assert "3.0 GiB" in error.expected

"""The trim of sglang-kernel, by cmake over a project of our own that is made as the package is made."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aerie.extensions.onhost.request import Patch
from aerie.extensions.onhost.source import apply
from aerie.paths import repository

PATCH = repository() / "roles/extensions/files/patches/sglang-kernel/0.4.10/trim.patch"
GENCODES = " ".join(f"-gencode=arch=compute_{one},code=sm_{one}" for one in ("90", "80", "100f", "120a", "90a"))
PROJECT = f"""\
cmake_minimum_required(VERSION 3.19)
project(sgl-kernel LANGUAGES CXX)
separate_arguments(FLAGS UNIX_COMMAND "-O3 {GENCODES} --threads=32")
separate_arguments(LAST UNIX_COMMAND "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_120a,code=sm_120a")
separate_arguments(OTHERS UNIX_COMMAND "-gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_100f,code=sm_100f")
foreach(name IN ITEMS common_ops_sm90_build common_ops_sm100_build infllm_ops flashmla_ops plain)
  add_library(${{name}} MODULE ops.cc)
endforeach()
target_compile_options(common_ops_sm90_build PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${{FLAGS}} -use_fast_math>)
target_compile_options(common_ops_sm100_build PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${{FLAGS}}>)
target_compile_options(infllm_ops PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${{LAST}}>)
target_compile_options(flashmla_ops PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1> $<$<COMPILE_LANGUAGE:CUDA>:${{OTHERS}}>)
target_compile_options(plain PRIVATE -O2)
function(show)
  foreach(name IN ITEMS common_ops_sm90_build common_ops_sm100_build infllm_ops flashmla_ops plain)
    get_target_property(options ${{name}} COMPILE_OPTIONS)
    get_target_property(sources ${{name}} SOURCES)
    get_filename_component(file "${{sources}}" NAME)
    message(STATUS "@ ${{name}} ${{file}} ${{options}}")
  endforeach()
endfunction()
cmake_language(DEFER CALL show)
"""
NOTHING = "aerie_nothing.cc"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    (tmp_path / "ops.cc").write_text("int ops;\n")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    assert apply(Patch(name=PATCH.name, text=PATCH.read_text()), tmp_path) == ("aerie-trim.cmake",)
    return tmp_path


def configure(source: Path, architectures: str) -> subprocess.CompletedProcess[str]:
    argv = ["cmake", "-S", source, "-B", source / "build", "-DCMAKE_PROJECT_sgl-kernel_INCLUDE=aerie-trim.cmake"]
    environment = {"PATH": "/usr/bin:/bin", "TORCH_CUDA_ARCH_LIST": architectures, "NVCC_THREADS": "2"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def targets(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """File and options of each target, as they are when everything was configured."""
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^-- @ (\w+) (\S+) (.*)$", done.stdout, re.MULTILINE)
    return {name: (file, options) for name, file, options in found}


def test_only_the_hosts_architecture_is_left_and_what_has_none_of_it_is_empty(source: Path) -> None:
    found = targets(configure(source, "12.0"))
    mine = "-gencode=arch=compute_120a,code=sm_120a"
    assert found == {
        "common_ops_sm90_build": (NOTHING, ""),
        "common_ops_sm100_build": ("ops.cc", f"$<$<COMPILE_LANGUAGE:CUDA>:-O3;{mine};--threads=2>"),
        "infllm_ops": ("ops.cc", f"$<$<COMPILE_LANGUAGE:CUDA>:-DAERIE_TRIMMED;{mine}>"),
        "flashmla_ops": (NOTHING, ""),
        "plain": ("ops.cc", "-O2"),
    }
    subprocess.run(["cmake", "--build", source / "build"], check=True, capture_output=True)


def test_a_card_of_9_0_gets_the_other_library(source: Path) -> None:
    found = targets(configure(source, "9.0"))
    kept = "-gencode=arch=compute_90,code=sm_90;-gencode=arch=compute_90a,code=sm_90a"
    assert found["common_ops_sm90_build"][1].startswith("$<$<COMPILE_LANGUAGE:CUDA>:-O3;-gencode")
    assert found["common_ops_sm90_build"][1].endswith("-use_fast_math>")
    assert re.findall(r"-gencode\S+?(?=;|>)", found["common_ops_sm90_build"][1]) == kept.split(";")
    assert found["common_ops_sm100_build"] == (NOTHING, "")
    assert found["infllm_ops"] == (NOTHING, "")
    assert "compute_100f" not in found["flashmla_ops"][1] and "compute_90a" in found["flashmla_ops"][1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("common_ops_sm100_build", "common_ops_build", "no common_ops_sm100_build with -gencode"),
        (
            "-gencode=arch=compute_80,code=sm_80",
            "-gencode=arch=compute_80,code=[sm_80,compute_80]",
            "expected -gencode",
        ),
    ],
    ids=["another-target", "another-form"],
)
def test_a_project_that_is_made_otherwise_is_not_trimmed(source: Path, old: str, new: str, said: str) -> None:
    project = source / "CMakeLists.txt"
    project.write_text(project.read_text().replace(old, new))
    done = configure(source, "12.0")
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())


def test_without_architectures_nothing_is_configured(source: Path) -> None:
    done = configure(source, "")
    assert done.returncode != 0
    assert 'TORCH_CUDA_ARCH_LIST is "", expected such as "12.0"' in " ".join(done.stderr.split())

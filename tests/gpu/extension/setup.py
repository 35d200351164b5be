"""AERIE_PROOF_CODE: what nvcc makes, "arch=compute_90,code=sm_90"; AERIE_PROOF_DEFINES: macros, "SCALE=2"."""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

defines = [f"-D{one}" for one in os.environ.get("AERIE_PROOF_DEFINES", "").split()]
setup(
    name="aerie-proof",
    version="1.0",
    packages=["aerie_proof"],
    ext_modules=[
        CUDAExtension(
            name="aerie_proof.kernels",
            sources=["binding.cpp", "kernels.cu"],
            extra_compile_args={
                "cxx": ["-O2", *defines],
                "nvcc": ["-O2", f"-gencode={os.environ['AERIE_PROOF_CODE']}", *defines],
            },
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)

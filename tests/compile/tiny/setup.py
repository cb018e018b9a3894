"""Two kernels and a module that calls them: the smallest thing that CUDA's compiler, g++ and a linker make together."""

import os
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ARCHS = os.environ["CUDAARCHS"].split(";")
NVCC = ["nvcc", "-O3", "-Xcompiler", "-fPIC", *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHS)]
CXX = ["c++", "-O2", "-fPIC", "-I" + sysconfig.get_paths()["include"]]


class Build(build_ext):
    """Compiles without torch."""

    def build_extension(self, ext):
        """Compile each source, and link."""
        for source in ext.sources:
            for _ in range(os.urandom(1)[0] % 40):  # parallel compilers take numbers of processes as it happens
                subprocess.check_call(["true"])
            subprocess.check_call([*(NVCC if source.endswith(".cu") else CXX), "-c", source, "-o", source + ".o"])
        path = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        objects = [source + ".o" for source in ext.sources]
        subprocess.check_call(["c++", "-shared", *objects, "-o", path, f"-L{os.environ['CUDA_HOME']}/lib", "-lcudart"])


setup(
    py_modules=["tiny"],
    ext_modules=[Extension("_tiny", ["one.cu", "two.cu", "api.cpp"])],
    cmdclass={"build_ext": Build},
)

# SPDX-License-Identifier: (Apache-2.0 OR MIT)
"""Spack recipe. In a repository of your own: packages/scrfs/package.py; then `spack install scrfs`."""

import os

from spack.package import *


class Scrfs(Package):
    """Checkpoint file system: programs write checkpoints at node-local speed, and what is sealed survives the loss of
    nodes. SCR behind a file system instead of an API."""

    # A checkout of the sources: spack dev-build scrfs@0.1.0, or `url` and a checksum of the site's own archive.
    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("llvm+clang", type="build")
    depends_on("openmpi@4:")
    depends_on("libfuse@3:", type="run")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        os.environ["MPICC"] = spec["mpi"].mpicc
        os.environ["LIBCLANG_PATH"] = spec["llvm"].prefix.lib
        packages = ["scrfs", "scrfs-coordinator", "scrfs-tools"]
        cargo("build", "--release", "--locked", "--bins", *[f"-p{name}" for name in packages])
        stage = Executable(join_path(self.stage.source_path, "deploy", "stage"))
        staged = join_path(self.stage.path, "staged")
        stage(join_path("target", "release"), staged)
        install_tree(join_path(staged, "usr"), prefix)
        install_tree(join_path(staged, "etc"), prefix.etc)

    def setup_run_environment(self, env):
        env.prepend_path("PATH", self.prefix.sbin)

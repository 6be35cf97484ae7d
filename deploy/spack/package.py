# SPDX-License-Identifier: (Apache-2.0 OR MIT)
"""Spack recipe, from a checkout of the sources: there is no archive of them to fetch.

Put this file into a repository of your own, as packages/scrfs/package.py (`spack repo create`, `spack repo add`), then
build what is in the checkout:

    cd CHECKOUT && spack dev-build scrfs@0.1.0

In an environment: `spack add scrfs@0.1.0`, `spack develop --path CHECKOUT scrfs@0.1.0`, `spack install`. A site that
keeps an archive of its own adds a `url` and the archive's checksum below; then `spack install scrfs` works.
"""

import os

from spack.package import *


class Scrfs(Package):
    """Checkpoint file system: programs write checkpoints at node-local speed, and what is sealed survives the loss of
    nodes. SCR behind a file system instead of an API."""

    # No url: see above.
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

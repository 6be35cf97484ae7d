"""A parallel program that saves checkpoints in one of the ways that programs do, and knows nothing of scrfs.

    patterns.py DIR LOG STEPS PATTERN

    files       every rank writes a temporary file and renames it
    directory   all write into a temporary directory, which rank 0 renames into place
    turns       two directories, A and B, are overwritten in turn
    inplace     one directory is overwritten for ever
    everywhere  one rank on each node touches the marker
    metadata    the marker is a file with a table of contents, written as a temporary one and renamed
    flat        every rank's file is in DIR itself, and its name says of which step it is; every other one is renamed
    hdf5        an HDF5 file for each rank, locked by the library
    latest      rank 2 writes the checkpoint's name to a file `latest`, before or after the marker; all ranks start from that
    remove-one  rank 0 removes the checkpoint before the last, and everything in it
    remove-all  every rank tries to

A start reads SCRFS_CURRENT or `latest`; every rank compares its own file and its right neighbour's with what they must be.
LOG gets a line for each event, from rank 0. While LOG.written.N or LOG.sealed.N is there, the program waits after all
files of step N are written, or after that step is sealed.
Exit: 0 done, 1 wrong bytes or a failed call.
"""

import os
import shutil
import sys
import time

from mpi4py import MPI

ROOT, LOG, STEPS, PATTERN = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
FIRST_ON_NODE = WORLD.Split_type(MPI.COMM_TYPE_SHARED).rank == 0


def say(text):
    if RANK == 0:
        with open(LOG, "a") as log:
            log.write(text + "\n")


def pause(what, step):
    """Waits as long as somebody wants it to."""
    say(f"{what} {step}")
    while os.path.exists(f"{LOG}.{what}.{step}"):
        time.sleep(0.05)


def content(rank, step):
    line = b"step %d of rank %d\n" % (step, rank)
    return line * (3000 + 500 * rank + 7 * step)


def file_of(directory, rank):
    if PATTERN == "flat":
        return f"{ROOT}/melt.{os.path.basename(directory)}.{rank}.restart"
    return f"{directory}/r{rank}" + (".h5" if PATTERN == "hdf5" else "")


def read(directory, rank):
    if PATTERN == "hdf5":
        import h5py

        with h5py.File(file_of(directory, rank), "r") as file:
            return bytes(file["state"][()])
    with open(file_of(directory, rank), "rb") as file:
        return file.read()


def write(directory, step):
    name, data = file_of(directory, RANK), content(RANK, step)
    if PATTERN == "hdf5":
        import h5py
        import numpy

        with h5py.File(name, "w") as file:
            file.create_dataset("state", data=numpy.frombuffer(data, dtype="u1"))
    elif PATTERN == "files" or (PATTERN == "flat" and RANK % 2):
        with open(name + ".tmp", "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        os.rename(name + ".tmp", name)
    elif PATTERN == "inplace" and os.path.exists(name):
        with open(name, "r+b") as file:
            file.write(data)
            file.truncate()
    else:
        with open(name, "wb") as file:
            file.write(data)


def directory_of(step):
    name = {"turns": "AB"[step % 2], "inplace": "ck", "flat": str(step)}.get(PATTERN, f"ck.{step}")
    return f"{ROOT}/{name}"


def mark(directory):
    """Collective; returns when the checkpoint is protected."""
    if PATTERN == "metadata":
        if RANK == 0:
            with open(f"{directory}/.metadata.tmp", "w") as file:
                file.writelines(f"r{rank}\n" for rank in range(SIZE))
            os.rename(f"{directory}/.metadata.tmp", f"{directory}/.metadata")
            # A rename returns when all nodes are frozen.
            until = time.monotonic() + 60
            while os.getxattr(directory, "user.scrfs.state") not in (b"protected", b"flushing", b"flushed"):
                if time.monotonic() > until:
                    sys.exit(f"{directory}: not sealed")
                time.sleep(0.02)
    elif RANK == 0 or (PATTERN == "everywhere" and FIRST_ON_NODE):
        # The close of a Python file tells of its failure.
        flat = f"{ROOT}/.complete.{os.path.basename(directory)}"
        with open(flat if PATTERN == "flat" else f"{directory}/.complete", "wb"):
            pass
    WORLD.barrier()


def point(directory):
    if PATTERN == "latest" and RANK == 2:
        with open(f"{ROOT}/latest.tmp", "w") as file:
            file.write(os.path.basename(directory))
        os.rename(f"{ROOT}/latest.tmp", f"{ROOT}/latest")
    WORLD.barrier()


def save(step):
    directory = directory_of(step)
    while_written = directory + ".tmp" if PATTERN == "directory" else directory
    if RANK == 0:
        if PATTERN == "directory":
            shutil.rmtree(while_written, ignore_errors=True)
        if PATTERN != "flat":
            os.makedirs(while_written, exist_ok=True)
    WORLD.barrier()
    write(while_written, step)
    WORLD.barrier()
    if step % 2 == 0:
        point(directory)
    pause("written", step)
    WORLD.barrier()
    if PATTERN == "directory" and RANK == 0:
        os.rename(while_written, directory)
    mark(directory)
    if step % 2 == 1:
        point(directory)
    pause("sealed", step)
    WORLD.barrier()


def remove(step):
    old = directory_of(step)
    if PATTERN == "remove-one" and RANK == 0 and os.path.isdir(old):
        shutil.rmtree(old)
    if PATTERN == "remove-all":
        shutil.rmtree(old, ignore_errors=True)
    WORLD.barrier()
    if PATTERN.startswith("remove") and os.path.exists(old):
        sys.exit(f"{old} is still there")


def start():
    """The step to go on from; 0 if there is none."""
    current = os.environ.get("SCRFS_CURRENT", "")
    if PATTERN == "latest":
        current = ""
        if os.path.exists(f"{ROOT}/latest"):
            with open(f"{ROOT}/latest") as file:
                current = file.read()
    if not current:
        return 0
    directory = f"{ROOT}/{current}"
    step = int(read(directory, RANK).split(maxsplit=2)[1])
    for rank in (RANK, (RANK + 1) % SIZE):
        if read(directory, rank) != content(rank, step):
            sys.exit(f"{file_of(directory, rank)}: wrong bytes")
    if WORLD.allreduce(step, MPI.MIN) != step:
        sys.exit("the ranks found different steps")
    if PATTERN == "metadata":
        with open(f"{directory}/.metadata") as file:
            if len(file.readlines()) != SIZE:
                sys.exit(".metadata: wrong lines")
    return step


begin = start()
say(f"start after {begin}")
for step in range(begin + 1, STEPS + 1):
    save(step)
    remove(step - 1)
say("end")

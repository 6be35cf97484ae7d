#!/usr/bin/python3
"""Runs the programs of tests/programs/apps on a mount of this machine, and starts them again: each has to go on from
the newest checkpoint, with what it saved. By hand, as an ordinary user or root, after a build; not part of the suites,
since what it needs is large.

tests/apps.py DIR                   makes DIR/venv of tests/programs/apps/requirements.txt (gigabytes), and runs all
tests/apps.py DIR dcp trainer ...   runs these alone, with whatever is in DIR/venv
"""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
APPS = TOP / "tests/programs/apps"
BUILDS = [TOP / "target" / kind for kind in ("release", "debug")]
BIN = next((build for build in BUILDS if (build / "scrfs").exists()), None)
SECONDS = 600  # that one run may take
# Program, processes, settings, and the dataset of its fourth checkpoint.
RUNS = {
    "dcp": ("dcp.py", 2, {"SCRFS_MARKER": ".metadata"}, "step-4"),
    "trainer": ("trainer.py", 1, {"SCRFS_MARKER": "trainer_state.json"}, "checkpoint-4"),
    "trainer2": ("trainer.py", 2, {}, "checkpoint-4"),
    "deepspeed": ("deep.py", 2, {"DS_ACCELERATOR": "cpu"}, "global_step4"),
    "megatron": ("megatron_core.py", 2, {"SCRFS_MARKER": "metadata.json"}, "iter_0000004"),
    "gromacs": ("gromacs.sh", 1, {"SCRFS_MARKER": "state.cpt"}, "gmx"),
}


def environment(place, settings):
    mount = place / "scr"
    path = f"{BIN}:{os.environ['PATH']}"
    fixed = {"PATH": path, "SCRFS_MOUNT": str(mount), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return os.environ | settings | fixed


def output(words, **how):
    return subprocess.run(words, capture_output=True, text=True, **how)


def run(place, name):
    program, processes, settings, newest = RUNS[name]
    python, mount = place / "venv/bin/python", place / "scr"
    env = environment(place, settings)
    launch = [python, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-port=29517"]
    if program.endswith(".sh"):
        launch = ["sh"]
    elif processes == 1:
        launch = [python]
    words = [*launch, APPS / program]
    scrfs = [BIN / "scrfs", "try"]
    subprocess.run([*scrfs, mount], env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        told = []
        for steps in (2, 4):
            done = output(words, env=env | {"STEPS": str(steps)}, timeout=SECONDS, cwd=place)
            if done.returncode:
                sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
            told += re.findall(r"^(?:start after|saved) \d+$", done.stdout, re.M)
        listed = output([BIN / "scrfs-ctl", "list", "--mount", mount], check=True).stdout
    finally:
        subprocess.run([*scrfs, "--stop", mount], env=env, check=True)
    expected = ["start after 0", "saved 1", "saved 2", "start after 2", "saved 3", "saved 4"]
    if told != expected:
        sys.exit(f"{name}: {told}")
    sealed = [line.split("\t")[3] for line in listed.splitlines() if line.split("\t")[1] == "sealed"]
    if sealed[:1] != [newest]:
        sys.exit(f"{name}: sealed are {sealed}\n{listed}")
    print(f"{name}: passed; on the mount are {', '.join(sealed)}", flush=True)


def versions(place):
    names = "torch|transformers|accelerate|deepspeed|megatron-core"
    pip = [place / "venv/bin/python", "-m", "pip", "list", "--format=freeze"]
    listed = output(pip, check=True).stdout
    return " ".join(line for line in listed.splitlines() if re.match(rf"(?:{names})==", line))


def main():
    if len(sys.argv) < 2 or BIN is None or not set(sys.argv[2:]) <= set(RUNS):
        sys.exit(f"usage: tests/apps.py DIR [{' '.join(RUNS)}], after a build")
    place = Path(sys.argv[1]).resolve()
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "venv").exists():
        venv.create(place / "venv", with_pip=True)
        pip = [place / "venv/bin/python", "-m", "pip", "install", "-q", "-r", APPS / "requirements.txt"]
        subprocess.run(pip, check=True)
    print(versions(place), flush=True)
    for name in sys.argv[2:] or RUNS:
        run(place, name)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Interrupts deploy/demo and tests/run by INT, TERM and HUP and looks at what is left: it must be nothing, within
seconds, with exit code 128 + signal.

tests/interrupt.py quick    while they install and build, with stand-ins for what takes long (part of the suites)
tests/interrupt.py          also half-way, with real parts (those in ./target, and an empty one), and a whole demo at
                            the end; some minutes, as root
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
WORK = Path(tempfile.mkdtemp(prefix="scrfs-interrupt-"))
SECONDS = 9  # that an end may take
GONE = 5  # and the kernel after it
RUNNING = []  # commands

# Works for ever, leaves a temporary directory, and has a child that does not end at once.
ENDLESS = """#!/bin/bash
case "$*" in *--version | fmt*) exit 0 ;; esac
mktemp -d >/dev/null
(trap '' TERM INT HUP; echo >"$READY"; sleep 600) &
(trap 'sleep 0.5; exit' TERM; sleep 600 & wait) &
sleep 600
"""
# Of all steps only the named one, and that one in earnest.
ONLY = """#!/bin/bash
case "$*" in
    *"$ONLY"*--no-run) ;;
    *"$ONLY"*) exec "$REAL_CARGO" "$@" ;;
    "deny --version") echo "cargo-deny 0.20.2" ;;
esac
"""


def program(directory, name, text):
    path = WORK / directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def stand_ins():
    """Programs for the front of PATH, and a copy of the scripts without a target directory."""
    program("build", "cargo", ENDLESS.replace("(trap '' TERM INT HUP; ", "("))
    program("build", "rustc", '#!/bin/sh\necho "rustc 1.95.0 (stand-in)"\n')
    program("build", "rustup", "#!/bin/sh\nexit 0\n")
    program("build", "dpkg-query", "#!/bin/sh\necho installed\n")
    program("stuck", "cargo", ENDLESS)
    program("install", "dpkg-query", "#!/bin/sh\nexit 1\n")
    program("install", "dpkg", "#!/bin/sh\nexit 0\n")
    program("install", "apt-get", ENDLESS.replace("(trap '' TERM INT HUP; ", "("))
    program("only", "cargo", ONLY)
    shutil.copytree(TOP / "deploy", WORK / "tree/deploy")
    (WORK / "tree/tests").mkdir()
    shutil.copy(TOP / "tests/run", WORK / "tree/tests/run")


def processes():
    """(pid, start time): parent, state, name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            fields = text[text.rindex(")") + 2 :].split()
            name = text[text.index("(") + 1 : text.rindex(")")]
            found[int(entry.name), fields[19]] = (int(fields[1]), fields[0], name)
    return found


def family(root):
    """A process and all that descend from it."""
    table = processes()
    parents = {pid: parent for (pid, _), (parent, _, _) in table.items()}

    def descends(pid):
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return {key: table[key][2] for key in table if descends(key[0])}


def left(own, before):
    """What is there of an interrupted command."""
    things = [str(path) for path in own.rglob("*")]
    things += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(own) in line]
    for key, (_, state, name) in processes().items():
        try:
            marked = f"INTERRUPTED={own}".encode() in Path(f"/proc/{key[0]}/environ").read_bytes()
        except OSError:
            marked = False
        if state != "Z" and (key in before or marked):
            things.append(f"process {key[0]} {name}")
    return things


def case(name, number, ready, command, path=(), seconds=SECONDS, **more):
    own = Path(tempfile.mkdtemp(dir=WORK))
    own.chmod(0o1777)
    out = own.with_suffix(".out")
    front = ":".join(str(WORK / directory) for directory in path)
    environment = dict(os.environ, TMPDIR=str(own), READY=str(own.with_suffix(".ready")), INTERRUPTED=str(own), **more)
    environment["PATH"] = f"{front}:{environment['PATH']}" if front else environment["PATH"]
    with out.open("w") as file:
        child = subprocess.Popen([command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
    RUNNING.append(child)
    begun = time.monotonic()
    while not ready(child, own, out):
        if child.poll() is not None or time.monotonic() > begun + 900:
            sys.exit(f"FAILED: {name} never came so far:\n{out.read_text()}")
        time.sleep(0.05)
    before = family(child.pid)
    begun = time.monotonic()
    child.send_signal(number)
    try:
        code = child.wait(60)
    except subprocess.TimeoutExpired:
        sys.exit(f"FAILED: {name}, {number.name}: it goes on:\n{out.read_text()}")
    took = time.monotonic() - begun
    # The kernel does away with what was killed, in its own time.
    end = time.monotonic() + GONE
    while (rest := left(own, before)) and time.monotonic() < end:
        time.sleep(0.05)
    if code != 128 + number or took > seconds or rest:
        sys.exit(f"FAILED: {name}, {number.name}: exit code {code} after {took:.1f} s; left: {rest}\n{out.read_text()}")
    print(f"{name:50} {number.name:7} exit code {code} after {took:.1f} s; {len(before)} processes, all gone", flush=True)


def told(child, own, out):
    return own.with_suffix(".ready").exists()


def said(text):
    return lambda child, own, out: text in out.read_text()


def runs(name):
    return lambda child, own, out: name in family(child.pid).values()


def quick():
    for name in ["deploy/demo", "tests/run"]:
        command = WORK / "tree" / name
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            case(f"{name}, building", number, told, command, ["build"])
        case(f"{name}, installing packages", signal.SIGTERM, told, command, ["install", "build"])
    # What does not end by itself is ended after 10 seconds.
    case("deploy/demo, stuck", signal.SIGINT, told, WORK / "tree/deploy/demo", ["stuck", "build"], 15)


def long():
    subprocess.run(["git", "clone", "-q", TOP, WORK / "clone"], check=True)
    case("deploy/demo, building from nothing", signal.SIGTERM, runs("rustc"), WORK / "clone/deploy/demo")
    case("tests/run, building from nothing", signal.SIGINT, runs("rustc"), WORK / "clone/tests/run")
    shutil.rmtree(WORK / "clone")
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    only = {"path": ["only"], "REAL_CARGO": cargo}
    for text, number in [("LAMMPS", signal.SIGINT), ("ck_200 is", signal.SIGHUP), ("its power", signal.SIGTERM)]:
        case(f"deploy/demo, at {text!r}", number, said(text), TOP / "deploy/demo")
    for step, name, number in [
        ("--exclude scrfs-tests", "scrfs", signal.SIGTERM),
        ("-p scrfs-tests", "scrfs-coordinat", signal.SIGHUP),
        ("-p scrfs-tests", "scrfs-coordinat", signal.SIGINT),
    ]:
        case(f"tests/run, {step}", number, runs(name), TOP / "tests/run", ONLY=step, **only)
    subprocess.run([TOP / "deploy/demo"], check=True)


def clear():
    for child in RUNNING:
        if child.poll() is None:
            child.terminate()
            child.wait(60)
    shutil.rmtree(WORK, ignore_errors=True)


def main():
    atexit.register(clear)
    # Interrupted itself, it ends what it has started.
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    stand_ins()
    quick()
    if sys.argv[1:] != ["quick"]:
        long()


main()

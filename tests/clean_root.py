#!/usr/bin/env python3
"""Makes a clean root and installs a package there: tests/clean_root.py ROOT PACKAGE.deb

The root has Debian's essential packages and what the package depends on, and nothing else. They are copied from this
machine: the files that dpkg lists for each, and dpkg's own records, so that dpkg in the root refuses the package when a
dependency is not declared or not there. What the copied packages' scripts had made is not there, but alternatives, users
and the linker's cache. Recommended and suggested packages are not there.
"""

import glob
import os
import re
import shutil
import subprocess
import sys

INFO = "/var/lib/dpkg/info"
STATUS = "/var/lib/dpkg/status"
ALTERNATIVES = "/var/lib/dpkg/alternatives"
MERGED = ("bin", "sbin", "lib", "lib64")


def stanzas():
    """dpkg's records of what is installed here: name to (fields, text)."""
    found = {}
    with open(STATUS, encoding="utf-8") as file:
        for text in file.read().split("\n\n"):
            fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text, re.M))
            if fields.get("Status") == "install ok installed":
                found[fields["Package"]] = (fields, text)
    return found


def closure(installed, depends):
    """Essential packages, what `depends` names, and all that those need; of alternatives the first that is here."""
    provided = {}
    for name, (fields, _) in installed.items():
        for other in fields.get("Provides", "").split(","):
            provided.setdefault(other.split("(")[0].strip(), name)
    wanted = [name for name, (fields, _) in installed.items() if fields.get("Essential") == "yes"]
    wanted += needs(installed, provided, depends)
    chosen = set()
    while wanted:
        name = wanted.pop()
        if name in chosen:
            continue
        chosen.add(name)
        fields = installed[name][0]
        for field in ("Pre-Depends", "Depends"):
            wanted += needs(installed, provided, fields.get(field, ""))
    return sorted(chosen)


def needs(installed, provided, depends):
    for clause in filter(None, (clause.strip() for clause in depends.split(","))):
        names = [re.split(r"[\s(:]", choice.strip())[0] for choice in clause.split("|")]
        here = [name if name in installed else provided.get(name) for name in names]
        here = [name for name in here if name]
        if not here:
            sys.exit(f"not installed on this machine: {clause}")
        yield here[0]


def info_files(name):
    return glob.glob(f"{INFO}/{name}.*") + glob.glob(f"{INFO}/{name}:*")


def copy(root, names):
    for name in MERGED:
        if os.path.islink(f"/{name}"):
            os.makedirs(f"{root}/usr/{name}")
            os.symlink(f"usr/{name}", f"{root}/{name}")
    paths = set()
    for name in names:
        for path in (path for path in info_files(name) if path.endswith(".list")):
            with open(path, encoding="utf-8") as file:
                paths.update(line for line in file.read().splitlines() if line not in ("/.", ""))
    paths.update(alternatives(paths))
    paths.update(f"/etc/{name}" for name in ("passwd", "group", "nsswitch.conf"))
    there = sorted(path for path in paths if os.path.lexists(path) and path[1:] not in MERGED)
    pack = ["tar", "-C", "/", "--no-recursion", "--null", "-T", "-", "-cf", "-"]
    unpack = ["tar", "-C", root, "--keep-directory-symlink", "-xf", "-"]
    with subprocess.Popen(pack, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as packing:
        with subprocess.Popen(unpack, stdin=packing.stdout) as unpacking:
            packing.stdout.close()
            packing.stdin.write(b"\0".join(path[1:].encode() for path in there))
            packing.stdin.close()
    if packing.returncode or unpacking.returncode:
        sys.exit("the packages could not be copied")
    os.makedirs(f"{root}/tmp", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)


def alternatives(paths):
    """Links through /etc/alternatives to files that are copied."""
    for record in glob.glob(f"{ALTERNATIVES}/*"):
        with open(record, encoding="utf-8") as file:
            links = [line for line in file.read().split("\n\n")[0].splitlines() if line.startswith("/")]
        for link in (link for link in links if os.path.islink(link)):
            named = os.readlink(link)
            if os.path.islink(named) and os.readlink(named) in paths:
                yield link
                yield named


def records(root, installed, names):
    database = f"{root}/var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        os.makedirs(f"{database}/{name}", exist_ok=True)
    for name in names:
        for path in info_files(name):
            shutil.copy2(path, f"{database}/info")
    with open(f"{database}/status", "w", encoding="utf-8") as file:
        file.write("".join(installed[name][1] + "\n\n" for name in names))


def main():
    root, package = sys.argv[1:]
    installed = stanzas()
    depends = subprocess.check_output(["dpkg-deb", "-f", package, "Depends"], text=True).strip()
    names = closure(installed, depends)
    os.makedirs(root, exist_ok=True)
    copy(root, names)
    records(root, installed, names)
    subprocess.check_call(["ldconfig", "-r", root])
    subprocess.check_call(["dpkg", f"--root={root}", "--install", package], env={**os.environ, "LC_ALL": "C"})
    print(f"{len(names)} packages, and {package}")


main()

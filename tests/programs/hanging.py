"""Mounts a file system at the directory that is named, which takes each request and answers none.

hanging.py DIRECTORY [MOUNT-OPTIONS]
"""

import os
import socket
import struct
import subprocess
import sys

INIT = 26
REQUEST_MAX = 2 << 20

ours, theirs = socket.socketpair()
os.set_inheritable(theirs.fileno(), True)
options = sys.argv[2] if len(sys.argv) > 2 else "allow_other"
subprocess.run(
    ["fusermount3", "-o", options, "--", sys.argv[1]],
    check=True,
    close_fds=False,
    env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
)
device = socket.recv_fds(ours, 16, 1)[1][0]
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in 0, 1, 2:
        os.dup2(null, fd)
    while True:
        asked = os.read(device, REQUEST_MAX)
        _, what, unique = struct.unpack_from("IIQ", asked)
        if what == INIT:
            known = struct.pack("IIIIHHIIHHI7I", 7, 31, 4096, 0, 12, 9, 4096, 1, 1, 0, 0, *[0] * 7)
            os.write(device, struct.pack("IiQ", 16 + len(known), 0, unique) + known)

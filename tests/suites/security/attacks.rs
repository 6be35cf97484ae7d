//! What the attacker tries: what it is, and a line of bash. Each line's exit code is 0 if it gets
//! what it wants. It finds in its environment: CONTROL, CACHE (directories), WORKER, SUPERVISOR,
//! COORDINATOR, PROGRAM (processes), PREFIX.

/// What, and how.
pub(super) type Attack = (&'static str, &'static str);

/// Names in shared directories before the job is mounted; these succeed.
pub(super) const NAMES_BEFORE: &[Attack] = &[
    ("nothing at all", "true"),
    ("the user's cache directory", "mkdir /cache/job"),
    ("the same, open to all", "mkdir -m 777 /cache/job"),
    (
        "with the job's in it",
        "mkdir -p /cache/job/scr.victim/tree && touch /cache/job/scr.victim/tree/planted",
    ),
    (
        "a dataset in it",
        "mkdir -p /cache/job/scr.victim/dataset.1 && echo x > /cache/job/scr.victim/dataset.1/x",
    ),
    ("a file of its name", "echo x > /cache/job"),
    ("a link to a system directory", "ln -s /etc /cache/job"),
    ("a link to a directory of the attacker's", "mkdir /tmp/own && ln -s /tmp/own /cache/job"),
    ("a link to nothing", "ln -s /tmp/none/such /cache/job"),
    ("a link to itself", "ln -s job /cache/job"),
    ("a pipe", "mkfifo /cache/job"),
    ("a name that looks like a second choice", "mkdir /cache/job /cache/job.0123456789abcdef"),
    ("a link that looks like one", "mkdir /cache/job && ln -s /root /cache/job.0123456789abcdef"),
    (
        "many of them",
        "mkdir /cache/job && for i in {0..499}; do echo /cache/job.$(printf %016x $i); done | xargs mkdir",
    ),
    ("the control directory of mounts without root", "mkdir -p /dev/shm/job/scr.victim"),
    ("its locks", "mkdir -p /cache/job/scr.victim && echo 1 > /cache/job/scr.victim/supervisor.lock"),
];

/// And while it runs.
pub(super) const NAMES: &[Attack] = &[
    ("root's control base", "mkdir /run/scrfs.new /run/scrfs || mkdir /run/scrfs/eve"),
    ("another user's control directory", "mkdir /run/scrfs/job/scr.next"),
    ("a file among the control files", "echo x > $CONTROL/stores.json"),
    ("a new name there", "touch $CONTROL/stop"),
    ("a temporary name there", "touch $CONTROL/.node.scrinfo.new"),
    ("removing the base", "rm -rf /run/scrfs; ! test -d $CONTROL"),
    ("renaming the base", "mv /run/scrfs /run/other"),
    ("renaming the cache", "mv $(ls -d /cache/job.* | head -n 1) /cache/other"),
    ("removing the cache", "rm -rf /cache/job.*; ! ls -d /cache/job.*"),
    ("names in the cache", "touch $(ls -d /cache/job.* | head -n 1)/x"),
    ("where the mount is", "touch /scr/x || mkdir /scr.new"),
];

pub(super) const LINKS: &[Attack] = &[
    ("a symbolic link in the control directory", "ln -s /etc/passwd $CONTROL/daemon.log.1"),
    ("a symbolic link in place of the log", "ln -sf /etc/passwd $CONTROL/daemon.log"),
    ("a symbolic link in the cache", "ln -s /etc $CACHE/dataset.9"),
    ("a symbolic link in the user's cache directory", "ln -s /etc /cache/job/scr.next"),
    ("a symbolic link in the mount", "ln -s /etc/shadow /scr/latest"),
    ("a hard link to the socket", "ln $CONTROL/socket /run/socket || ln $CONTROL/socket /tmp/socket"),
    (
        "a hard link to the lock",
        "ln $CONTROL/supervisor.lock /run/user.lock || ln $CONTROL/supervisor.lock /tmp/l",
    ),
    ("a hard link to the log", "ln $CONTROL/daemon.log /run/log || ln $CONTROL/daemon.log /tmp/log"),
    ("a hard link to data", "ln /scr/ck.1/data /tmp/data"),
    ("a hard link into the mount", "echo x > /tmp/f && ln /tmp/f /scr/f"),
    ("a rename into the mount", "echo x > /tmp/g && mv /tmp/g /scr/g"),
    ("through a link of one's own", "ln -s /scr /tmp/scr && cat /tmp/scr/ck.1/data"),
    ("through a link to the cache", "ln -s $CACHE/tree /tmp/tree && cat /tmp/tree/ck.1/data"),
];

pub(super) const SOCKETS: &[Attack] = &[
    (
        "connecting",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket')\"",
    ),
    (
        "as a datagram",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ['CONTROL'] + '/socket')\"",
    ),
    (
        "as packets",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(os.environ['CONTROL'] + '/socket')\"",
    ),
    ("removing it", "rm -f $CONTROL/socket"),
    ("renaming it", "mv $CONTROL/socket $CONTROL/socket.old"),
    (
        "binding its name",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind(os.environ['CONTROL'] + '/socket')\"",
    ),
    (
        "binding a name beside it",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind(os.environ['CONTROL'] + '/socket2')\"",
    ),
    ("opening it to all", "chmod 666 $CONTROL/socket"),
    ("taking it", "chown 1001 $CONTROL/socket"),
    ("an access list", "setfattr -n system.posix_acl_access -v 0x02000000 $CONTROL/socket"),
    ("an attribute", "setfattr -n user.x -v y $CONTROL/socket"),
];

pub(super) const LOCKS: &[Attack] = &[
    ("the supervisor's", "flock -n $CONTROL/supervisor.lock true"),
    ("the worker's", "flock -n $CONTROL/worker.lock true"),
    ("shared", "flock -sn $CONTROL/supervisor.lock true"),
    ("the control directory", "flock -n $CONTROL true"),
    ("the mount", "flock -n /scr true"),
    ("a dataset", "flock -n /scr/ck.1 true"),
    ("the cache", "flock -n $CACHE true"),
    ("the user's cache directory", "flock -n /cache/job true"),
    ("the record of stores", "flock -n $CONTROL/stores.json true"),
    (
        "a POSIX lock",
        "python3 -c \"import fcntl, os; fcntl.lockf(open(os.environ['CONTROL'] + '/worker.lock', 'r+'), fcntl.LOCK_EX)\"",
    ),
    (
        "a lease",
        "python3 -c \"import fcntl, os; fcntl.fcntl(open('/scr/ck.1/data'), fcntl.F_SETLEASE, fcntl.F_RDLCK)\"",
    ),
    ("the halt file's", "flock -n $PREFIX/.scr/halt.scr true"),
    ("the hooks' that clear up", "flock -sn /run/scrfs-slurm/.sweep true"),
    ("reading who holds it", "cat $CONTROL/supervisor.lock"),
    ("writing who holds it", "echo 1 > $CONTROL/supervisor.lock"),
];

pub(super) const SIGNALS: &[Attack] = &[
    ("KILL to the worker", "kill -KILL $WORKER"),
    ("TERM to the worker", "kill -TERM $WORKER"),
    ("STOP to the worker", "kill -STOP $WORKER"),
    ("SEGV to the worker", "kill -SEGV $WORKER"),
    ("TERM to the supervisor", "kill -TERM $SUPERVISOR"),
    ("HUP to the supervisor", "kill -HUP $SUPERVISOR"),
    ("KILL to the supervisor", "kill -KILL $SUPERVISOR"),
    ("KILL to keepers", "pkill -KILL scrfs-keeper"),
    ("KILL to the coordinator", "kill -KILL $COORDINATOR"),
    ("STOP to the coordinator", "kill -STOP $COORDINATOR"),
    ("KILL to the program", "kill -KILL $PROGRAM"),
    ("KILL to all", "kill -KILL $WORKER $SUPERVISOR $COORDINATOR"),
    (
        "by a descriptor",
        "python3 -c \"import os, signal; signal.pidfd_send_signal(os.pidfd_open(int(os.environ['WORKER'])), 9)\"",
    ),
    ("a queued one", "/bin/kill -q 1 -s RTMIN $WORKER"),
    ("its priority", "renice -n 19 -p $WORKER"),
    ("its processors", "taskset -pc 0 $WORKER"),
    ("its limits", "prlimit --pid $WORKER --nofile=3:3"),
    ("its scheduler", "chrt -i -p 0 $WORKER"),
    ("its I/O class", "ionice -c 3 -p $WORKER"),
];

pub(super) const PROC: &[Attack] = &[
    ("the daemon's environment", "cat /proc/$WORKER/environ"),
    ("its memory", "dd if=/proc/$WORKER/mem of=/dev/null bs=1 count=1 skip=4194304"),
    ("its map", "test -n \"$(cat /proc/$WORKER/maps)\""),
    ("its descriptors", "ls /proc/$WORKER/fd"),
    ("through one of them", "cat /proc/$WORKER/fd/0"),
    ("its root", "ls /proc/$WORKER/root/"),
    ("its directory", "ls /proc/$WORKER/cwd/"),
    ("its program", "readlink -v /proc/$WORKER/exe"),
    ("its stack", "cat /proc/$WORKER/stack"),
    ("its files in memory", "ls /proc/$WORKER/map_files"),
    ("its I/O", "cat /proc/$WORKER/io"),
    ("writing its memory", "echo x > /proc/$WORKER/mem"),
    ("its chance to be ended for memory", "echo 1000 > /proc/$WORKER/oom_score_adj"),
    ("its name", "echo x > /proc/$WORKER/comm"),
    ("its references", "echo 1 > /proc/$WORKER/clear_refs"),
    (
        "tracing it",
        "python3 -c \"import ctypes, os, sys; c = ctypes.CDLL(None, use_errno=True); r = c.ptrace(16, int(os.environ['WORKER']), 0, 0); print(os.strerror(ctypes.get_errno())); sys.exit(r != 0)\"",
    ),
    (
        "tracing the supervisor",
        "python3 -c \"import ctypes, os, sys; c = ctypes.CDLL(None, use_errno=True); r = c.ptrace(16, int(os.environ['SUPERVISOR']), 0, 0); print(os.strerror(ctypes.get_errno())); sys.exit(r != 0)\"",
    ),
    (
        "a descriptor of it",
        "python3 -c \"import ctypes, os, sys; c = ctypes.CDLL(None, use_errno=True); r = c.syscall(438, os.pidfd_open(int(os.environ['WORKER'])), 0, 0); print(os.strerror(ctypes.get_errno())); sys.exit(r < 0)\"",
    ),
    ("the coordinator's environment", "cat /proc/$COORDINATOR/environ"),
    ("the coordinator's descriptors", "ls /proc/$COORDINATOR/fd"),
    ("the program's environment", "cat /proc/$PROGRAM/environ"),
    ("the mount through the program", "ls /proc/$PROGRAM/root/scr"),
];

pub(super) const MOUNT: &[Attack] = &[
    ("listing", "ls /scr"),
    ("reading", "cat /scr/ck.1/data"),
    ("writing", "echo x > /scr/x"),
    ("removing", "rm -rf /scr/ck.1"),
    ("a marker", "mkdir /scr/evil && touch /scr/evil/.complete"),
    ("an invalid mark", "touch /scr/ck.1/.invalid"),
    ("its status", "cat /scr/.scrfs/status"),
    ("a message", "echo x > /scr/.scrfs/post"),
    ("its metrics", "cat /scr/.scrfs/metrics"),
    ("its mode", "chmod 777 /scr"),
    ("its owner", "chown 1001 /scr"),
    ("an attribute", "getfattr -n user.scrfs.state /scr/ck.1"),
    ("umount", "umount /scr"),
    ("umount, lazily", "umount -l /scr"),
    ("fusermount3", "fusermount3 -u /scr"),
    ("fusermount3, lazily", "fusermount3 -uz /scr"),
    ("scrfs umount", "scrfs umount /scr"),
    ("scrfs umount --force", "scrfs umount --force /scr"),
    ("by the job's id", "scrfs umount --job-id victim --user job --purge --cache-base /cache"),
    (
        "as if by a scheduler",
        "SLURM_JOB_UID=1000 scrfs umount --job-id victim --purge --cache-base /cache && ! test -d $CONTROL",
    ),
    ("a sweep", "scrfs sweep --alive none --cache-base /cache && ! test -d $CONTROL"),
    ("reload", "scrfs reload /scr"),
    ("mounting over it", "mount -t tmpfs none /scr"),
    ("mounting below it", "scrfs mount --job-id evil /scr/ck.1"),
    ("mounting as its user", "mkdir -p /tmp/m && scrfs mount --user job --job-id victim /tmp/m"),
    ("a bind of it", "mount --bind /scr /mnt"),
    ("in a user namespace", "unshare -Urm sh -c 'ls /scr || umount /scr'"),
    ("aborting its connection", "for c in /sys/fs/fuse/connections/*; do echo 1 > $c/abort; done"),
    ("scrfs-ctl status", "scrfs-ctl status --mount /scr"),
    ("scrfs-ctl records", "scrfs-ctl records --mount /scr on"),
];

pub(super) const PREFIX: &[Attack] = &[
    ("a user file", "echo SCR_FLUSH=0 > $PREFIX/.scrconf"),
    ("the index", "echo x > $PREFIX/.scr/index.scr"),
    ("the halt file", "mkdir -p $PREFIX/.scr && echo x > $PREFIX/.scr/halt.scr"),
    ("an epoch", "mkdir -p $PREFIX/.scr && touch $PREFIX/.scr/epoch.999999"),
    ("a dataset's directory", "mkdir $PREFIX/ck.2"),
    ("the current link", "ln -s /etc $PREFIX/scr.current"),
    ("renaming it", "mv $PREFIX $PREFIX.old && test -d $PREFIX.old"),
    ("removing it", "rm -rf $PREFIX; ! test -d $PREFIX"),
    ("its mode", "chmod 777 $PREFIX"),
    ("a lock", "flock -n $PREFIX/.scr true && touch $PREFIX/.scr/x"),
    ("a link in it", "ln -s /etc/passwd $PREFIX/.scr/summary"),
];

pub(super) const CONTROL: &[Attack] = &[
    (
        "garbage",
        "head -c 100000 /dev/urandom | python3 -c \"import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.sendall(sys.stdin.buffer.read())\"",
    ),
    (
        "an oversize length",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.sendall(b'\\xff' * 4)\"",
    ),
    (
        "a length of nothing",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.sendall(b'\\0' * 4)\"",
    ),
    (
        "half a frame, held",
        "python3 -c \"import os, socket, time; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.sendall(b'\\0\\0\\1'); time.sleep(2)\"",
    ),
    (
        "a thousand connections",
        "python3 -c \"import os, socket; a = [socket.socket(socket.AF_UNIX) for _ in range(1000)]; [s.connect(os.environ['CONTROL'] + '/socket') for s in a]\"",
    ),
    (
        "one after the other",
        "python3 -c \"import os, socket; n = 0\nfor _ in range(5000):\n  try: socket.socket(socket.AF_UNIX).connect(os.environ['CONTROL'] + '/socket'); n += 1\n  except OSError as error: last = error\nprint(last)\nraise SystemExit(n == 0)\"",
    ),
    ("a question", "scrfs-ctl status --mount /scr"),
    ("events", "scrfs-ctl events --mount /scr"),
    ("a wait", "scrfs-ctl wait --mount /scr --limit 1"),
    ("records", "scrfs-ctl records --mount /scr on"),
    ("a coordinator", "scrfs-coordinator --attach --mount /scr --prefix /tmp --job-id victim"),
];

/// By an operator, who may ask.
pub(super) const OPERATORS: &[Attack] = &[
    ("records", "scrfs-ctl records --mount /scr on"),
    ("a coordinator", "scrfs-coordinator --attach --mount /scr --prefix /tmp --job-id victim"),
    ("unmounting", "scrfs umount /scr"),
    ("reading", "cat /scr/ck.1/data"),
    (
        "garbage",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.settimeout(5)\ntry: s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n' * 100); said = s.recv(1)\nexcept ConnectionError: said = b''\nprint(said or 'no answer')\nraise SystemExit(not said)\"",
    ),
    (
        "an oversize length",
        "python3 -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CONTROL'] + '/socket'); s.settimeout(5)\ntry: s.sendall(b'\\x7f\\xff\\xff\\xff' + bytes(100)); said = s.recv(1)\nexcept ConnectionError: said = b''\nprint(said or 'no answer')\nraise SystemExit(not said)\"",
    ),
    (
        "connections held while the job asks",
        "python3 -c \"import os, socket, time; a = [socket.socket(socket.AF_UNIX) for _ in range(60)]; [s.connect(os.environ['CONTROL'] + '/socket') for s in a]; time.sleep(2); print('all held'); raise SystemExit(1)\"",
    ),
    (
        "connections that never end",
        "(setsid python3 -c \"import os, socket, time; a = [socket.socket(socket.AF_UNIX) for _ in range(60)]; [s.connect(os.environ['CONTROL'] + '/socket') for s in a]; time.sleep(60)\" &) ; false",
    ),
];

/// Files in the directory where root happens to be; these succeed.
pub(super) const CONFIGURATION: &[Attack] = &[
    ("another user", "echo SCR_USER_NAME=root > .scrconf"),
    ("another job", "echo SCR_JOB_ID=other > .scrconf"),
    ("another cache", "echo SCR_CACHE_BASE=/tmp > .scrconf"),
    ("another control directory", "echo SCR_CNTL_BASE=/tmp > .scrconf"),
    ("what cannot be read", "echo SCR_FLUSH=often > .scrconf"),
    ("no text", "head -c 3000000 /dev/urandom > .scrconf"),
    ("a pipe that never ends", "mkfifo .scrconf"),
    ("a link to a secret", "ln -s /etc/shadow .scrconf"),
    ("a directory", "mkdir .scrconf"),
];

/// In the place of the user file of a prefix, by who may write there; these succeed.
pub(super) const PREFIX_FILES: &[Attack] = &[
    ("a link to a secret", "ln -s secret .scrconf"),
    ("the same by its whole path", "ln -s $PWD/secret .scrconf"),
    ("a link to a link", "ln -sf secret link && ln -s link .scrconf"),
    ("a pipe that nobody writes", "mkfifo .scrconf"),
];

/// By a user whose own job is on the node too: job 8, beside job 7.
pub(super) const NEIGHBOURS: &[Attack] = &[
    ("listing the other's mount", "ls /scr/7"),
    ("reading its data", "cat /scr/7/ck/data"),
    ("its status", "cat /scr/7/.scrfs/status"),
    ("its mount point's name", "mv /scr/7 /scr/9"),
    ("a mount point beside it", "mkdir /scr/9"),
    ("a link from one's own mount", "ln /scr/7/ck/data /scr/8/data"),
    ("through a link in one's own", "ln -s /scr/7 /scr/8/x && ls /scr/8/x/"),
    ("out of one's own", "ls /scr/8/../7"),
    ("asking its daemon", "scrfs-ctl status --mount /scr/7"),
    ("unmounting it", "scrfs umount /scr/7"),
    ("by its id", "scrfs umount --job-id 7 --user 1000 --purge"),
    ("its cache", "ls /cache/job/scr.7"),
];

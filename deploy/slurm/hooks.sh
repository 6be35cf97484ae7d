# shellcheck shell=sh
# What the hooks share; they are in one directory with it. To be sourced. A file `settings` beside it is an
# administrator's: it may set PATH, and each of the words below.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The word in --constraint or --comment that asks for scrfs.
WORD=scrfs
# Seconds that one step of a hook may take. PrologEpilogTimeout should be three times as long.
LIMIT=60
# What the Prolog leaves for the other hooks, gone after a reboot: a file for each job with the lines `mount POINT`, `run N`,
# `user NAME` and `state mounted|failed|kept`, which root alone may write; and what `scrfs mount` said, for the job's user.
NOTES=/run/scrfs-slurm

# shellcheck disable=SC1091
[ ! -r "${0%/*}/settings" ] || . "${0%/*}/settings"
export PATH
umask 022

# Does this job ask for scrfs? Forks nothing: jobs that do not pay nothing.
is_wanted() {
    case " ${SLURM_JOB_CONSTRAINTS-} ${SLURM_JOB_COMMENT-} " in
        *[!A-Za-z0-9_-]"$WORD"[!A-Za-z0-9_-]*) return 0 ;;
        *) return 1 ;;
    esac
}

# limited COMMAND...: no hook waits for ever.
limited() {
    timeout -k 5 "$LIMIT" "$@"
}

# mount_point USER JOB: what SCRFS_MOUNT in /etc/scrfs.conf stands for.
mount_point() {
    pattern=$(sed -n 's/^[[:blank:]]*SCRFS_MOUNT=//p' /etc/scrfs.conf 2>/dev/null | tail -n 1)
    printf '%s\n' "${pattern:-/scr}" | sed "s/%u/$1/g; s/%j/$2/g"
}

# Keeps jobs off this node, with a reason for `sinfo -R`, until the health check finds the cause gone.
drain() {
    printf 'scrfs: %s\n' "$1" >&2
    [ ! -e "$NOTES/.drained" ] || return 0
    update_node State=DRAIN Reason="scrfs: $1" && : >"$NOTES/.drained"
}

update_node() {
    timeout -k 2 10 scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" "$@"
}

# What the node lacks; nothing if it can mount.
node_problem() {
    [ -c /dev/fuse ] || timeout -k 2 10 modprobe fuse 2>/dev/null
    [ -c /dev/fuse ] || { echo "/dev/fuse is missing (modprobe fuse)"; return; }
    command -v scrfs >/dev/null || echo "no program scrfs in $PATH"
}

# noted NAME NOTE: the value of one of a note's lines.
noted() {
    sed -n "s/^$1 //p" "$2" 2>/dev/null
}

# The job as slurmctld knows it, in one line; fails when slurmctld does not answer or does not know it.
show_job() {
    timeout -k 2 10 scontrol -o show job "$1" 2>/dev/null
}

# field NAME LINE: the value of NAME= in a line of scontrol's.
field() {
    value=${2#*" $1="}
    [ "$value" = "$2" ] || printf '%s\n' "${value%% *}"
}

# Frees what jobs that have ended left here: an Epilog that did not run, a job that was cancelled while it waited to run
# again. A job that slurmctld does not tell about is left alone, unless it says that there is none.
sweep() {
    for note in "$NOTES"/*; do
        [ -f "$note" ] || continue
        job=${note##*/}
        # This hook's own job.
        [ "$job" != "${SLURM_JOB_ID-}" ] || continue
        is_over "$job" || continue
        free "$job" --purge
    done
}

# Is this job gone for good?
is_over() {
    said=$(timeout -k 2 10 scontrol -o show job "$1" 2>&1)
    case $(field JobState " $said") in
        '') case $said in *"Invalid job id"*) return 0 ;; *) return 1 ;; esac ;;
        BOOT_FAIL | CANCELLED | COMPLETED | DEADLINE | FAILED | NODE_FAIL | OUT_OF_MEMORY | TIMEOUT) return 0 ;;
        *) return 1 ;;
    esac
}

# free JOB [--purge]: ends a job's mount here, with --purge its caches too. The note goes when nothing is left to do.
free() {
    point=$(noted mount "$NOTES/$1") user=$(noted user "$NOTES/$1")
    # The job that this hook runs for may be another user's.
    if ! said=$(limited env -u SLURM_JOB_USER -u SLURM_JOB_UID -u SLURM_JOB_GID scrfs umount --force --job-id "$@" \
        --user "$user" 2>&1); then
        printf '%s\n' "$said" >&2
        return 1
    fi
    case $point in *"$1"*) rmdir "$point" 2>/dev/null ;; esac
    if [ "${2-}" = --purge ]; then
        rm -f "$NOTES/.said.$1" "$NOTES/$1"
    else
        sed -i 's/^state .*/state kept/' "$NOTES/$1"
    fi
}

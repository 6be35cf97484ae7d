# shellcheck shell=sh
# What the hooks share; they are in one directory with it. To be sourced. A file `settings` beside it is an
# administrator's: it may set PATH, WORD, LIMIT and KEEP.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The word in --constraint or --comment that asks for scrfs.
WORD=scrfs
# Seconds that a mount, or saving what a job has left on a node, may take. PrologEpilogTimeout should be three times as
# long.
LIMIT=60
# Seconds that caches of a job that has ended stay when they cannot be saved on the PFS; then they are given up.
KEEP=3600
# Seconds that clearing up after other jobs may take in a hook: the health check
# has 28 s before it, and Slurm kills that after 60 s.
SWEEP=25
# Seconds that ending a daemon may take that does not answer: `scrfs umount` kills
# it after 15 s.
END=18
# What the Prolog leaves for the other hooks and for `scrfs-ctl probe`, gone after a reboot. A file for each job, named
# after its id, with lines that root alone may write: `mount POINT`, `run N`, `user NAME`, `state
# mounting|mounted|failed|kept`, perhaps `unsaved-since UPTIME` and `given-up UPTIME`. In `.said.JOB`: what `scrfs mount`
# said, for the job's user to read. `.headless.JOB`: the health check has missed the job's batch host once. All of it is
# root's: who could write here could fill /run.
NOTES=/run/scrfs-slurm

# shellcheck disable=SC1091
[ ! -r "${0%/*}/settings" ] || . "${0%/*}/settings"
export PATH
umask 022
# What slurmd was started with, or who runs a hook by hand has set: by these Slurm's commands leave jobs and nodes out, and a
# job that is not told of counts as over.
unset SLURM_CLUSTERS SQUEUE_ACCOUNT SQUEUE_ALL SQUEUE_ARRAY SQUEUE_ARRAY_UNIQUE SQUEUE_FEDERATION SQUEUE_FORMAT SQUEUE_FORMAT2 \
    SQUEUE_LICENSES SQUEUE_LOCAL SQUEUE_NAMES SQUEUE_PARTITION SQUEUE_PRIORITY SQUEUE_QOS SQUEUE_SIB SQUEUE_SIBLING SQUEUE_SORT \
    SQUEUE_STATES SQUEUE_USERS SINFO_ALL SINFO_FEDERATION SINFO_FORMAT SINFO_LOCAL SINFO_PARTITION SCONTROL_ALL \
    SCONTROL_FEDERATION SCONTROL_FUTURE SCONTROL_LOCAL SCONTROL_SIB SCONTROL_SIBLING SCANCEL_ACCOUNT SCANCEL_BATCH SCANCEL_FULL \
    SCANCEL_INTERACTIVE SCANCEL_NAME SCANCEL_PARTITION SCANCEL_QOS SCANCEL_STATE SCANCEL_USER SCANCEL_WCKEY

# Does this job ask for scrfs? Forks nothing: jobs that do not pay nothing.
is_wanted() {
    has_word "${SLURM_JOB_CONSTRAINTS-} ${SLURM_JOB_COMMENT-}"
}

has_word() {
    case " $1 " in *[!A-Za-z0-9_-]"$WORD"[!A-Za-z0-9_-]*) return 0 ;; *) return 1 ;; esac
}

# deadline SECONDS: from now on, for all that follows together.
deadline() {
    DEADLINE=$(($(uptime_seconds) + $1))
}

# A clock that nobody sets.
uptime_seconds() {
    read -r now _ </proc/uptime && echo "${now%.*}"
}

time_left() {
    echo $((DEADLINE - $(uptime_seconds)))
}

# within SECONDS COMMAND...: no longer, and not beyond the deadline.
within() {
    left=$(time_left)
    [ "$1" -ge "$left" ] || left=$1
    shift
    [ "$left" -gt 0 ] || return 124
    # A daemon that is started does not hold the lock of `sweep`.
    timeout -k 2 "$left" "$@" 9>&-
}

# places WORD [OPTION...]: what /etc/scrfs.conf says: where the mount of a job is (`mount`), or the stores (`store`).
places() {
    word=$1
    shift
    # Not of the job that this hook runs for, unless the options say so.
    told=$(within 10 env -u SLURM_JOB_USER -u SLURM_JOB_UID -u SLURM_JOB_GID scrfs places "$@") || return 1
    printf '%s\n' "$told" | sed -n "s/^$word //p"
}

# is_mounted POINT: without a question to the daemon there, which may hang.
is_mounted() {
    directory=$(readlink -f "${1%/*}/")
    awk -v point="${directory%/}/${1##*/}" '$5 == point { found = 1 } END { exit !found }' /proc/self/mountinfo
}

# What the node lacks; nothing if it can mount.
node_problem() {
    [ -c /dev/fuse ] || within 10 modprobe fuse 2>/dev/null
    [ -c /dev/fuse ] || { echo "/dev/fuse is missing (modprobe fuse)"; return; }
    command -v scrfs >/dev/null || { echo "no program scrfs in $PATH"; return; }
    mkdir -p "$NOTES" 2>/dev/null || { echo "the directory $NOTES cannot be made"; return; }
    # More than a note takes: a full file system may have names, and no room.
    head -c 4096 /dev/zero 2>/dev/null >"$NOTES/.probe.$$" || echo "$NOTES has no room for notes"
    rm -f "$NOTES/.probe.$$"
}

NODE=${SLURMD_NODENAME:-$(hostname -s)}

# Keeps jobs off this node, with a reason for `sinfo -R`, until the health check finds the cause gone. Who drained it
# before, and why, stays.
drain() {
    printf 'scrfs: %s\n' "$1" >&2
    said=$(show_node) || return
    is_drained "$said" || within 10 scontrol update NodeName="$NODE" State=DRAIN Reason="scrfs: $1"
}

# Takes the node back that `drain` has drained, perhaps before a reboot. Fails when slurmctld does not answer.
resume() {
    said=$(show_node) || return
    ! is_drained "$said" || case $said in
        *" Reason=scrfs: "*) within 10 scontrol update NodeName="$NODE" State=RESUME ;;
    esac
}

show_node() {
    within 10 scontrol -o show node "$NODE"
}

# Is this node to have scrfs? Those are that have the word among their features. Where no node has, or slurmctld does not
# answer, it cannot be told, and all are.
is_meant() {
    said=$(show_node) && all=$(within 10 sinfo -h -a -o %f) || return 0
    mine=${said#* AvailableFeatures=}
    has_word "${mine%% *}" || ! has_word "$all"
}

# The first State= is Slurm's: what administrators write comes after it.
is_drained() {
    state=${1#* State=}
    case ${state%% *} in *DRAIN*) return 0 ;; *) return 1 ;; esac
}

# noted NAME JOB: the value of one of a note's lines.
noted() {
    sed -n "s/^$1 //p" "$NOTES/$2" 2>/dev/null
}

# The jobs that have notes, those first that were longest not looked after.
noted_jobs() {
    find "$NOTES" -maxdepth 1 -type f ! -name '*[!0-9]*' -printf '%T@ %f\n' 2>/dev/null | sort -n | cut -d ' ' -f 2
}

# ask JOB...: a line for each of these jobs that slurmctld knows: id, state, restarts, whether it has a batch script and
# where that runs; nothing that users write. Fails when slurmctld does not answer.
ask() {
    if ! answer=$(within 10 squeue -h -a -t all -j "$(echo "$*" | tr ' ' ,)" \
        -O JobID:12,State:20,RestartCnt:8,BatchFlag:4,BatchHost:256 2>&1); then
        case $answer in *"Invalid job id"*) return 0 ;; *) return 1 ;; esac
    fi
    printf '%s\n' "$answer"
}

# field N JOB ANSWER: of what `ask` has said.
field() {
    printf '%s\n' "$3" | awk -v job="$2" -v field="$1" '$1 == job { print $field; exit }'
}

# is_over JOB ANSWER: is it gone for good? One that runs again, after a preemption or whatever, is PENDING here.
is_over() {
    case $(field 2 "$1" "$2") in
        '' | BOOT_FAIL | CANCELLED | COMPLETED | DEADLINE | FAILED | NODE_FAIL | OUT_OF_MEMORY) return 0 ;;
        PREEMPTED | REVOKED | TIMEOUT) return 0 ;;
        *) return 1 ;;
    esac
}

# Ends what jobs that are over have left here: an Epilog that did not run or could not save, a job that was cancelled
# while it waited to run again. One question for all; a job that slurmctld does not tell about is left alone, unless it
# answers and does not know it.
sweep() {
    # Who can open it can hold it. Former versions' was open to all, and may be held.
    find "$NOTES/.sweep" -perm /077 -delete 2>/dev/null
    (
        umask 077
        exec 9>"$NOTES/.sweep"
        umask 022
        # Another hook is at it.
        flock -n 9 || exit 0
        deadline "$SWEEP"
        note_caches
        jobs=$(noted_jobs | grep -vxF "${SLURM_JOB_ID:--}") || exit 0
        # shellcheck disable=SC2086
        answer=$(ask $jobs) || exit 0
        for job in $jobs; do
            [ "$(time_left)" -gt 0 ] || break
            ! is_over "$job" "$answer" || finish "$job" 10
        done
    )
}

# caches: a line for each job that has something in the stores: its id, of how many datasets, its user. Fails when that
# cannot be known: a store that does not answer, or cannot be read, may have some. Whether a job has used one that is missing
# is for `scrfs umount --save` to know. What others have there, or have mounted there, is not looked at.
caches() {
    places cache --caches
}

# cached JOB: of how many datasets it has something in the stores; nothing if it has no directory there.
cached() {
    all=$(caches) || return 1
    printf '%s\n' "$all" | awk -v job="$1" '$1 == job { n += $2; seen = 1 } END { if (seen) print n }'
}

# Caches of which there is no note: a disk has kept them over a reboot.
note_caches() {
    caches | while read -r job _ user; do
        case $job in *[!0-9]*) continue ;; esac
        [ "$(time_left)" -gt 0 ] || break
        # Not over a note that a Prolog writes at this moment.
        (set -C && printf '%s\n' "user $user" "state kept" >"$NOTES/$job") 2>/dev/null || continue
        # An Epilog may have freed the cache since it was found, and then takes no note away any more.
        ! found=$(cached "$job") || [ -n "$found$(noted run "$job")" ] || rm -f "$NOTES/$job"
    done
}

# finish JOB SECONDS: saves on the PFS what a job that is over has on this node and nowhere else, within this time, and
# frees all. What cannot be saved stays, and is tried again by the next sweep, until it has stayed for KEEP seconds.
finish() {
    note=$NOTES/$1 enough=''
    # The next sweep begins with another job; or with this one, for which there is
    # no time now. A try that is cut short is no reason to give anything up.
    [ "$(time_left)" -lt "$END" ] || { enough=yes && touch -c "$note"; }
    if [ -n "$(noted given-up "$1")" ]; then
        [ -z "$enough" ] || free "$1" --purge
        return
    fi
    ! save_and_free "$@" || return 0
    since=$(noted unsaved-since "$1") why=$said
    if [ -z "$since" ]; then
        # Another hook may have freed all meanwhile: no note is made anew.
        [ ! -e "$note" ] || echo "unsaved-since $(uptime_seconds)" >>"$note"
    elif [ -n "$enough" ] && [ $(($(uptime_seconds) - since)) -ge "$KEEP" ]; then
        give_up "$1" "$why"
    fi
}

# give_up JOB WHY: purges its caches, unsaved. A daemon that does not answer takes
# a sweep's time twice: to say that nothing is saved, and to be killed. So the note
# tells the next sweep to purge, and not to try to save before.
give_up() {
    [ ! -e "$NOTES/$1" ] || echo "given-up $(uptime_seconds)" >>"$NOTES/$1"
    said="job $1: its caches are given up after $KEEP s, and what the PFS lacks of them is lost: $2"
    printf 'scrfs: %s\n' "$said" >&2
    logger -t scrfs -p daemon.err -- "$said" 2>/dev/null
    [ "$(time_left)" -lt "$END" ] || free "$1" --purge
}

# Only a mount knows which of a job's datasets are whole. There is none where the job was cancelled while it waited to run
# again, or ran again and could not be mounted; that of a daemon that was killed is as good as none.
save_and_free() {
    ! is_dead "$1" || free "$1" || return 1
    # Without a user nothing was tried here.
    if [ -z "$(mounts "$1")" ] && [ -n "$(noted user "$1")" ]; then
        if ! found=$(cached "$1"); then
            said="the stores do not say whether it has caches"
            printf 'scrfs: job %s: %s\n' "$1" "$said" >&2
            return 1
        fi
        if [ "${found:-0}" -gt 0 ] &&
            ! said=$(within "$2" scrfs mount --user "$(noted user "$1")" --job-id "$1" "$NOTES/.mount.$1" 2>&1) &&
            [ -z "$(mounts "$1")" ]; then
            printf 'scrfs: job %s: its caches cannot be mounted to be saved: %s\n' "$1" "$said" >&2
            return 1
        fi
    fi
    free "$1" --purge --save "$2"
}

# tidy USER: takes away what mpirun's daemons of this user's ended runs have left in /tmp, as they do that are killed. What
# runs of another job use stays: what is new and unused is looked at again after 5 s.
tidy() {
    group=$(id -g "$1" 2>/dev/null) || return 0
    within 10 setpriv --reuid "$1" --regid "$group" --init-groups scrfs-ctl mpi-sweep >/dev/null 2>&1
}

# mounts JOB: where root has mounts of this job. A user can have one whose name looks like ours, or like options: only the
# last field, after type and source, is the kernel's, and tells whose it is. Another's may never answer, and is not looked at.
mounts() {
    awk -v end="/scr.$1" '{
        for (dash = 7; dash < NF && $dash != "-"; dash++);
        source = $(dash + 2)
        if ($(dash + 1) == "fuse.scrfs" && source ~ /^scrfs@\// && "," $(dash + 3) "," ~ /,user_id=0,/ &&
            substr(source, length(source) - length(end) + 1) == end) print $5
    }' /proc/self/mountinfo
}

# is_dead JOB: has one of its mounts no daemon any more?
is_dead() {
    mounts "$1" | while read -r point; do
        # A blank is \040 there.
        case $(LC_ALL=C within 5 ls "$(printf '%b' "$point")" 2>&1 >/dev/null) in
            *"not connected"* | *"onnection abort"*) echo dead ;;
        esac
    done | grep -q dead
}

# free JOB [--purge [--save SECONDS]]: ends a job's mount here, with --purge its caches too. The note goes when nothing
# is left to do.
free() {
    point=$(noted mount "$1")
    rm -f "$NOTES/.headless.$1"
    if [ -z "$(noted user "$1")" ]; then
        # Nothing was tried; or a torn note: what is there of that job the next sweep notes anew, with its owner.
        rm -f "$NOTES/.said.$1" "$NOTES/$1"
        return 0
    fi
    # Ours too, and a copy of it in anybody's mount namespace would keep its daemon.
    [ -n "$point" ] || ! is_mounted "$NOTES/.mount.$1" || point=$NOTES/.mount.$1
    # The job that this hook runs for may be another user's. Others may use what no hook has mounted; the job itself is over.
    if ! said=$(within $((2 * LIMIT + END)) env -u SLURM_JOB_USER -u SLURM_JOB_UID -u SLURM_JOB_GID scrfs umount \
        "$([ -n "$point" ] && echo --force || echo --served)" --user "$(noted user "$1")" --job-id "$@" 2>&1); then
        said=${said:-not unmounted in time}
        printf 'scrfs: job %s: %s\n' "$1" "$said" >&2
        return 1
    fi
    if [ "${2-}" = --purge ]; then
        rm -f "$NOTES/.said.$1" "$NOTES/$1"
    else
        sed -i 's/^state .*/state kept/' "$NOTES/$1"
    fi
}

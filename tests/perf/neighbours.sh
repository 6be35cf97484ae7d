#!/bin/sh
# A program and coordinators whose MPI goes over shared memory, each rank in the mounts and under the name of a simulated
# node. Open MPI does so for ranks that one of its own daemons has started and that see one another's processes: all of
# them, and the nodes' daemons, are in the head's namespaces of processes and network. Runs in the head.
#
#   neighbours.sh NODES PROGRAM [ARGUMENT...]
#
# Prints what the program prints, and ends with its exit code.
set -eu
SCRATCH=/run/sim/neighbours

# on NODE COMMAND...: there, but for its processes and network.
on() {
    read -r _ init _ <"/run/sim/nodes/node$1"
    shift
    exec nsenter -t "$init" -m -u "$@"
}

if [ "$1" = rank ]; then
    shift
    on "$OMPI_COMM_WORLD_RANK" "$@"
fi

nodes=$1
shift
mkdir -p "$SCRATCH"
export OMPI_MCA_orte_tmpdir_base="$SCRATCH" OMPI_MCA_btl_vader_backing_directory="$SCRATCH" OMPI_MCA_btl=self,vader

# To be called in a process of its own, which becomes the launcher.
ranks() {
    exec mpirun.openmpi -np "$nodes" --oversubscribe "$0" rank "$@"
}

# Coordinators watch one another and ring by the nodes' names.
sed 's/^[0-9.]* node/127.0.0.1 node/' /etc/hosts >"$SCRATCH/hosts"
for node in $(seq 0 $((nodes - 1))); do
    # A daemon believes nobody whose process it cannot see.
    # shellcheck disable=SC2016
    (on "$node" sh -c 'mountpoint -q /scr || {
            mount -t proc proc /proc && mount --bind "$1" /etc/hosts && shift && exec "$@"; }' - "$SCRATCH/hosts" \
        /run/sim/bin/scrfs mount --user root --job-id "$SCR_JOB_ID" --cache-base /cache /scr)
done
log=$SCRATCH/coordinators
ranks /run/sim/bin/scrfs-coordinator --restart >"$log" 2>&1 &
coordinators=$!
trap 'kill $coordinators; wait $coordinators || true' EXIT
until grep -q scrfs-ready "$log"; do
    kill -0 $coordinators 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.05
done
(ranks "$@")

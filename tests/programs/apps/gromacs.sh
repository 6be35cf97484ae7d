#!/bin/sh
# GROMACS (`gmx`): a box of water, some steps at a time; its one checkpoint, replaced by rename, is the marker.
set -eu
PART=200
dir=$SCRFS_MOUNT/gmx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p "$dir"

# step: of the checkpoint that is there, in parts.
step() {
    [ -e "$dir/state.cpt" ] || { echo 0; return; }
    found=$(gmx -quiet dump -cp "$dir/state.cpt" 2>/dev/null | sed -n 's/^ *step = *//p' | head -n 1)
    echo $((found / PART))
}

gmx -quiet solvate -cs spc216 -box 2.2 2.2 2.2 -o box.gro >log 2>&1
waters=$((($(wc -l <box.gro) - 3) / 3))
cat >topol.top <<END
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spc.itp"
[ system ]
water
[ molecules ]
SOL $waters
END
cat >md.mdp <<END
integrator = md
dt = 0.0005
nsteps = -1
cutoff-scheme = Verlet
rcoulomb = 0.9
rvdw = 0.9
gen_vel = yes
gen_temp = 300
gen_seed = 7
tcoupl = v-rescale
tc-grps = System
tau_t = 0.1
ref_t = 300
END
gmx -quiet grompp -f md.mdp -c box.gro -p topol.top -o md.tpr -maxwarn 2 >>log 2>&1 || { cat log >&2; exit 1; }

step=$(step)
echo "start after $step"
while [ "$step" -lt "$STEPS" ]; do
    gmx -quiet mdrun -ntmpi 1 -ntomp 1 -s md.tpr -deffnm out -noappend -nsteps "$PART" -cpo "$dir/state.cpt" \
        -cpi "$dir/state.cpt" >>log 2>&1 || { cat log >&2; exit 1; }
    step=$((step + 1))
    [ "$(step)" = "$step" ] || { cat log >&2; echo "the checkpoint is of part $(step), not $step" >&2; exit 1; }
    state=$(python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.scrfs.state").decode())' "$dir")
    [ "$state" != open ] || { echo "$dir is $state" >&2; exit 1; }
    echo "saved $step"
done

#!/bin/sh
# A batch script: 4 nodes for the program and a spare. Submit it with `sbatch job.sh`.
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=4
#SBATCH --constraint=scrfs
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=12:00:00

# Where checkpoints go on the parallel file system; the working directory, if not set.
export SCR_PREFIX="$SLURM_SUBMIT_DIR"

# Your program in the place of ./simulate. `exec`: what `scancel --batch --signal=TERM` sends is for scrfs-run.
exec scrfs-run --nodes 4 -- ./simulate

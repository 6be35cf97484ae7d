//! What scrfs-run does with steps of srun.

use super::*;

/// One process that tells its signal. (Slurm signals every process of a step: a shell whose child
/// gets the signal first is done before its trap runs.)
const TELLS: &str = "import signal; stop = {signal.SIGTERM}; \
                     signal.pthread_sigmask(signal.SIG_BLOCK, stop); print('up', flush=True); \
                     signal.sigwait(stop); print('got TERM')";

#[test]
fn nodes_are_numbered_as_the_host_list_has_them_and_a_halt_s_signal_reaches_every_process() {
    let cluster = Cluster::up(2);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let options = "--nodes=2 --ntasks-per-node=1 --constraint=scrfs";
    // srun has an order of its own.
    let script = "exec scrfs-run --launcher pernode --hosts node1,node0 -- \
                  sh -c 'echo $SCRFS_NODE_RANK $(hostname) ${SCRFS_HOSTS%%,*} $SLURM_JOB_NAME'";
    let batch = slurm.submit(JOB_UID, "numbered", options, script);
    slurm.await_state("numbered", &batch, "COMPLETED", LIMIT);
    let output = slurm.output("numbered", &batch);
    for line in ["0 node1 node1 numbered", "1 node0 node1 numbered"] {
        assert!(output.lines().any(|said| said == line), "{line}: {output}");
    }

    mpirun_does_where_the_plugin_for_pmix_cannot_be_loaded(&slurm, options);
    a_halt_s_signal_reaches_every_process(&slurm, options);
    what_keeps_one_step_from_a_node_costs_no_node(&cluster, &slurm, options);
    nothing_is_left(&cluster, 0..2);
}

/// As on a Debian without `libpmix-dev`, whose srun has the plugin in its list.
fn mpirun_does_where_the_plugin_for_pmix_cannot_be_loaded(slurm: &Slurm<'_>, options: &str) {
    let name = "unloaded";
    let says = "srun: error: Invalid MPI type '\\''pmix'\\'', --mpi=list for acceptable types";
    let script = format!(
        "mkdir bin; printf '%s\\n' '#!/bin/sh' 'case \"$*\" in *--mpi=pmix*) echo \"{says}\" >&2; exit 1;; esac' \
         'exec /usr/bin/srun \"$@\"' >bin/srun; chmod 755 bin/srun; export PATH=$PWD/bin:$PATH\n\
         exec scrfs-run -- sh -c 'echo rank $OMPI_COMM_WORLD_RANK'"
    );
    let batch = slurm.submit(JOB_UID, name, options, &script);
    slurm.await_state(name, &batch, "COMPLETED", LIMIT);
    let output = slurm.output(name, &batch);
    for line in ["no pmix that can be used", "rank 0", "rank 1"] {
        assert!(output.contains(line), "{line}: {}", slurm.account(name, &batch));
    }
}

/// A daemon of a former run of the job that Slurm has queued again has left its socket there, or is
/// still at it: steps are numbered from 0 again.
fn what_keeps_one_step_from_a_node_costs_no_node(cluster: &Cluster, slurm: &Slurm<'_>, options: &str) {
    let name = "kept";
    let script = format!(
        "export SCR_PREFIX={PFS}/{name}\n\
         exec scrfs-run --launcher srun -- {} \"$SCRFS_MOUNT\" {PFS}/{name}/log 1",
        program("ckpt")
    );
    let batch = slurm.submit(JOB_UID, name, &format!("{options} --hold"), &script);
    for step in 0..2 {
        let path = format!("/run/slurmd/stepd.slurm.pmix.{}.{step}", batch.0);
        let bind = format!("import socket; socket.socket(socket.AF_UNIX).bind('{path}')");
        cluster.on(1).run(&format!("python3 -c \"{bind}\"")).must();
    }
    slurm.client(0, &format!("scontrol release {}", batch.0)).must();
    slurm.await_state(name, &batch, "COMPLETED", LIMIT);
    let output = slurm.output(name, &batch);
    let account = || slurm.account(name, &batch);
    let tried = |line: &&str| {
        line.contains("node1 could not be launched on (srun: ") && line.ends_with("): once more")
    };
    assert!(output.lines().any(|line| tried(&line)), "{}", account());
    assert!(!output.contains("left out"), "{}", account());
}

/// At TERM srun kills its tasks.
fn a_halt_s_signal_reaches_every_process(slurm: &Slurm<'_>, options: &str) {
    // Two jobs at once: the time to end by oneself is waited out before there is a signal, and the
    // same again has to do for the scheduler to bring that.
    let jobs = ["srun", "pernode"].map(|launcher| {
        let script = format!(
            "export SCRFS_HALT_GRACE=8s SCR_PREFIX={PFS}/{launcher}\n\
             exec scrfs-run --launcher {launcher} -- python3 -c \"{TELLS}\""
        );
        (launcher, slurm.submit(JOB_UID, launcher, options, &script))
    });
    let said = |(launcher, batch): &(&str, Batch), word: &str| {
        slurm.output(launcher, batch).lines().filter(|line| *line == word).count()
    };
    for job in &jobs {
        let up = wait::poll(SOON * 2, || (said(job, "up") == 2).then_some(()));
        assert!(up.is_some(), "{}", slurm.account(job.0, &job.1));
        slurm.client(JOB_UID, &format!("scrfs-ctl halt --immediate --prefix {PFS}/{}", job.0)).must();
    }
    for job in &jobs {
        slurm.await_state(job.0, &job.1, "FAILED", LIMIT);
        assert_eq!(said(job, "got TERM"), 2, "{}", slurm.account(job.0, &job.1));
    }
}

/// Ends with a failure when it is told to, and does well when it runs again.
const FAILS_ONCE: &str =
    "test ! -e again || exit 0; echo up; until test -e go; do sleep 0.1; done; touch again; exit 3";

#[test]
fn while_the_scheduler_does_not_answer_no_node_is_given_up() {
    let cluster = Cluster::up(3);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let send = |signal: &str| {
        cluster.head().run(&format!("kill -{signal} $(pgrep -x slurmctld)")).must();
    };
    for launcher in ["srun", "mpirun"] {
        let name = format!("away-{launcher}");
        let options = "--nodes=3 --ntasks-per-node=1 --constraint=scrfs";
        let script = format!("exec scrfs-run --launcher {launcher} -- sh -c '{FAILS_ONCE}'");
        let batch = slurm.submit(JOB_UID, &name, options, &script);
        let said = |what: &str| slurm.output(&name, &batch).contains(what);
        wait::until_true("the program", SOON * 2, || said("up"));
        send("STOP");
        std::fs::write(slurm.directory(JOB_UID, &name).join("go"), "").expect("a file on the PFS");
        let waits = wait::poll(SOON * 2, || said("waiting for it").then_some(()));
        send("CONT");
        assert!(waits.is_some(), "{}", slurm.account(&name, &batch));
        slurm.await_state(&name, &batch, "COMPLETED", LIMIT);
        assert!(!said("left out"), "{}", slurm.output(&name, &batch));
    }
    nothing_is_left(&cluster, 0..3);
}

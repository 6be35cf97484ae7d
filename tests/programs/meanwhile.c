/* Times what a program waits for while another dataset is encoded in the background, and the same while none is.
 *
 *   meanwhile PATH BYTES PAIRS
 *
 * Runs where a marker's close does not wait for the encoding (SCRFS_SEAL=background). A step: all ranks write BYTES each
 * into the directory PATH.N.before, and the last rank sets its marker, or nothing; then rank 0 makes the directory PATH.N,
 * writes 4 KiB into it and sets its marker. Two steps are a pair, one of each kind, the order swapped from pair to pair;
 * the pair before the first warms up. Rank 0 prints `mkdir KIND SECONDS` and `marker KIND SECONDS`, where KIND is `busy` or
 * `quiet`. A step in which the encoding was over before that is made again. Exit: 0 done, 4 a call failed, 5 it was over
 * too often.
 */
#include <sys/xattr.h>
#include "ranks.h"

#define SMALL 4096

static const char *const KINDS[] = {"quiet", "busy"};

static int is_protected(const char *top)
{
    char state[256];
    ssize_t n = getxattr(top, "user.scrfs.state", state, sizeof state - 1);
    if (n < 0 && errno == ENODATA) return 0;
    if (n < 0) fail("getxattr", top);
    state[n] = 0;
    return strcmp(state, "protected") == 0;
}

static void await_protection(const char *top)
{
    const struct timespec nap = {0, 5 * 1000 * 1000};
    while (!is_protected(top)) nanosleep(&nap, NULL);
}

static void write_part(const char *top, size_t bytes)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%d", top, rank);
    write_file(path, bytes);
}

static void set_marker(const char *top)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/.complete", top);
    mark(path);
}

/* With the parts of so many ranks. */
static void removed(const char *top, int parts)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/.complete", top);
    if (unlink(path) && errno != ENOENT) fail("unlink", path);
    for (int of = 0; of < parts; of++) {
        snprintf(path, sizeof path, "%s/%d", top, of);
        if (unlink(path)) fail("unlink", path);
    }
    if (rmdir(top)) fail("rmdir", top);
}

static double timed(void (*act)(const char *), const char *path)
{
    double begun = MPI_Wtime();
    act(path);
    return MPI_Wtime() - begun;
}

static void told(const char *what, int busy, double took)
{
    printf("%s %s %.6f\n", what, KINDS[busy], took);
    fflush(stdout);
}

/* False where the encoding was over. */
static int step(const char *begins, int number, size_t bytes, int busy, int counts)
{
    int tells = 1;
    char before[4096], top[4096];
    snprintf(before, sizeof before, "%s.%d.before", begins, number);
    snprintf(top, sizeof top, "%s.%d", begins, number);
    if (busy) {
        if (rank == 0) make(before);
        meet_asleep();
        write_part(before, bytes);
    }
    meet_asleep();
    if (busy && rank == size - 1) set_marker(before);
    if (rank == 0) {
        settle();
        double made = timed(make, top);
        write_part(top, SMALL);
        double marked = timed(set_marker, top);
        tells = !busy || !is_protected(before);
        if (tells && counts) told("mkdir", busy, made);
        if (tells && counts) told("marker", busy, marked);
    }
    meet_asleep();
    if (rank == 0) {
        if (busy) await_protection(before);
        await_protection(top);
        removed(top, 1);
        if (busy) removed(before, size);
    }
    meet_asleep();
    MPI_Bcast(&tells, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return tells;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv, 4, "meanwhile PATH BYTES PAIRS");
    size_t bytes = strtoull(argv[2], NULL, 10);
    int pairs = atoi(argv[3]);
    int number = 0;
    for (int pair = 0; pair <= pairs; pair++) {
        for (int at = 0; at < 2; at++) {
            while (!step(argv[1], number++, bytes, (pair + at) % 2, pair > 0)) {
                if (number > 8 * (pairs + 1)) MPI_Abort(MPI_COMM_WORLD, 5);
            }
        }
    }
    MPI_Finalize();
    return 0;
}

/* Times what a program waits for while another dataset is encoded, and the same while none is.
 *
 *   meanwhile PATH BYTES PAIRS MARKER
 *
 * A step: all ranks write BYTES each into the directory PATH.N.before, and the last rank sets its marker, or nothing; then
 * rank 0 makes the directory PATH.N, and, where MARKER is `background` (SCRFS_SEAL: a marker's close does not wait for the
 * encoding), writes 4 KiB into it and sets its marker too. Two steps are a pair, one of each kind, the order swapped from
 * pair to pair; the pair before the first warms up. Rank 0 prints `mkdir KIND SECONDS` and `marker KIND SECONDS`, where
 * KIND is `busy` or `quiet`. Exit: 0 done, 4 a call failed, 5 the encoding was over too soon to tell.
 */
#include <sys/xattr.h>
#include "ranks.h"

#define SMALL 4096

static const char *const KINDS[] = {"quiet", "busy"};
static int in_background;

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

static void timed(const char *what, int busy, int counts, void (*act)(const char *), const char *path)
{
    double begun = MPI_Wtime();
    act(path);
    if (counts) { printf("%s %s %.6f\n", what, KINDS[busy], MPI_Wtime() - begun); fflush(stdout); }
}

static void step(const char *begins, int number, size_t bytes, int busy, int counts)
{
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
        timed("mkdir", busy, counts, make, top);
        if (in_background) {
            write_part(top, SMALL);
            timed("marker", busy, counts, set_marker, top);
        }
        if (busy && is_protected(before)) { fprintf(stderr, "meanwhile: %s is protected already\n", before); MPI_Abort(MPI_COMM_WORLD, 5); }
    }
    meet_asleep();
    if (rank == 0) {
        if (busy) await_protection(before);
        if (in_background) await_protection(top);
        removed(top, in_background);
        if (busy) removed(before, size);
    }
    meet_asleep();
}

int main(int argc, char **argv)
{
    begin(&argc, &argv, 5, "meanwhile PATH BYTES PAIRS MARKER");
    size_t bytes = strtoull(argv[2], NULL, 10);
    int pairs = atoi(argv[3]);
    in_background = strcmp(argv[4], "background") == 0;
    for (int pair = 0; pair <= pairs; pair++) {
        step(argv[1], 2 * pair, bytes, pair % 2, pair > 0);
        step(argv[1], 2 * pair + 1, bytes, 1 - pair % 2, pair > 0);
    }
    MPI_Finalize();
    return 0;
}

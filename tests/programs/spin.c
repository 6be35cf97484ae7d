/* Times what rank 0 waits for while all other ranks wait for it in a barrier: those that spin, as on a real node, and
 * those that sleep between two looks, so that the cores are free.
 *
 *   spin PATH BYTES PAIRS
 *
 * Every step rank 0 makes the directory PATH.N, all ranks write BYTES and 1 MiB each into it, rank 0 sets the marker and opens the
 * small file of the last rank, which is on another node. Two steps are a pair, one of each kind, the order swapped from
 * pair to pair; the pair before the first warms up. Rank 0 prints `WHAT MODE SECONDS` for each thing that it waited for.
 * Exit: 0 done, 4 a call failed.
 */
#include "ranks.h"

enum mode { SPIN, SLEEP };
static const char *const NAMES[] = {"spin", "sleep"};

/* A barrier in which the ranks that come early wait as `mode` says. */
static void meet(enum mode mode)
{
    if (mode == SPIN) MPI_Barrier(MPI_COMM_WORLD);
    else meet_asleep();
}

static void look(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0) fail("open", path);
    close(fd);
}

/* Rank 0 does it while the others wait; it has told them all to come first, and lets them settle down. */
static void timed(const char *what, enum mode mode, int counts, void (*act)(const char *), const char *path)
{
    meet(mode);
    if (rank == 0) {
        settle();
        double begun = MPI_Wtime();
        act(path);
        if (counts) { printf("%s %s %.6f\n", what, NAMES[mode], MPI_Wtime() - begun); fflush(stdout); }
    }
    meet(mode);
}

static void step(const char *path_begins, int number, size_t bytes, enum mode mode, int counts)
{
    char top[4000], path[4096];
    snprintf(top, sizeof top, "%s.%d", path_begins, number);
    timed("mkdir", mode, counts, make, top);
    snprintf(path, sizeof path, "%s/large.%d", top, rank);
    write_file(path, bytes);
    snprintf(path, sizeof path, "%s/small.%d", top, rank);
    write_file(path, BLOCK);
    snprintf(path, sizeof path, "%s/.complete", top);
    timed("marker", mode, counts, mark, path);
    snprintf(path, sizeof path, "%s/small.%d", top, size - 1);
    timed("open", mode, counts, look, path);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv, 4, "spin PATH BYTES PAIRS");
    size_t bytes = strtoull(argv[2], NULL, 10);
    int pairs = atoi(argv[3]);
    for (int pair = 0; pair <= pairs; pair++) {
        enum mode first = pair % 2 ? SPIN : SLEEP;
        step(argv[1], 2 * pair, bytes, first, pair > 0);
        step(argv[1], 2 * pair + 1, bytes, first == SPIN ? SLEEP : SPIN, pair > 0);
    }
    MPI_Finalize();
    return 0;
}

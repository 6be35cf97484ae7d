/* Times how long rank 0 waits for a marker, how long the same ranks need to write the same bytes into files of their nodes'
 * own file systems, how long a plain program needs to protect these (`plain.h`), and how long to send as many to one
 * another.
 *
 *   protect PATH NATIVE BYTES PAIRS SCHEME LOST
 *
 * A pair is all four, the order of the marker and the others swapped from pair to pair; the pair before the first warms up.
 * All ranks write BYTES each: into the directory PATH.N, which gets a marker, and into files NATIVE.RANK, which are
 * protected by SCHEME (PARTNER, XOR, RS) against the loss of LOST ranks; and send BYTES to the next rank. A
 * directory is removed when the next one has its marker. Rank 0 prints `native SECONDS`, `plain SECONDS`, `marker SECONDS` and `ring SECONDS`. Exit: 0 done, 4 a call
 * failed.
 */
#include "plain.h"

static void told(const char *what, int counts, double took)
{
    if (rank == 0 && counts) { printf("%s %.6f\n", what, took); fflush(stdout); }
}

static void native(const char *begins, size_t bytes, const char *scheme, int lost, int counts)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", begins, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    settle();
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    write_file(path, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    told("native", counts, MPI_Wtime() - begun);
    told("plain", counts, plainly(begins, bytes, scheme, lost));
    if (unlink(path)) fail("unlink", path);
}

static void removed(const char *begins, int number)
{
    char top[4000], path[4096];
    snprintf(top, sizeof top, "%s.%d", begins, number);
    snprintf(path, sizeof path, "%s/.complete", top);
    if (unlink(path)) fail("unlink", path);
    for (int of = 0; of < size; of++) {
        snprintf(path, sizeof path, "%s/%d", top, of);
        if (unlink(path)) fail("unlink", path);
    }
    if (rmdir(top)) fail("rmdir", top);
}

static void marked(const char *begins, int number, size_t bytes, int counts)
{
    char top[4000], path[4096];
    snprintf(top, sizeof top, "%s.%d", begins, number);
    if (rank == 0) make(top);
    meet_asleep();
    snprintf(path, sizeof path, "%s/%d", top, rank);
    write_file(path, bytes);
    meet_asleep();
    if (rank == 0) {
        char marker[4096];
        snprintf(marker, sizeof marker, "%s/.complete", top);
        settle();
        double begun = MPI_Wtime();
        mark(marker);
        told("marker", counts, MPI_Wtime() - begun);
        if (number > 0) removed(begins, number - 1);
    }
    meet_asleep();
}

static void ring(size_t bytes, int counts)
{
    static char out[BLOCK], in[BLOCK];
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (size_t sent = 0; sent < bytes; sent += BLOCK)
        MPI_Sendrecv(out, BLOCK, MPI_BYTE, (rank + 1) % size, 0, in, BLOCK, MPI_BYTE, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    told("ring", counts, MPI_Wtime() - begun);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv, 7, "protect PATH NATIVE BYTES PAIRS SCHEME LOST");
    size_t bytes = strtoull(argv[3], NULL, 10);
    int pairs = atoi(argv[4]), lost = atoi(argv[6]);
    if (lost < 1 || lost > LOST_MAX || lost >= size) { fprintf(stderr, "protect: LOST is %d\n", lost); MPI_Abort(MPI_COMM_WORLD, 4); }
    for (int pair = 0; pair <= pairs; pair++) {
        if (pair % 2) marked(argv[1], pair, bytes, pair > 0);
        native(argv[2], bytes, argv[5], lost, pair > 0);
        if (pair % 2 == 0) marked(argv[1], pair, bytes, pair > 0);
        ring(bytes, pair > 0);
    }
    if (rank == 0) removed(argv[1], pairs);
    MPI_Finalize();
    return 0;
}

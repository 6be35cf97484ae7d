/* Two or more nodes make directories at the same instant.
 *
 *   mkdirs DIR ROUNDS
 *
 * In every round each rank makes a directory of its own and one that all make. Of the equal ones exactly one rank must
 * succeed and the others get EEXIST; afterwards every rank must see every directory. Then rank 0 removes them and no
 * rank may see any. Exit: 0, or 3 with the rank, round and call that disagreed.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size;

static void wrong(int round, const char *what, const char *path)
{
    fprintf(stderr, "rank %d round %d: %s: %s: %s\n", rank, round, what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 3);
    exit(3);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3) { fprintf(stderr, "usage: mkdirs DIR ROUNDS\n"); MPI_Abort(MPI_COMM_WORLD, 2); }
    int rounds = atoi(argv[2]);
    for (int i = 0; i < rounds; i++) {
        char own[4096], all[4096], other[4096];
        struct stat st;
        snprintf(own, sizeof own, "%s/d.%d.%d", argv[1], i, rank);
        snprintf(all, sizeof all, "%s/e.%d", argv[1], i);
        if (!stat(all, &st)) wrong(i, "is there too early", all); /* also plants a negative entry, if any is kept */
        MPI_Barrier(MPI_COMM_WORLD);
        int equal_first = (i + rank) % 2, mine = 0;
        for (int turn = 0; turn < 2; turn++) {
            if (turn == equal_first) { if (mkdir(own, 0755)) wrong(i, "mkdir", own); continue; }
            mine = mkdir(all, 0755) == 0;
            if (!mine && errno != EEXIST) wrong(i, "mkdir", all);
            if (stat(all, &st)) wrong(i, "not there after mkdir", all);
        }
        int made = 0;
        MPI_Allreduce(&mine, &made, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (made != 1) { errno = 0; wrong(i, "not exactly one made it", all); }
        for (int r = 0; r < size; r++) {
            snprintf(other, sizeof other, "%s/d.%d.%d", argv[1], i, r);
            if (stat(other, &st)) wrong(i, "not seen", other);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == i % size) {
            if (rmdir(all)) wrong(i, "rmdir", all);
            for (int r = 0; r < size; r++) {
                snprintf(other, sizeof other, "%s/d.%d.%d", argv[1], i, r);
                if (rmdir(other)) wrong(i, "rmdir", other);
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (!stat(all, &st)) wrong(i, "still there after rmdir", all);
        if (!stat(own, &st)) wrong(i, "still there after rmdir", own);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}

/* What the programs that time something share. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1 << 20)

static int rank, size;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "rank %d: %s %s: %s\n", rank, what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 4);
}

static void begin(int *argc, char ***argv, int words, const char *usage)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (*argc != words) { fprintf(stderr, "usage: %s\n", usage); MPI_Abort(MPI_COMM_WORLD, 4); }
}

/* A barrier in which the ranks that come early sleep between two looks, so that the cores are free. */
static void meet_asleep(void)
{
    const struct timespec nap = {0, 1000 * 1000};
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done) nanosleep(&nap, NULL);
}

/* All have come, and have settled down. */
static void settle(void)
{
    const struct timespec pause = {0, 50 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

static void write_file(const char *path, size_t bytes)
{
    static char block[BLOCK];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0) fail("open", path);
    memset(block, 'a' + rank, sizeof block);
    while (bytes > 0) {
        ssize_t n = write(fd, block, bytes < sizeof block ? bytes : sizeof block);
        if (n < 0) fail("write", path);
        bytes -= (size_t)n;
    }
    if (close(fd)) fail("close", path);
}

static void make(const char *path) { if (mkdir(path, 0755)) fail("mkdir", path); }

static void mark(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0) fail("open", path);
    if (close(fd)) fail("close", path);
}

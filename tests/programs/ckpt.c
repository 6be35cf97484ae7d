/* A parallel program that saves checkpoints as SCR's manual describes it, and knows nothing of scrfs:
 * rank 0 makes the directory, barrier, every rank writes its own files, barrier, rank 0 touches the marker.
 *
 *   ckpt DIR LOG STEPS [makedirs] [uneven] [pause=MS] [bytes=N] [hold=FILE [at=N]] [part=FILE] [retry] [writers=N]
 *        [stride=N]
 *
 * makedirs  every rank makes the directory and takes EEXIST for success
 * uneven    several files per rank of different sizes, names with blanks and subdirectories, rank 1 writes none,
 *           rank 2 writes an empty file
 * pause     computes that long between checkpoints
 * hold      after the last step, or after step N, waits until FILE is there (10 minutes at most)
 * part      waits in the middle of its first file, and says so, as long as FILE is there (10 minutes at most)
 * retry     touches the marker again, up to 5 times, when its close fails
 * writers   so many ranks have written what is there; others have nothing to check
 * stride    whose files a rank checks beside its own: so many further on (1); the ranks of a node, and a node checks
 *           the next one's
 *
 * A start reads SCRFS_CURRENT: every rank checks its own files and another rank's, byte for byte.
 * Exit: 0 done, 3 wrong bytes, 4 a call failed. LOG gets a line per event from rank 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size, uneven, makedirs, retry, hold_at, writers, stride = 1;
static long pause_ms, base_bytes = 200000;
static const char *dir, *log_path, *hold, *part;

static void say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[n++] = '\n';
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, line, n) != n) { perror(log_path); MPI_Abort(MPI_COMM_WORLD, 4); }
    close(fd);
}

static void fail(int code, const char *what, const char *path)
{
    say("rank %d: %s: %s: %s", rank, what, path, strerror(errno));
    fprintf(stderr, "rank %d: %s: %s: %s\n", rank, what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, code);
    exit(code);
}

/* A barrier in which ranks sleep: most of what tests' ranks do is to wait for one another, and tests that run at the same
 * time share a few cores. For ranks that spin there is `spin`. */
static void meet(void)
{
    MPI_Request all;
    int met = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (MPI_Test(&all, &met, MPI_STATUS_IGNORE); !met; MPI_Test(&all, &met, MPI_STATUS_IGNORE)) usleep(1000);
}

static uint64_t word(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int files_of(int r) { return !uneven ? 1 : r == 1 ? 0 : 1 + r % 3; }

static size_t bytes_of(int r, int k)
{
    if (!uneven) return base_bytes + r;
    return r == 2 && k == 0 ? 0 : base_bytes / 3 + 15013u * r + 7919u * k + 1;
}

static void name_of(char *out, size_t cap, int step, int r, int k, int sub)
{
    if (!uneven) snprintf(out, cap, "%s/ck.%d/rank_%d.ckpt", dir, step, r);
    else if (sub && k == 1) snprintf(out, cap, "%s/ck.%d/sub dir %d", dir, step, r);
    else if (k == 1) snprintf(out, cap, "%s/ck.%d/sub dir %d/part %d of %d.ckpt", dir, step, r, k, r);
    else snprintf(out, cap, "%s/ck.%d/rank %d part %d.ckpt", dir, step, r, k);
}

static char *content(int step, int r, int k)
{
    size_t n = bytes_of(r, k);
    char *data = malloc(n + 8);
    uint64_t seed = ((uint64_t)(r + 1) << 40) ^ ((uint64_t)(k + 1) << 32) ^ ((uint64_t)step * 1000003u);
    for (size_t i = 0; i < n; i += 8) { uint64_t w = word(seed + i); memcpy(data + i, &w, 8); }
    return data;
}

static void wait_in_the_middle(int step)
{
    if (!part || access(part, F_OK)) return;
    if (rank == 0) say("writing %d", step);
    for (int i = 0; !access(part, F_OK) && i < 60000; i++) usleep(10000);
}

static void save(int step)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ck.%d", dir, step);
    if (makedirs || rank == 0)
        if (mkdir(path, 0777) && !(makedirs && errno == EEXIST)) fail(4, "mkdir", path);
    meet();
    for (int k = 0; k < files_of(rank); k++) {
        if (k == 1) {
            name_of(path, sizeof path, step, rank, k, 1);
            if (mkdir(path, 0777)) fail(4, "mkdir", path);
        }
        name_of(path, sizeof path, step, rank, k, 0);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (fd < 0) fail(4, "create", path);
        char *data = content(step, rank, k);
        for (size_t at = 0, n = bytes_of(rank, k); at < n;) {
            ssize_t w = write(fd, data + at, n - at < 65536 ? n - at : 65536);
            if (w < 0) fail(4, "write", path);
            at += w;
            if (k == 0 && at == (size_t)w) wait_in_the_middle(step);
        }
        free(data);
        if (close(fd)) fail(4, "close", path);
    }
    meet();
    if (rank == 0) {
        snprintf(path, sizeof path, "%s/ck.%d/.complete", dir, step);
        for (int try = 0;; try++) {
            int fd = open(path, O_WRONLY | O_CREAT, 0666);
            int rc = fd < 0 ? -1 : close(fd);
            if (rc == 0) { say("sealed %d", step); break; }
            say("marker %d failed: %s", step, strerror(errno));
            if (!retry || try == 5) { errno = EIO; fail(4, "marker", path); }
            usleep(200000);
        }
    }
    meet();
}

static void check(int step, int r)
{
    char path[4096];
    if (writers && r >= writers) return;
    for (int k = 0; k < files_of(r); k++) {
        name_of(path, sizeof path, step, r, k, 0);
        int fd = open(path, O_RDONLY);
        if (fd < 0) fail(3, "open", path);
        size_t n = bytes_of(r, k), got = 0;
        char *want = content(step, r, k), *have = malloc(n + 1);
        for (ssize_t x; got <= n && (x = read(fd, have + got, n + 1 - got)) > 0;) got += x;
        if (got != n || memcmp(want, have, n)) { errno = EILSEQ; fail(3, "wrong bytes", path); }
        free(want), free(have), close(fd);
    }
}

static void wait_for_leave(void)
{
    for (int i = 0; hold && access(hold, F_OK) && i < 12000; i++) usleep(50000);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 4) { fprintf(stderr, "usage: ckpt DIR LOG STEPS [options]\n"); MPI_Abort(MPI_COMM_WORLD, 2); }
    dir = argv[1], log_path = argv[2];
    int steps = atoi(argv[3]), step = 0;
    for (int i = 4; i < argc; i++) {
        makedirs |= !strcmp(argv[i], "makedirs");
        uneven |= !strcmp(argv[i], "uneven");
        retry |= !strcmp(argv[i], "retry");
        if (!strncmp(argv[i], "pause=", 6)) pause_ms = atol(argv[i] + 6);
        if (!strncmp(argv[i], "bytes=", 6)) base_bytes = atol(argv[i] + 6);
        if (!strncmp(argv[i], "hold=", 5)) hold = argv[i] + 5;
        if (!strncmp(argv[i], "part=", 5)) part = argv[i] + 5;
        if (!strncmp(argv[i], "stride=", 7)) stride = atoi(argv[i] + 7);
        if (!strncmp(argv[i], "at=", 3)) hold_at = atoi(argv[i] + 3);
        if (!strncmp(argv[i], "writers=", 8)) writers = atoi(argv[i] + 8);
    }
    const char *current = getenv("SCRFS_CURRENT");
    if (current && sscanf(current, "ck.%d", &step) == 1) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s/.complete", dir, current);
        if (access(path, F_OK)) fail(3, "marker of the presented checkpoint", path);
        check(step, rank);
        check(step, (rank + stride) % size);
    }
    meet();
    if (rank == 0) say("start after %d", step);
    while (step < steps) {
        if (pause_ms) usleep(pause_ms * 1000);
        meet();
        save(++step);
        if (step == hold_at) wait_for_leave();
    }
    if (rank == 0) say("steps done");
    if (!hold_at) wait_for_leave();
    meet();
    if (rank == 0) say("end");
    MPI_Finalize();
    return 0;
}

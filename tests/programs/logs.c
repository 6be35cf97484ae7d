/* A parallel program that overwrites one directory as its checkpoint, and in it keeps a log open for append all the time.
 *
 *   logs DIR LOG STEPS HOLD
 *
 * Each step: every rank appends to DIR/run/log.RANK, renames its new state into place, barrier, rank 0 touches the marker
 * (up to 5 times); then every rank appends once more. Before the marker it waits for the file HOLD.STEP, and at the end of
 * the step for HOLD.STEP.after (10 minutes at most).
 *
 * A start reads SCRFS_CURRENT: every rank's log must hold what it did when its state was sealed, byte for byte, and nothing
 * that was appended since then.
 * Exit: 0 done, 3 wrong bytes, 4 a call failed. LOG gets a line per event from rank 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES = 500, LINE = 64 };

static int rank;
static const char *dir, *log_path, *hold;
static char name[4096];

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
    MPI_Abort(MPI_COMM_WORLD, code);
    exit(code);
}

/* All lines are of one length. */
static void line_of(char *out, int step, int line)
{
    if (line < LINES) snprintf(out, LINE, "rank %d step %d line %d", rank, step, line);
    else snprintf(out, LINE, "rank %d after step %d", rank, step);
    size_t n = strlen(out);
    memset(out + n, '.', LINE - n);
    out[LINE - 1] = '\n';
}

static void append(int fd, int step, int line)
{
    char text[LINE];
    line_of(text, step, line);
    if (write(fd, text, LINE) != LINE) fail(4, "append", name);
}

/* The log has all lines of `steps` steps, and those written after them; of the last step only if `grown`. */
static void check(int steps, int grown)
{
    char want[LINE], have[LINE];
    FILE *file = fopen(name, "r");
    if (!file) fail(3, "open", name);
    for (int step = 1; step <= steps; step++)
        for (int line = 0; line <= LINES; line++) {
            if (step == steps && line == LINES && !grown) continue;
            line_of(want, step, line);
            errno = EILSEQ;
            if (fread(have, LINE, 1, file) != 1 || memcmp(want, have, LINE)) fail(3, "wrong line", name);
        }
    errno = EILSEQ;
    if (fgetc(file) != EOF) fail(3, "more lines", name);
    fclose(file);
}

static void wait_for(int step, const char *end)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.%d%s", hold, step, end);
    for (int i = 0; access(path, F_OK); i++) {
        if (i == 30000) { errno = ETIMEDOUT; fail(4, "hold", path); }
        usleep(20000);
    }
}

static void mark(int step)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/run/.complete", dir);
    for (int try = 0;; try++) {
        int fd = open(path, O_WRONLY | O_CREAT, 0666);
        if (fd >= 0 && close(fd) == 0) break;
        say("marker %d failed: %s", step, strerror(errno));
        if (try == 5) fail(4, "marker", path);
        usleep(200000);
    }
    say("sealed %d", step);
}

static void save(int step)
{
    char path[4096], temporary[4200], text[32];
    snprintf(path, sizeof path, "%s/run/state.%d", dir, rank);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666), n = sprintf(text, "%d\n", step);
    if (fd < 0 || write(fd, text, n) != n || close(fd) || rename(temporary, path)) fail(4, "save", path);
}

static int restored(void)
{
    char path[4096];
    int step = 0;
    snprintf(path, sizeof path, "%s/run/state.%d", dir, rank);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &step) != 1) fail(3, "state", path);
    fclose(file);
    return step;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 5) { fprintf(stderr, "usage: logs DIR LOG STEPS HOLD\n"); MPI_Abort(MPI_COMM_WORLD, 2); }
    dir = argv[1], log_path = argv[2], hold = argv[4];
    int steps = atoi(argv[3]), step = 0, least, most;
    char top[2048];
    snprintf(top, sizeof top, "%s/run", dir);
    snprintf(name, sizeof name, "%s/log.%d", top, rank);
    const char *current = getenv("SCRFS_CURRENT");
    if (current && *current) {
        step = restored();
        check(step, 0);
    } else if (rank == 0 && mkdir(top, 0777)) fail(4, "mkdir", top);
    MPI_Allreduce(&step, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&step, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (least != most) { errno = EILSEQ; fail(3, "states of different steps", top); }
    if (rank == 0) say("start after %d", step);
    int log = open(name, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (log < 0) fail(4, "open", name);
    if (step) append(log, step, LINES);
    while (++step <= steps) {
        for (int line = 0; line < LINES; line++) append(log, step, line);
        save(step);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) say("written %d", step);
        wait_for(step, "");
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) mark(step);
        MPI_Barrier(MPI_COMM_WORLD);
        append(log, step, LINES);
        check(step, 1);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) say("grown %d", step);
        wait_for(step, ".after");
    }
    if (close(log)) fail(4, "close", name);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) say("done");
    MPI_Finalize();
    return 0;
}

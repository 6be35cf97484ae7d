/* Protects files over the ranks as a program does that does nothing else: one thread a rank, each byte read, sent by MPI,
 * added up and written once. So does SCR (FORMATS 3 to 5 of its descriptions): PARTNER sends a copy to the right
 * neighbour, XOR passes sums around the ring, RS sends each piece to those who add it up, by a table of products for each
 * factor. No checksums, no records, no agreement: what it needs is the least that such a program can. */
#include "ranks.h"

#define LOST_MAX 8

struct plain { int in, out; size_t bytes; };

static void get(const struct plain *of, unsigned char *to, size_t length, size_t at)
{
    ssize_t n = at < of->bytes ? pread(of->in, to, length, (off_t)at) : 0;
    if (n < 0) fail("read", "its file");
    memset(to + n, 0, length - (size_t)n);
}

static void put(const struct plain *of, const unsigned char *from, size_t length, size_t at)
{
    if (pwrite(of->out, from, length, (off_t)at) != (ssize_t)length) fail("write", "its redundancy file");
}

static void exchange(const unsigned char *out, int to, unsigned char *in, int from, size_t length)
{
    MPI_Sendrecv(out, (int)length, MPI_BYTE, (to + size) % size, 1, in, (int)length, MPI_BYTE, (from + size) % size, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static size_t at_most(size_t length) { return length < BLOCK ? length : BLOCK; }

static void plain_partner(const struct plain *of)
{
    static unsigned char mine[BLOCK], other[BLOCK];
    for (size_t at = 0; at < of->bytes; at += BLOCK) {
        size_t length = at_most(of->bytes - at);
        get(of, mine, length, at);
        exchange(mine, rank + 1, other, rank - 1, length);
        put(of, other, length, at);
    }
}

/* Which piece of rank `of` belongs to the parity of rank `holder`. */
static size_t piece(int of, int holder) { return (size_t)(holder < of ? holder : holder - 1); }

static void plain_xor(const struct plain *of)
{
    static unsigned char sum[BLOCK], came[BLOCK];
    size_t chunk = (of->bytes + (size_t)size - 2) / (size_t)(size - 1);
    for (size_t at = 0; at < chunk; at += BLOCK) {
        size_t length = at_most(chunk - at);
        for (int step = 0; step < size - 1; step++) {
            int holder = (rank - 1 - step + 2 * size) % size;
            get(of, sum, length, piece(rank, holder) * chunk + at);
            if (step > 0)
                for (size_t i = 0; i < length; i++) sum[i] ^= came[i];
            exchange(sum, rank + 1, came, rank - 1, length);
        }
        put(of, came, length, at);
    }
}

static unsigned char times(unsigned char a, unsigned char b)
{
    unsigned product = 0;
    for (unsigned power = a; b; b >>= 1, power = power << 1 ^ (power & 0x80 ? 0x11d : 0))
        if (b & 1) product ^= power;
    return (unsigned char)product;
}

static void plain_rs(const struct plain *of, int lost)
{
    static unsigned char mine[BLOCK], came[BLOCK], sums[LOST_MAX][BLOCK], products[256];
    size_t chunk = (of->bytes + (size_t)(size - lost) - 1) / (size_t)(size - lost);
    for (size_t at = 0; at < chunk; at += BLOCK) {
        size_t length = at_most(chunk - at);
        memset(sums, 0, sizeof sums[0] * (size_t)lost);
        for (int step = lost; step < size; step++) {
            get(of, mine, length, (size_t)(step - lost) * chunk + at);
            for (int sum = 0; sum < lost; sum++) {
                exchange(mine, rank + step - sum, came, rank - step + sum, length);
                for (int byte = 0; byte < 256; byte++) products[byte] = times((unsigned char)byte, (unsigned char)(1 + sum + step));
                for (size_t i = 0; i < length; i++) sums[sum][i] ^= products[came[i]];
            }
        }
        for (int sum = 0; sum < lost; sum++) put(of, sums[sum], length, (size_t)sum * chunk + at);
    }
}

/* Protects the files of that name and the ranks' numbers, of as many bytes each, by this scheme; seconds of rank 0. */
static double plainly(const char *begins, size_t bytes, const char *scheme, int lost)
{
    char path[4096], redundancy[5000];
    snprintf(path, sizeof path, "%s.%d", begins, rank);
    snprintf(redundancy, sizeof redundancy, "%s.redundancy", path);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    struct plain of = {open(path, O_RDONLY), open(redundancy, O_WRONLY | O_CREAT | O_EXCL, 0644), bytes};
    if (of.in < 0 || of.out < 0) fail("open", path);
    if (strcmp(scheme, "PARTNER") == 0) plain_partner(&of);
    else if (strcmp(scheme, "XOR") == 0) plain_xor(&of);
    else plain_rs(&of, lost);
    if (close(of.in) || close(of.out)) fail("close", path);
    MPI_Barrier(MPI_COMM_WORLD);
    double took = MPI_Wtime() - begun;
    if (unlink(redundancy)) fail("unlink", redundancy);
    return took;
}

/* One file that all ranks share, by MPI-IO: mpiio FILE. Each rank writes its own block and reads it again. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 65536 };

static int failed(const char *what, int code, int rank)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %.*s\n", rank, what, length, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
    return 3;
}

int main(int argc, char **argv)
{
    static char block[BYTES], again[BYTES];
    int rank, code;
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(block, 'a' + rank, BYTES);
    code = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    if (code != MPI_SUCCESS)
        return failed("open", code, rank);
    printf("opened %d\n", rank);
    fflush(stdout);
    code = MPI_File_write_at_all(file, (MPI_Offset)rank * BYTES, block, BYTES, MPI_CHAR, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return failed("write", code, rank);
    code = MPI_File_read_at_all(file, (MPI_Offset)rank * BYTES, again, BYTES, MPI_CHAR, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || memcmp(block, again, BYTES) != 0)
        return failed("read", code, rank);
    code = MPI_File_close(&file);
    if (code != MPI_SUCCESS)
        return failed("close", code, rank);
    printf("written %d\n", rank);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}

/* Sets a marker as a C program does: open, close, and tells what close said. Exit: 0, or close's errno. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int fd = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT, 0644) : -1;
    if (fd < 0) { perror("open"); return errno ? errno : 2; }
    if (close(fd)) { perror("close"); return errno; }
    return 0;
}

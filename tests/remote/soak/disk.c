// A disk with faults: this library takes the place of calls of the C library, in a process whose environment names it in
// `LD_PRELOAD`. The faults affect only files below `store` in the folder that `KILN_TEST_FOLDER` names:
//
// * While the file `full` is in the folder, writes fail, as on a full disk.
// * While the file `slow` is there, `fsync` and `fdatasync` take `KILN_TEST_SLOW_MS` milliseconds.

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

// Returns whether a file is below `store`, and the file with the name of the fault exists.
static int is_affected(int file, const char *fault) {
    const char *folder = getenv("KILN_TEST_FOLDER");
    char path[4096], link[64];
    if (folder == NULL) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/%s", folder, fault);
    if (access(path, F_OK) != 0) {
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        return 0;
    }
    path[length] = 0;
    size_t parent = strlen(folder);
    return strncmp(path, folder, parent) == 0 && strncmp(path + parent, "/store/", 7) == 0;
}

static void delay(int file) {
    const char *time = getenv("KILN_TEST_SLOW_MS");
    if (time != NULL && is_affected(file, "slow")) {
        usleep((useconds_t)atoi(time) * 1000);
    }
}

int fsync(int file) {
    delay(file);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    delay(file);
    return (int)syscall(SYS_fdatasync, file);
}

ssize_t write(int file, const void *bytes, size_t length) {
    if (is_affected(file, "full")) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, file, bytes, length);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (is_affected(file, "full")) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_writev, file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    if (is_affected(file, "full")) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, file, bytes, length, offset);
}

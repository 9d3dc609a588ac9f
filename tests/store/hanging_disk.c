// A disk that hangs. While the folder that KILN_TEST_FOLDER names has a file `hang`, calls on the paths below the folder
// wait. The file has two lines: the names of the calls, and a part of the paths.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int hangs(const char *call, const char *path) {
    const char *folder = getenv("KILN_TEST_FOLDER");
    if (folder == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
    char name[4096], text[512];
    snprintf(name, sizeof name, "%s/hang", folder);
    int file = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return 0;
    long bytes = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (bytes <= 0) return 0;
    text[bytes] = 0;
    char *part = strchr(text, '\n');
    if (part == NULL) return 0;
    *part++ = 0;
    part[strcspn(part, "\n")] = 0;
    return strstr(text, call) != NULL && strstr(path, part) != NULL;
}

static void wait_for_path(const char *call, const char *path) {
    while (hangs(call, path)) usleep(20000);
}

static void wait_for_file(const char *call, int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    wait_for_path(call, path);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    wait_for_path("open", path);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
    // Rust's standard library asks whether the call exists with addresses that are not valid.
    if ((unsigned long)path > 4096 && path[0] != 0) wait_for_path("stat", path);
    return (int)syscall(SYS_statx, folder, path, flags, mask, found);
}

int ftruncate64(int file, off64_t length) {
    wait_for_file("truncate", file);
    return (int)syscall(SYS_ftruncate, file, length);
}

int fdatasync(int file) {
    wait_for_file("sync", file);
    return (int)syscall(SYS_fdatasync, file);
}

int fsync(int file) {
    wait_for_file("sync", file);
    return (int)syscall(SYS_fsync, file);
}

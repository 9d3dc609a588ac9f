/* Layer for OpenCL's loader that places buffers of drivers for CPUs between pages that cannot be accessed.
 *
 * Name the library in OPENCL_LAYERS. An access outside of a buffer ends the process by SIGSEGV. Buffers have to be
 * aligned, so that a few bytes may lie between a buffer and the page; a write to these aborts the process when the
 * buffer is released. Every second buffer begins behind a page, the others end before one. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void *handle;

/* Declarations from OpenCL's headers, which need not be installed. */
enum { LAYER_API_VERSION = 0x4240, LAYER_NAME = 0x4241, VERSION_100 = 100, INVALID_VALUE = -30, OUT_OF_MEMORY = -6 };
enum { USE_HOST_PTR = 1 << 3, ALLOC_HOST_PTR = 1 << 4, COPY_HOST_PTR = 1 << 5 };

/* Positions in the table of the loader's functions. */
enum { CREATE_BUFFER = 14, SET_DESTRUCTOR_CALLBACK = 83, MAX_FUNCTIONS = 512 };

typedef handle create_buffer_function(handle, uint64_t, size_t, void *, int *);
typedef int set_destructor_callback_function(handle, void (*)(handle, void *), void *);

static void *functions[MAX_FUNCTIONS];
static create_buffer_function *create_buffer;
static set_destructor_callback_function *set_destructor_callback;

/* Alignment of buffers: that of the largest type. */
static const size_t ALIGNMENT = 128;
static const unsigned char FILLING = 0xa5;

struct place {
    unsigned char *mapped, *buffer;
    size_t mapped_size, page, size;
};

/* Returns whether all bytes from `begin` to `end` are as they were. */
static int is_filling(const unsigned char *begin, const unsigned char *end) {
    for (; begin < end; begin++) {
        if (*begin != FILLING) return 0;
    }
    return 1;
}

static void release(handle buffer, void *data) {
    (void)buffer;
    struct place *place = data;
    const unsigned char *first = place->mapped + place->page;
    const unsigned char *last = place->mapped + place->mapped_size - place->page;
    if (!is_filling(first, place->buffer) || !is_filling(place->buffer + place->size, last)) {
        fprintf(stderr, "guard pages: bytes beside a buffer of %zu bytes were written\n", place->size);
        abort();
    }
    munmap(place->mapped, place->mapped_size);
    free(place);
}

static struct place *allocate(size_t size) {
    static _Atomic unsigned count;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = (size + page - 1) / page * page;
    struct place *place = malloc(sizeof *place);
    if (!place) return NULL;
    place->page = page;
    place->size = size;
    place->mapped_size = pages + 2 * page;
    place->mapped = mmap(NULL, place->mapped_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place->mapped == MAP_FAILED || mprotect(place->mapped + page, pages, PROT_READ | PROT_WRITE)) {
        free(place);
        return NULL;
    }
    size_t aligned = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    place->buffer = place->mapped + page + (count++ % 2 ? 0 : pages - aligned);
    memset(place->mapped + page, FILLING, pages);
    memset(place->buffer, 0, size);
    return place;
}

static handle create_guarded(handle context, uint64_t flags, size_t size, void *source, int *error) {
    if (size == 0 || flags & (USE_HOST_PTR | ALLOC_HOST_PTR)) {
        return create_buffer(context, flags, size, source, error);
    }
    struct place *place = allocate(size);
    if (!place) {
        if (error) *error = OUT_OF_MEMORY;
        return NULL;
    }
    if (flags & COPY_HOST_PTR) memcpy(place->buffer, source, size);
    flags = (flags & ~(uint64_t)COPY_HOST_PTR) | USE_HOST_PTR;
    handle buffer = create_buffer(context, flags, size, place->buffer, error);
    if (!buffer || set_destructor_callback(buffer, release, place)) {
        fprintf(stderr, "guard pages: the driver takes no memory of %zu bytes\n", size);
        abort();
    }
    return buffer;
}

__attribute__((visibility("default"))) int clGetLayerInfo(uint32_t name, size_t size, void *value, size_t *size_ret) {
    static const uint32_t version = VERSION_100;
    static const char text[] = "guard pages";
    const void *info = name == LAYER_API_VERSION ? (const void *)&version : text;
    size_t length = name == LAYER_API_VERSION ? sizeof version : sizeof text;
    if (name != LAYER_API_VERSION && name != LAYER_NAME) return INVALID_VALUE;
    if (value && size < length) return INVALID_VALUE;
    if (value) memcpy(value, info, length);
    if (size_ret) *size_ret = length;
    return 0;
}

__attribute__((visibility("default"))) int clInitLayer(uint32_t count, void *const *target, uint32_t *count_ret,
                                                       void *const **layer) {
    if (count <= SET_DESTRUCTOR_CALLBACK || count > MAX_FUNCTIONS) return INVALID_VALUE;
    memcpy(functions, target, count * sizeof *functions);
    create_buffer = (create_buffer_function *)target[CREATE_BUFFER];
    set_destructor_callback = (set_destructor_callback_function *)target[SET_DESTRUCTOR_CALLBACK];
    functions[CREATE_BUFFER] = (void *)create_guarded;
    *count_ret = count;
    *layer = functions;
    return 0;
}

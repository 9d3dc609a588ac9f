/* Runs SPIR-V on this machine's processor, by Intel's OpenCL runtime for CPUs.
 *
 * The runtime is loaded without the OpenCL loader, so that the program under test does not find it. */
#include "stand_ins.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

/* Declarations from OpenCL's headers, which need not be installed. */
static struct {
    int (*clGetPlatformIDs)(uint32_t, handle *, uint32_t *);
    int (*clGetDeviceIDs)(handle, uint64_t, uint32_t, handle *, uint32_t *);
    handle (*clCreateContext)(const intptr_t *, uint32_t, const handle *, void *, void *, int *);
    handle (*clCreateCommandQueueWithProperties)(handle, handle, const uint64_t *, int *);
    handle (*clCreateProgramWithIL)(handle, const void *, size_t, int *);
    int (*clCompileProgram)(handle, uint32_t, const handle *, const char *, uint32_t, const handle *,
                            const char **, void *, void *);
    handle (*clLinkProgram)(handle, uint32_t, const handle *, const char *, uint32_t, const handle *,
                            void *, void *, int *);
    int (*clGetProgramBuildInfo)(handle, handle, uint32_t, size_t, void *, size_t *);
    handle (*clCreateKernel)(handle, const char *, int *);
    int (*clReleaseKernel)(handle);
    int (*clSetKernelArg)(handle, uint32_t, size_t, const void *);
    int (*clSetKernelArgSVMPointer)(handle, uint32_t, const void *);
    int (*clEnqueueNDRangeKernel)(handle, handle, uint32_t, const size_t *, const size_t *, const size_t *,
                                  uint32_t, const handle *, handle *);
    int (*clFinish)(handle);
} cl;

enum { DEVICE_TYPE_ALL = 0xffffffff, PROGRAM_BUILD_LOG = 0x1183 };

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static handle device, context, queue;

struct program {
    struct program *next;
    char *key;
    size_t key_bytes;
    handle built;
};

static struct program *programs;

static void start(void)
{
    const char *path = getenv("KILN_STAND_INS_OPENCL");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        die("KILN_STAND_INS_OPENCL=%s is not an OpenCL driver for the CPU: %s", path ? path : "", dlerror());
#define FIND(name)                                            \
    if (!(*(void **)&cl.name = dlsym(library, #name)))        \
        die("%s has no function " #name, path);
    FIND(clGetPlatformIDs)
    FIND(clGetDeviceIDs)
    FIND(clCreateContext)
    FIND(clCreateCommandQueueWithProperties)
    FIND(clCreateProgramWithIL)
    FIND(clCompileProgram)
    FIND(clLinkProgram)
    FIND(clGetProgramBuildInfo)
    FIND(clCreateKernel)
    FIND(clReleaseKernel)
    FIND(clSetKernelArg)
    FIND(clSetKernelArgSVMPointer)
    FIND(clEnqueueNDRangeKernel)
    FIND(clFinish)
    handle platform;
    int error = cl.clGetPlatformIDs(1, &platform, NULL);
    if (!error)
        error = cl.clGetDeviceIDs(platform, DEVICE_TYPE_ALL, 1, &device, NULL);
    if (!error)
        context = cl.clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (!error)
        queue = cl.clCreateCommandQueueWithProperties(context, device, NULL, &error);
    if (error)
        die("%s does not start: error %d", path, error);
}

static void die_of_build(const char *what, int error, handle program)
{
    char log[4096] = "";
    if (program)
        cl.clGetProgramBuildInfo(program, device, PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    die("a stand-in does not %s: error %d\n%s", what, error, log);
}

static handle build(const struct module_text *modules, int count, const char *options)
{
    handle compiled[count];
    int error;
    for (int i = 0; i < count; i++) {
        compiled[i] = cl.clCreateProgramWithIL(context, modules[i].spirv, modules[i].bytes, &error);
        if (error)
            die_of_build("load", error, NULL);
        error = cl.clCompileProgram(compiled[i], 1, &device, options, 0, NULL, NULL, NULL, NULL);
        if (error)
            die_of_build("compile", error, compiled[i]);
    }
    handle linked = cl.clLinkProgram(context, 1, &device, "", (uint32_t)count, compiled, NULL, NULL, &error);
    if (error)
        die_of_build("link", error, linked);
    return linked;
}

struct program *program_of(const struct module_text *modules, int count, const char *options)
{
    size_t bytes = strlen(options) + 1, at;
    for (int i = 0; i < count; i++)
        bytes += sizeof modules[i].bytes + modules[i].bytes;
    char *key = allocate(bytes);
    strcpy(key, options);
    at = strlen(options) + 1;
    for (int i = 0; i < count; i++) {
        memcpy(key + at, &modules[i].bytes, sizeof modules[i].bytes);
        memcpy(key + at + sizeof modules[i].bytes, modules[i].spirv, modules[i].bytes);
        at += sizeof modules[i].bytes + modules[i].bytes;
    }
    pthread_mutex_lock(&one_at_a_time);
    struct program *program = programs;
    while (program && (program->key_bytes != bytes || memcmp(program->key, key, bytes)))
        program = program->next;
    if (program)
        free(key);
    else {
        if (!queue)
            start();
        program = allocate(sizeof *program);
        *program = (struct program){ programs, key, bytes, build(modules, count, options) };
        programs = program;
    }
    pthread_mutex_unlock(&one_at_a_time);
    return program;
}

void run_kernel(struct program *program, const char *name, const struct argument *arguments, int count,
                const uint32_t groups[3], const uint32_t local[3], const uint32_t offset[3])
{
    size_t from[3], global[3], group[3];
    uint32_t dimensions = 1;
    for (uint32_t i = 0; i < 3; i++) {
        from[i] = offset[i];
        group[i] = local[i];
        global[i] = (size_t)groups[i] * local[i];
        if (global[i] > 1)
            dimensions = i + 1;
    }
    pthread_mutex_lock(&one_at_a_time);
    int error;
    handle kernel = cl.clCreateKernel(program->built, name, &error);
    for (int i = 0; i < count && !error; i++) {
        const struct argument *argument = &arguments[i];
        uint32_t index = (uint32_t)i;
        switch (argument->kind) {
        case BUFFER: error = cl.clSetKernelArgSVMPointer(kernel, index, argument->value); break;
        case LOCAL: error = cl.clSetKernelArg(kernel, index, argument->size, NULL); break;
        case VALUE: error = cl.clSetKernelArg(kernel, index, argument->size, argument->value); break;
        }
        if (error)
            die("the stand-in of kernel %s refuses argument %d of %zu bytes: error %d", name, i,
                argument->size, error);
    }
    if (!error)
        error = cl.clEnqueueNDRangeKernel(queue, kernel, dimensions, from, global, group, 0, NULL, NULL);
    if (!error)
        error = cl.clFinish(queue);
    if (error)
        die("the stand-in of kernel %s does not run: error %d", name, error);
    cl.clReleaseKernel(kernel);
    pthread_mutex_unlock(&one_at_a_time);
}

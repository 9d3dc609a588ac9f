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

struct image_format {
    uint32_t order, channel;
};

struct image_description {
    uint32_t type;
    size_t size[3], layers, row_pitch, slice_pitch;
    uint32_t levels, samples;
    handle buffer;
};

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
    handle (*clCreateImage)(handle, uint64_t, const struct image_format *, const struct image_description *,
                            void *, int *);
    int (*clEnqueueReadImage)(handle, handle, uint32_t, const size_t *, const size_t *, size_t, size_t, void *,
                              uint32_t, const handle *, handle *);
    int (*clReleaseMemObject)(handle);
    handle (*clCreateSampler)(handle, uint32_t, uint32_t, uint32_t, int *);
    int (*clReleaseSampler)(handle);
} cl;

enum { DEVICE_TYPE_ALL = 0xffffffff, PROGRAM_BUILD_LOG = 0x1183 };
enum { READ_WRITE = 1, COPY_HOST_PTR = 32, BLOCKING = 1 };

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
    FIND(clCreateImage)
    FIND(clEnqueueReadImage)
    FIND(clReleaseMemObject)
    FIND(clCreateSampler)
    FIND(clReleaseSampler)
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

static handle create_image(const struct argument *argument, int *error)
{
    /* CL_MEM_OBJECT_IMAGE1D and others, by the types of Level Zero. */
    static const uint32_t types[] = { 0x10f4, 0x10f5, 0x10f1, 0x10f3, 0x10f2 };
    /* CL_UNSIGNED_INT8 and others, by the types of channels and the exponents of their sizes. */
    static const uint32_t channels[5][3] = {
        [CHANNEL_UINT] = { 0x10da, 0x10db, 0x10dc },
        [CHANNEL_SINT] = { 0x10d7, 0x10d8, 0x10d9 },
        [CHANNEL_UNORM] = { 0x10d2, 0x10d3, 0 },
        [CHANNEL_SNORM] = { 0x10d0, 0x10d1, 0 },
        [CHANNEL_FLOAT] = { 0, 0x10dd, 0x10de },
    };
    const struct image_form *form = &argument->image;
    size_t bytes = form->pixel / form->channels;
    /* CL_R, CL_RG or CL_RGBA. */
    uint32_t order = form->channels == 1 ? 0x10b0 : form->channels == 2 ? 0x10b2 : 0x10b5;
    struct image_format format = { order, channels[form->channel][bytes == 1 ? 0 : bytes == 2 ? 1 : 2] };
    struct image_description description = { .type = types[form->type] };
    memcpy(description.size, form->size, sizeof description.size);
    if (form->type == IMAGE_1D_ARRAY || form->type == IMAGE_2D_ARRAY)
        description.layers = form->size[form->type == IMAGE_1D_ARRAY ? 1 : 2];
    return cl.clCreateImage(context, READ_WRITE | COPY_HOST_PTR, &format, &description, argument->value, error);
}

static handle create_sampler(const struct sampler_form *form, int *error)
{
    /* CL_ADDRESS_NONE and others, by the modes of Level Zero. */
    static const uint32_t modes[] = { 0x1130, 0x1133, 0x1131, 0x1132, 0x1134 };
    return cl.clCreateSampler(context, form->is_normalized, modes[form->addressing], 0x1140 + form->filter, error);
}

/* Sets an argument that is an object, and returns the object: that of an earlier argument, for the same image. */
static handle set_object(handle kernel, const struct argument *arguments, const handle *objects, int at, int *error)
{
    const struct argument *argument = &arguments[at];
    handle object = NULL;
    if (argument->kind == SAMPLER)
        object = create_sampler(&argument->sampler, error);
    else {
        for (int i = 0; i < at && !object; i++)
            if (arguments[i].kind == IMAGE && arguments[i].value == argument->value)
                object = objects[i];
        if (!object)
            object = create_image(argument, error);
    }
    if (!*error)
        *error = cl.clSetKernelArg(kernel, (uint32_t)at, sizeof object, &object);
    return object;
}

/* Copies the pixels of images back, and releases the objects. */
static int take_back(const struct argument *arguments, const handle *objects, int count)
{
    int error = 0;
    for (int i = 0; i < count; i++) {
        bool is_first = true;
        for (int before = 0; before < i; before++)
            is_first = is_first && objects[before] != objects[i];
        if (!objects[i] || !is_first)
            continue;
        if (arguments[i].kind == SAMPLER) {
            cl.clReleaseSampler(objects[i]);
            continue;
        }
        const size_t from[3] = { 0, 0, 0 };
        error |= cl.clEnqueueReadImage(queue, objects[i], BLOCKING, from, arguments[i].image.size, 0, 0,
                                       arguments[i].value, 0, NULL, NULL);
        cl.clReleaseMemObject(objects[i]);
    }
    return error;
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
        if (global[i] > 1 || from[i])
            dimensions = i + 1;
    }
    pthread_mutex_lock(&one_at_a_time);
    int error;
    handle objects[MAX_PARAMETERS] = { NULL };
    handle kernel = cl.clCreateKernel(program->built, name, &error);
    for (int i = 0; i < count && !error; i++) {
        const struct argument *argument = &arguments[i];
        uint32_t index = (uint32_t)i;
        switch (argument->kind) {
        case BUFFER: error = cl.clSetKernelArgSVMPointer(kernel, index, argument->value); break;
        case LOCAL: error = cl.clSetKernelArg(kernel, index, argument->size, NULL); break;
        case VALUE: error = cl.clSetKernelArg(kernel, index, argument->size, argument->value); break;
        case IMAGE:
        case SAMPLER: objects[i] = set_object(kernel, arguments, objects, i, &error); break;
        }
        if (error)
            die("the stand-in of kernel %s refuses argument %d of %zu bytes: error %d", name, i,
                argument->size, error);
    }
    if (!error)
        error = cl.clEnqueueNDRangeKernel(queue, kernel, dimensions, from, global, group, 0, NULL, NULL);
    if (!error)
        error = cl.clFinish(queue);
    if (!error)
        error = take_back(arguments, objects, count);
    if (error)
        die("the stand-in of kernel %s does not run: error %d", name, error);
    cl.clReleaseKernel(kernel);
    pthread_mutex_unlock(&one_at_a_time);
}

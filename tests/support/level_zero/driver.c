/* Stand-ins for the kernels of a GPU that is imitated: there, Intel's driver and its compiler are
 * the real ones, but no GPU code runs. The very SPIR-V that the driver was given runs on this
 * machine's processor instead (opencl.c), with the arguments and sizes that the driver was given.
 *
 * This library is a Level Zero driver that is Intel's but for a few functions, which take note of
 * what passes through them: the loader asks it for its functions, and what it does not have itself
 * is found in the driver that it is linked with. `ZE_ENABLE_ALT_DRIVERS` names it to the loader.
 *
 * Where the commands run, the imitated device calls the C function `drmshim_kernel_<name>` of the
 * library that `DRMSHIM_KERNELS` names, which is this one, too. The device can tell neither
 * kernels of equal names nor similar code apart. So in front of each launch goes one of a kernel
 * of ours (launch.cl), whose arguments are the number of the launch, and the buffers, of which the
 * device finds the addresses on the host. The launch itself follows it, and has no effect. Command
 * lists must be in order. */
#define _GNU_SOURCE
#include "stand_ins.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Level Zero, as far as it is needed here. */

typedef void *handle;
typedef int result;

struct module_constants {
    uint32_t count;
    const uint32_t *ids;
    const void **values;
};

struct module_description {
    uint32_t type;
    const void *next;
    uint32_t format;
    size_t bytes;
    const uint8_t *input;
    const char *options;
    const struct module_constants *constants;
};

struct kernel_description {
    uint32_t type;
    const void *next;
    uint32_t flags;
    const char *name;
};

struct group_count {
    uint32_t size[3];
};

enum { SPIRV = 0, NATIVE = 1, MODULE_DESCRIPTION = 0x1b, KERNEL_DESCRIPTION = 0x1d };

static struct {
    result (*create_module)(handle, handle, const struct module_description *, handle *, handle *);
    result (*destroy_module)(handle);
    result (*link_modules)(uint32_t, handle *, handle *);
    result (*native_binary)(handle, size_t *, uint8_t *);
    result (*create_kernel)(handle, const struct kernel_description *, handle *);
    result (*destroy_kernel)(handle);
    result (*set_group)(handle, uint32_t, uint32_t, uint32_t);
    result (*set_argument)(handle, uint32_t, size_t, const void *);
    result (*set_offset)(handle, uint32_t, uint32_t, uint32_t);
    result (*launch)(handle, handle, const struct group_count *, handle, uint32_t, handle *);
} intel;

/* As the imitated device declares it. */
struct drmshim_call {
    const char *name;
    uint32_t groups[3], local[3], offset[3];
    int nargs;
    struct {
        void *ptr;
        uint64_t left;
        uint8_t value[128];
        int size;
        bool pointer;
    } arg[48];
};

/* How many buffers launch.cl takes. */
#define MAX_BUFFERS 40

/* What was given to zeModuleCreate, with its constants' values in place. */
struct image {
    uint32_t *words;
    size_t count;
    char *options;
};

struct module {
    struct module *next;
    handle handle, launch_module, launch_kernel;
    /* Of itself, or of all that were linked with it. NULL: a binary that nothing is known of. */
    struct image **images;
    int image_count;
};

struct kernel {
    struct kernel *next;
    handle handle;
    struct module *module;
    char *name;
    int count; /* of parameters; -1: unknown */
    struct argument arguments[MAX_PARAMETERS];
    uint32_t local[3], offset[3];
};

struct launch {
    struct launch *next;
    uint64_t number;
    struct program *program;
    struct kernel kernel; /* as it was when it was launched */
    struct group_count groups;
};

/* Held while the lists are read and changed; never while the driver is called. */
static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules;
static struct kernel *kernels;
static struct launch *launches;

/* Held from the first argument of a launch of ours to the launch behind it. */
static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-ins: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    abort();
}

void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        die("no memory");
    return memory;
}

#define FIND(list, item, sought)                                       \
    ({                                                                 \
        pthread_mutex_lock(&lists);                                    \
        __typeof__(list) found_ = list;                                \
        while (found_ && found_->item != (sought))                     \
            found_ = found_->next;                                     \
        pthread_mutex_unlock(&lists);                                  \
        found_;                                                        \
    })

#define ADD(list, added)                                               \
    ({                                                                 \
        pthread_mutex_lock(&lists);                                    \
        (added)->next = list;                                          \
        list = added;                                                  \
        pthread_mutex_unlock(&lists);                                  \
    })

/* Gives what was taken out, or NULL. */
#define TAKE(list, item, sought)                                       \
    ({                                                                 \
        pthread_mutex_lock(&lists);                                    \
        __typeof__(&(list)) at_ = &(list);                             \
        while (*at_ && (*at_)->item != (sought))                       \
            at_ = &(*at_)->next;                                       \
        __typeof__(list) taken_ = *at_;                                \
        if (taken_)                                                    \
            *at_ = taken_->next;                                       \
        pthread_mutex_unlock(&lists);                                  \
        taken_;                                                        \
    })

/* Files beside this library: what binaries were built of, since other processes load them. */

static void path_beside(char path[4096], const char *name)
{
    Dl_info info;
    if (!dladdr((void *)path_beside, &info))
        die("the library's own path is unknown");
    int length = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
    snprintf(path, 4096, "%.*s/%s", length, info.dli_fname, name);
}

static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    struct stat status;
    if (fstat(fileno(file), &status))
        die("%s: %s", path, strerror(errno));
    uint8_t *data = allocate((size_t)status.st_size + 1);
    *bytes = fread(data, 1, (size_t)status.st_size, file);
    fclose(file);
    return data;
}

static void path_of_binary(char path[4096], const uint8_t *binary, size_t bytes)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ binary[i]) * 1099511628211u;
    char name[64];
    snprintf(name, sizeof name, "binaries/%016llx-%zu", (unsigned long long)hash, bytes);
    path_beside(path, name);
}

/* The options as text that ends in NUL, and the module behind it. */
static void keep_image(const struct image *image, const uint8_t *binary, size_t bytes)
{
    char path[4096], new[4200];
    path_beside(path, "binaries");
    mkdir(path, 0755);
    path_of_binary(path, binary, bytes);
    if (!access(path, F_OK))
        return;
    snprintf(new, sizeof new, "%s.%d", path, (int)gettid());
    FILE *file = fopen(new, "wb");
    if (!file)
        die("%s: %s", new, strerror(errno));
    fwrite(image->options, 1, strlen(image->options) + 1, file);
    fwrite(image->words, sizeof *image->words, image->count, file);
    if (fclose(file) || rename(new, path))
        die("%s: %s", path, strerror(errno));
}

static struct image *image_of_binary(const uint8_t *binary, size_t bytes)
{
    char path[4096];
    path_of_binary(path, binary, bytes);
    size_t size = 0;
    uint8_t *data = read_file(path, &size);
    if (!data)
        return NULL;
    struct image *image = allocate(sizeof *image);
    image->options = strdup((char *)data);
    size_t options = strlen(image->options) + 1;
    image->count = (size - options) / sizeof *image->words;
    image->words = allocate(size);
    memcpy(image->words, data + options, image->count * sizeof *image->words);
    free(data);
    return image;
}

/* Of options, those that OpenCL has, too. */
static char *opencl_options(const char *options)
{
    char *words = strdup(options ? options : ""), *rest = words, *word;
    char *kept = allocate(strlen(words) + 2);
    while ((word = strsep(&rest, " ")))
        if (!strncmp(word, "-cl-", 4))
            strcat(strcat(kept, word), " ");
    free(words);
    return kept;
}

static struct image *image_of_spirv(const struct module_description *description)
{
    struct image *image = allocate(sizeof *image);
    image->count = description->bytes / sizeof *image->words;
    image->words = allocate(description->bytes);
    memcpy(image->words, description->input, image->count * sizeof *image->words);
    image->options = opencl_options(description->options);
    const struct module_constants *constants = description->constants;
    for (uint32_t i = 0; constants && i < constants->count; i++)
        specialize(image->words, image->count, constants->ids[i], constants->values[i]);
    return image;
}

/* The functions that differ from Intel's. */

/* Adds launch.cl to a module. Part of zeModuleCreate, of which Kiln makes one at a time. */
static void add_launch_kernel(struct module *module, handle context, handle device)
{
    static struct { handle device; uint8_t *binary; size_t bytes; } built[16];
    int at = 0;
    while (at < 16 && built[at].device && built[at].device != device)
        at++;
    if (at == 16)
        die("more than 16 devices");
    struct module_description description = { .type = MODULE_DESCRIPTION, .format = NATIVE, .options = "" };
    char path[4096];
    path_beside(path, "launch.spv");
    uint8_t *text = NULL;
    if (!built[at].device) {
        text = read_file(path, &description.bytes);
        if (!text)
            die("there is no %s", path);
        description.format = SPIRV;
    }
    description.input = text ? text : built[at].binary;
    description.bytes = text ? description.bytes : built[at].bytes;
    result told = intel.create_module(context, device, &description, &module->launch_module, NULL);
    if (told)
        die("%s does not build: %#x", path, told);
    struct kernel_description kernel = { .type = KERNEL_DESCRIPTION, .name = "kiln_stand_in" };
    told = intel.create_kernel(module->launch_module, &kernel, &module->launch_kernel);
    if (!told)
        told = intel.set_group(module->launch_kernel, 1, 1, 1);
    if (!told && text) {
        told = intel.native_binary(module->launch_module, &built[at].bytes, NULL);
        built[at].binary = allocate(built[at].bytes);
        if (!told)
            told = intel.native_binary(module->launch_module, &built[at].bytes, built[at].binary);
        built[at].device = device;
    }
    if (told)
        die("%s is of no use: %#x", path, told);
    free(text);
}

static result create_module(handle context, handle device, const struct module_description *description,
                            handle *created, handle *log)
{
    result told = intel.create_module(context, device, description, created, log);
    if (told)
        return told;
    struct module *module = allocate(sizeof *module);
    module->handle = *created;
    struct image *image = description->format == SPIRV
                              ? image_of_spirv(description)
                              : image_of_binary(description->input, description->bytes);
    if (image) {
        module->images = allocate(sizeof *module->images);
        module->images[0] = image;
        module->image_count = 1;
    }
    add_launch_kernel(module, context, device);
    ADD(modules, module);
    return told;
}

static result destroy_module(handle module)
{
    /* What it was built of stays, for the others that it may have been linked with. */
    struct module *taken = TAKE(modules, handle, module);
    if (taken) {
        intel.destroy_kernel(taken->launch_kernel);
        intel.destroy_module(taken->launch_module);
        free(taken);
    }
    return intel.destroy_module(module);
}

static result link_modules(uint32_t count, handle *linked, handle *log)
{
    result told = intel.link_modules(count, linked, log);
    if (told)
        return told;
    struct image **images = allocate(count * sizeof *images);
    int known = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct module *module = FIND(modules, handle, linked[i]);
        if (module && module->image_count == 1)
            images[known++] = module->images[0];
    }
    for (uint32_t i = 0; i < count; i++) {
        struct module *module = FIND(modules, handle, linked[i]);
        if (module) {
            module->images = images;
            module->image_count = known == (int)count ? known : 0;
        }
    }
    return told;
}

static result native_binary(handle of, size_t *bytes, uint8_t *binary)
{
    result told = intel.native_binary(of, bytes, binary);
    struct module *module = FIND(modules, handle, of);
    if (!told && binary && module && module->image_count == 1)
        keep_image(module->images[0], binary, *bytes);
    return told;
}

static result create_kernel(handle of, const struct kernel_description *description, handle *created)
{
    result told = intel.create_kernel(of, description, created);
    struct module *module = FIND(modules, handle, of);
    if (told || !module)
        return told;
    struct kernel *kernel = allocate(sizeof *kernel);
    kernel->handle = *created;
    kernel->module = module;
    kernel->name = strdup(description->name);
    kernel->count = -1;
    enum parameter parameters[MAX_PARAMETERS];
    for (int i = 0; i < module->image_count && kernel->count < 0; i++) {
        const struct image *image = module->images[i];
        kernel->count = parameters_of(image->words, image->count, kernel->name, parameters);
    }
    for (int i = 0; i < kernel->count; i++)
        kernel->arguments[i].kind = parameters[i];
    ADD(kernels, kernel);
    return told;
}

static void free_values(struct kernel *kernel)
{
    for (int i = 0; i < kernel->count; i++)
        free(kernel->arguments[i].value);
    free(kernel->name);
}

static result destroy_kernel(handle kernel)
{
    struct kernel *taken = TAKE(kernels, handle, kernel);
    if (taken) {
        free_values(taken);
        free(taken);
    }
    return intel.destroy_kernel(kernel);
}

static result set_group(handle of, uint32_t x, uint32_t y, uint32_t z)
{
    result told = intel.set_group(of, x, y, z);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!told && kernel)
        memcpy(kernel->local, (uint32_t[]){ x, y, z }, sizeof kernel->local);
    return told;
}

static result set_offset(handle of, uint32_t x, uint32_t y, uint32_t z)
{
    result told = intel.set_offset(of, x, y, z);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!told && kernel)
        memcpy(kernel->offset, (uint32_t[]){ x, y, z }, sizeof kernel->offset);
    return told;
}

static void *copy_of(const void *data, size_t bytes)
{
    return data ? memcpy(allocate(bytes), data, bytes) : NULL;
}

static result set_argument(handle of, uint32_t index, size_t bytes, const void *value)
{
    result told = intel.set_argument(of, index, bytes, value);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!told && kernel && (int)index < kernel->count) {
        struct argument *argument = &kernel->arguments[index];
        free(argument->value);
        argument->value = copy_of(value, bytes);
        argument->size = bytes;
    }
    return told;
}

/* Appends the launch of ours that goes in front. */
static void announce(handle list, struct kernel *kernel, const struct group_count *groups, uint32_t waits,
                     handle *wait)
{
    static uint64_t last;
    struct module *module = kernel->module;
    if (!module->image_count || kernel->count < 0)
        die("nothing stands in for kernel %s, since nothing is known of its binary", kernel->name);
    struct launch *launch = allocate(sizeof *launch);
    launch->kernel = *kernel;
    launch->kernel.name = strdup(kernel->name);
    launch->groups = *groups;
    struct module_text texts[module->image_count];
    for (int i = 0; i < module->image_count; i++)
        texts[i] = (struct module_text){ module->images[i]->words, module->images[i]->count * 4 };
    launch->program = program_of(texts, module->image_count, module->images[0]->options);
    uint64_t nothing = 0;
    result told = 0;
    uint32_t buffers = 0;
    for (int i = 0; i < kernel->count; i++) {
        const struct argument *argument = &kernel->arguments[i];
        launch->kernel.arguments[i].value = copy_of(argument->value, argument->size);
        if (argument->kind != BUFFER)
            continue;
        if (buffers == MAX_BUFFERS)
            die("kernel %s has more than %d buffers", kernel->name, MAX_BUFFERS);
        told |= intel.set_argument(module->launch_kernel, ++buffers, sizeof nothing,
                                   argument->value ? argument->value : &nothing);
    }
    while (buffers < MAX_BUFFERS)
        told |= intel.set_argument(module->launch_kernel, ++buffers, sizeof nothing, &nothing);
    launch->number = ++last;
    told |= intel.set_argument(module->launch_kernel, 0, sizeof last, &last);
    ADD(launches, launch);
    const struct group_count one = { { 1, 1, 1 } };
    if (!told)
        told = intel.launch(list, module->launch_kernel, &one, NULL, waits, wait);
    if (told)
        die("the launch in front of kernel %s is refused: %#x", kernel->name, told);
}

static result launch(handle list, handle of, const struct group_count *groups, handle signal, uint32_t waits,
                     handle *wait)
{
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!kernel)
        return intel.launch(list, of, groups, signal, waits, wait);
    pthread_mutex_lock(&launching);
    announce(list, kernel, groups, waits, wait);
    result told = intel.launch(list, of, groups, signal, 0, NULL);
    pthread_mutex_unlock(&launching);
    if (told)
        die("the launch of kernel %s is refused, but that in front was not: %#x", kernel->name, told);
    return told;
}

/* What the imitated device calls in place of launch.cl. */
void drmshim_kernel_kiln_stand_in(const struct drmshim_call *call)
{
    uint64_t number;
    memcpy(&number, call->arg[0].value, sizeof number);
    struct launch *launch = TAKE(launches, number, number);
    if (!launch)
        die("launch %llu is not known", (unsigned long long)number);
    struct kernel *kernel = &launch->kernel;
    struct argument arguments[MAX_PARAMETERS];
    int buffers = 0;
    for (int i = 0; i < kernel->count; i++) {
        arguments[i] = kernel->arguments[i];
        if (arguments[i].kind != BUFFER)
            continue;
        uint64_t address = 0;
        if (arguments[i].value)
            memcpy(&address, arguments[i].value, sizeof address);
        arguments[i].value = call->arg[++buffers].ptr;
        if (address && !arguments[i].value)
            die("argument %d of kernel %s is no memory of the device", i, kernel->name);
    }
    run_kernel(launch->program, kernel->name, arguments, kernel->count, launch->groups.size, kernel->local,
               kernel->offset);
    free_values(kernel);
    free(launch);
}

/* The tables that the loader asks for: Intel's, with our functions in some places. */

static result table_of_intel(const char *name, uint32_t version, void **table)
{
    void *driver = dlopen("libze_intel_gpu.so.1", RTLD_NOW | RTLD_LOCAL);
    result (*fill)(uint32_t, void **) = driver ? dlsym(driver, name) : NULL;
    if (!fill)
        die("Intel's driver has no %s", name);
    return fill(version, table);
}

#define TABLE(name, ...)                                      \
    result name(uint32_t version, void **table);              \
    result name(uint32_t version, void **table)               \
    {                                                         \
        result told = table_of_intel(#name, version, table);  \
        if (told)                                             \
            return told;                                      \
        __VA_ARGS__                                           \
        return 0;                                             \
    }
#define REPLACE(place, function)                              \
    if (table[place] != (void *)(function)) {                 \
        *(void **)&intel.function = table[place];             \
        table[place] = (void *)(function);                    \
    }

TABLE(zeGetModuleProcAddrTable,
      REPLACE(0, create_module) REPLACE(1, destroy_module) REPLACE(2, link_modules) REPLACE(3, native_binary))
TABLE(zeGetKernelProcAddrTable,
      REPLACE(0, create_kernel) REPLACE(1, destroy_kernel) REPLACE(3, set_group) REPLACE(6, set_argument))
TABLE(zeGetKernelExpProcAddrTable, REPLACE(0, set_offset))
TABLE(zeGetCommandListProcAddrTable, REPLACE(22, launch) older_lists(table);)
TABLE(zeGetDriverProcAddrTable, older_driver(table);)
TABLE(zeGetEventProcAddrTable, older_events(table);)

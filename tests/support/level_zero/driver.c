/* Stand-ins for the kernels of an imitated GPU. Intel's driver and compiler are the real ones, but no
 * GPU code runs. Instead, the SPIR-V that the driver was given runs on this machine's processor
 * (opencl.c), with the arguments and sizes that the driver was given.
 *
 * This library is a Level Zero driver. It replaces a few functions of Intel's driver by functions that
 * record their arguments. The loader looks up all other functions in Intel's driver, with which this
 * library is linked. `ZE_ENABLE_ALT_DRIVERS` names this library to the loader.
 *
 * For each command, the imitated device calls the C function `drmshim_kernel_<name>` of the library that
 * `DRMSHIM_KERNELS` names, which is this library, too. The device cannot distinguish kernels of equal
 * names or of similar code. So each launch is preceded by a launch of the kernel in launch.cl. Its
 * arguments are the number of the launch, and the buffers and the pixels of images (images.c), whose addresses
 * on the host the device looks up. The original launch follows, and has no effect. Command lists must be in order. */
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

/* The part of Level Zero that is needed here. */

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
    result (*create_list)(handle, handle, const void *, handle *);
    result (*destroy_list)(handle);
    result (*launch)(handle, handle, const struct group_count *, handle, uint32_t, handle *);
} intel;

/* Call of a kernel, as the imitated device declares it. */
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

/* Number of buffers that launch.cl takes. */
#define MAX_BUFFERS 40

/* Input of zeModuleCreate, with the values of its specialization constants in place. */
struct module_code {
    uint32_t *words;
    size_t count;
    char *options;
};

struct module {
    struct module *next;
    handle handle, launch_module, launch_kernel;
    /* Code of this module, or of all modules linked with it. NULL for an unknown binary. */
    struct module_code **codes;
    int code_count;
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

/* A list that is executed many times. */
struct list {
    struct list *next;
    handle handle;
};

struct launch {
    struct launch *next;
    uint64_t number;
    struct list *list; /* that the launch belongs to; NULL: the launch runs once */
    struct program *program;
    struct kernel kernel; /* copy from the time of the launch */
    struct group_count groups;
};

/* Locked while the lists are read and changed, but never while the driver is called. */
static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules;
static struct kernel *kernels;
static struct launch *launches;
static struct list *closed_lists;

/* Locked from the first argument of a launch of launch.cl to the launch that follows it. */
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

/* Removes an item from a list. Returns the item, or NULL. */
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

/* Files beside this library: the SPIR-V of binaries, for other processes that load the binaries. */

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

/* Stores the SPIR-V of a binary: the options as text that ends in NUL, followed by the module. */
static void store_code(const struct module_code *code, const uint8_t *binary, size_t bytes)
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
    fwrite(code->options, 1, strlen(code->options) + 1, file);
    fwrite(code->words, sizeof *code->words, code->count, file);
    if (fclose(file) || rename(new, path))
        die("%s: %s", path, strerror(errno));
}

static struct module_code *code_of_binary(const uint8_t *binary, size_t bytes)
{
    char path[4096];
    path_of_binary(path, binary, bytes);
    size_t size = 0;
    uint8_t *data = read_file(path, &size);
    if (!data)
        return NULL;
    struct module_code *code = allocate(sizeof *code);
    code->options = strdup((char *)data);
    size_t options = strlen(code->options) + 1;
    code->count = (size - options) / sizeof *code->words;
    code->words = allocate(size);
    memcpy(code->words, data + options, code->count * sizeof *code->words);
    free(data);
    return code;
}

/* Returns the options that OpenCL has, too. */
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

static struct module_code *code_of_spirv(const struct module_description *description)
{
    struct module_code *code = allocate(sizeof *code);
    code->count = description->bytes / sizeof *code->words;
    code->words = allocate(description->bytes);
    memcpy(code->words, description->input, code->count * sizeof *code->words);
    code->options = opencl_options(description->options);
    const struct module_constants *constants = description->constants;
    for (uint32_t i = 0; constants && i < constants->count; i++)
        specialize(code->words, code->count, constants->ids[i], constants->values[i]);
    return code;
}

/* The functions that differ from Intel's. */

/* Adds launch.cl to a module. Part of zeModuleCreate, which Kiln does not call concurrently. */
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
            die("%s does not exist", path);
        description.format = SPIRV;
    }
    description.input = text ? text : built[at].binary;
    description.bytes = text ? description.bytes : built[at].bytes;
    result status = intel.create_module(context, device, &description, &module->launch_module, NULL);
    if (status)
        die("%s does not build: %#x", path, status);
    struct kernel_description kernel = { .type = KERNEL_DESCRIPTION, .name = "kiln_stand_in" };
    status = intel.create_kernel(module->launch_module, &kernel, &module->launch_kernel);
    if (!status)
        status = intel.set_group(module->launch_kernel, 1, 1, 1);
    if (!status && text) {
        status = intel.native_binary(module->launch_module, &built[at].bytes, NULL);
        built[at].binary = allocate(built[at].bytes);
        if (!status)
            status = intel.native_binary(module->launch_module, &built[at].bytes, built[at].binary);
        built[at].device = device;
    }
    if (status)
        die("%s cannot be used: %#x", path, status);
    free(text);
}

static result create_module(handle context, handle device, const struct module_description *description,
                            handle *created, handle *log)
{
    result status = intel.create_module(context, device, description, created, log);
    if (status)
        return status;
    struct module *module = allocate(sizeof *module);
    module->handle = *created;
    struct module_code *code = description->format == SPIRV
                              ? code_of_spirv(description)
                              : code_of_binary(description->input, description->bytes);
    if (code) {
        module->codes = allocate(sizeof *module->codes);
        module->codes[0] = code;
        module->code_count = 1;
    }
    add_launch_kernel(module, context, device);
    ADD(modules, module);
    return status;
}

static result destroy_module(handle module)
{
    /* The code stays, for other modules that may be linked with this one. */
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
    result status = intel.link_modules(count, linked, log);
    if (status)
        return status;
    struct module_code **codes = allocate(count * sizeof *codes);
    int known = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct module *module = FIND(modules, handle, linked[i]);
        if (module && module->code_count == 1)
            codes[known++] = module->codes[0];
    }
    for (uint32_t i = 0; i < count; i++) {
        struct module *module = FIND(modules, handle, linked[i]);
        if (module) {
            module->codes = codes;
            module->code_count = known == (int)count ? known : 0;
        }
    }
    return status;
}

static result native_binary(handle of, size_t *bytes, uint8_t *binary)
{
    result status = intel.native_binary(of, bytes, binary);
    struct module *module = FIND(modules, handle, of);
    if (!status && binary && module && module->code_count == 1)
        store_code(module->codes[0], binary, *bytes);
    return status;
}

static result create_kernel(handle of, const struct kernel_description *description, handle *created)
{
    result status = intel.create_kernel(of, description, created);
    struct module *module = FIND(modules, handle, of);
    if (status || !module)
        return status;
    struct kernel *kernel = allocate(sizeof *kernel);
    kernel->handle = *created;
    kernel->module = module;
    kernel->name = strdup(description->name);
    kernel->count = -1;
    enum parameter parameters[MAX_PARAMETERS];
    for (int i = 0; i < module->code_count && kernel->count < 0; i++) {
        const struct module_code *code = module->codes[i];
        kernel->count = parameters_of(code->words, code->count, kernel->name, parameters);
    }
    for (int i = 0; i < kernel->count; i++)
        kernel->arguments[i].kind = parameters[i];
    ADD(kernels, kernel);
    return status;
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
    result status = intel.set_group(of, x, y, z);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!status && kernel)
        memcpy(kernel->local, (uint32_t[]){ x, y, z }, sizeof kernel->local);
    return status;
}

static result set_offset(handle of, uint32_t x, uint32_t y, uint32_t z)
{
    result status = intel.set_offset(of, x, y, z);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!status && kernel)
        memcpy(kernel->offset, (uint32_t[]){ x, y, z }, sizeof kernel->offset);
    return status;
}

static void *copy_of(const void *data, size_t bytes)
{
    return data ? memcpy(allocate(bytes), data, bytes) : NULL;
}

static result set_argument(handle of, uint32_t index, size_t bytes, const void *value)
{
    result status = intel.set_argument(of, index, bytes, value);
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!status && kernel && (int)index < kernel->count) {
        struct argument *argument = &kernel->arguments[index];
        free(argument->value);
        argument->value = copy_of(value, bytes);
        argument->size = bytes;
    }
    return status;
}

/* Returns an argument as it is at the time of the launch. An image is the memory of its pixels. */
static struct argument copy_of_argument(const struct argument *argument)
{
    struct argument copy = *argument;
    handle object = NULL;
    if ((argument->kind == IMAGE || argument->kind == SAMPLER) && argument->value)
        memcpy(&object, argument->value, sizeof object);
    void *pixels;
    switch (argument->kind) {
    case IMAGE:
        copy.image = image_of(object, &pixels);
        copy.value = copy_of(&pixels, sizeof pixels);
        break;
    case SAMPLER: copy.sampler = sampler_of(object); /* fall through */
    default: copy.value = copy_of(argument->value, argument->size);
    }
    return copy;
}

static bool is_memory(const struct argument *argument)
{
    return argument->kind == BUFFER || argument->kind == IMAGE;
}

/* Appends the launch of launch.cl that precedes each launch. */
static void announce(handle list, struct kernel *kernel, const struct group_count *groups, uint32_t waits,
                     handle *wait)
{
    static uint64_t last;
    struct module *module = kernel->module;
    if (!module->code_count || kernel->count < 0)
        die("kernel %s has no stand-in, since its binary is unknown", kernel->name);
    struct launch *launch = allocate(sizeof *launch);
    launch->kernel = *kernel;
    launch->kernel.name = strdup(kernel->name);
    launch->groups = *groups;
    struct module_text texts[module->code_count];
    for (int i = 0; i < module->code_count; i++)
        texts[i] = (struct module_text){ module->codes[i]->words, module->codes[i]->count * 4 };
    launch->program = program_of(texts, module->code_count, module->codes[0]->options);
    uint64_t nothing = 0;
    result status = 0;
    uint32_t buffers = 0;
    for (int i = 0; i < kernel->count; i++) {
        struct argument *argument = &launch->kernel.arguments[i];
        *argument = copy_of_argument(&kernel->arguments[i]);
        if (!is_memory(argument))
            continue;
        if (buffers == MAX_BUFFERS)
            die("kernel %s has more than %d buffers", kernel->name, MAX_BUFFERS);
        status |= intel.set_argument(module->launch_kernel, ++buffers, sizeof nothing,
                                     argument->value ? argument->value : &nothing);
    }
    while (buffers < MAX_BUFFERS)
        status |= intel.set_argument(module->launch_kernel, ++buffers, sizeof nothing, &nothing);
    launch->list = FIND(closed_lists, handle, list);
    launch->number = ++last;
    status |= intel.set_argument(module->launch_kernel, 0, sizeof last, &last);
    ADD(launches, launch);
    const struct group_count one = { { 1, 1, 1 } };
    if (!status)
        status = intel.launch(list, module->launch_kernel, &one, NULL, waits, wait);
    if (status)
        die("the launch that precedes kernel %s is refused: %#x", kernel->name, status);
}

static result launch(handle list, handle of, const struct group_count *groups, handle signal, uint32_t waits,
                     handle *wait)
{
    struct kernel *kernel = FIND(kernels, handle, of);
    if (!kernel)
        return intel.launch(list, of, groups, signal, waits, wait);
    pthread_mutex_lock(&launching);
    announce(list, kernel, groups, waits, wait);
    result status = intel.launch(list, of, groups, signal, 0, NULL);
    pthread_mutex_unlock(&launching);
    if (status)
        die("the launch of kernel %s is refused, but the preceding launch was not: %#x", kernel->name, status);
    return status;
}

static void free_launch(struct launch *launch)
{
    free_values(&launch->kernel);
    free(launch);
}

static result create_list(handle context, handle device, const void *description, handle *created)
{
    result status = intel.create_list(context, device, description, created);
    if (status)
        return status;
    struct list *list = allocate(sizeof *list);
    list->handle = *created;
    ADD(closed_lists, list);
    return status;
}

static result destroy_list(handle of)
{
    struct list *list = TAKE(closed_lists, handle, of);
    struct launch *launch;
    while (list && (launch = TAKE(launches, list, list)))
        free_launch(launch);
    free(list);
    return intel.destroy_list(of);
}

/* Called by the imitated device in place of launch.cl. */
void drmshim_kernel_kiln_stand_in(const struct drmshim_call *call)
{
    uint64_t number;
    memcpy(&number, call->arg[0].value, sizeof number);
    struct launch *launch = FIND(launches, number, number);
    if (launch && !launch->list)
        launch = TAKE(launches, number, number);
    if (!launch)
        die("launch %llu is unknown", (unsigned long long)number);
    struct kernel *kernel = &launch->kernel;
    struct argument arguments[MAX_PARAMETERS];
    int buffers = 0;
    for (int i = 0; i < kernel->count; i++) {
        arguments[i] = kernel->arguments[i];
        if (!is_memory(&arguments[i]))
            continue;
        uint64_t address = 0;
        if (arguments[i].value)
            memcpy(&address, arguments[i].value, sizeof address);
        arguments[i].value = call->arg[++buffers].ptr;
        if (address && !arguments[i].value)
            die("argument %d of kernel %s is not memory of the device", i, kernel->name);
    }
    run_kernel(launch->program, kernel->name, arguments, kernel->count, launch->groups.size, kernel->local,
               kernel->offset);
    if (!launch->list)
        free_launch(launch);
}

/* The tables that the loader requests: those of Intel's driver, with some functions replaced. */

static result table_of_intel(const char *name, uint32_t version, void **table)
{
    void *driver = dlopen("libze_intel_gpu.so.1", RTLD_NOW | RTLD_LOCAL);
    result (*fill)(uint32_t, void **) = driver ? dlsym(driver, name) : NULL;
    if (!fill)
        die("Intel's driver has no %s", name);
    return fill(version, table);
}

#define TABLE(name, ...)                                        \
    result name(uint32_t version, void **table);                \
    result name(uint32_t version, void **table)                 \
    {                                                           \
        result status = table_of_intel(#name, version, table);  \
        if (status)                                             \
            return status;                                      \
        __VA_ARGS__                                             \
        return 0;                                               \
    }
#define REPLACE(place, function)                                \
    if (table[place] != (void *)(function)) {                   \
        *(void **)&intel.function = table[place];               \
        table[place] = (void *)(function);                      \
    }

TABLE(zeGetModuleProcAddrTable,
      REPLACE(0, create_module) REPLACE(1, destroy_module) REPLACE(2, link_modules) REPLACE(3, native_binary))
TABLE(zeGetKernelProcAddrTable,
      REPLACE(0, create_kernel) REPLACE(1, destroy_kernel) REPLACE(3, set_group) REPLACE(6, set_argument))
TABLE(zeGetKernelExpProcAddrTable, REPLACE(0, set_offset))
TABLE(zeGetCommandListProcAddrTable, REPLACE(0, create_list) REPLACE(2, destroy_list) REPLACE(22, launch) images_lists(table); older_lists(table);)
TABLE(zeGetImageProcAddrTable, images_images(table);)
TABLE(zeGetSamplerProcAddrTable, images_samplers(table);)
TABLE(zeGetMemProcAddrTable, images_memory(table);)
TABLE(zeGetDriverProcAddrTable, older_driver(table);)
TABLE(zeGetEventProcAddrTable, older_events(table);)

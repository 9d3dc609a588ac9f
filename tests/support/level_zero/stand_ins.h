/* Stand-ins for the kernels of an imitated GPU; see driver.c. */
#ifndef KILN_STAND_INS_H
#define KILN_STAND_INS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ends the process with a message: a test must not pass without its kernel. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

void *allocate(size_t bytes);

/* spirv.c: queries and changes of a module. */

enum parameter { VALUE, BUFFER, LOCAL, IMAGE, SAMPLER };

#define MAX_PARAMETERS 128

/* Writes the parameters of a kernel, and returns their number; -1 if there is no such kernel. */
int parameters_of(const uint32_t *words, size_t count, const char *kernel,
                  enum parameter parameters[MAX_PARAMETERS]);

/* Replaces the default of a specialization constant. */
void specialize(uint32_t *words, size_t count, uint32_t id, const void *value);

/* images.c: images and samplers. */

/* Values of Level Zero's `ze_image_type_t`, `ze_image_format_type_t` and `ze_sampler_address_mode_t`. */
enum { IMAGE_1D, IMAGE_1D_ARRAY, IMAGE_2D, IMAGE_2D_ARRAY, IMAGE_3D };
enum { CHANNEL_UINT, CHANNEL_SINT, CHANNEL_UNORM, CHANNEL_SNORM, CHANNEL_FLOAT };
enum { ADDRESS_NONE, ADDRESS_REPEAT, ADDRESS_CLAMP, ADDRESS_BORDER, ADDRESS_MIRROR };

struct image_form {
    uint32_t type, channel;
    size_t pixel, channels; /* size of a pixel in bytes, and its number of channels */
    size_t size[3];         /* in pixels; layers are the last of the dimensions */
};

struct sampler_form {
    uint32_t addressing, filter;
    bool is_normalized;
};

/* Returns the form of an image, and the address of its pixels in the device's memory. */
struct image_form image_of(void *handle, void **pixels);

struct sampler_form sampler_of(void *handle);

/* Replace functions in the tables of a driver. */
void images_images(void **table);
void images_samplers(void **table);
void images_memory(void **table);
void images_lists(void **table);

/* opencl.c: building and running programs. */

/* Program built from one SPIR-V module, or from several linked ones. */
struct program;

struct module_text {
    const void *spirv;
    size_t bytes;
};

/* Builds a program, or returns the one that was built from the same modules before. */
struct program *program_of(const struct module_text *modules, int count, const char *options);

struct argument {
    enum parameter kind;
    size_t size;
    void *value; /* for a buffer, and for the pixels of an image: its address on the host */
    struct image_form image;
    struct sampler_form sampler;
};

/* Runs a kernel to its end. */
void run_kernel(struct program *program, const char *kernel, const struct argument *arguments, int count,
                const uint32_t groups[3], const uint32_t local[3], const uint32_t offset[3]);

/* older.c: replaces functions in the tables of a driver without in-order lists. */

void older_driver(void **table);
void older_events(void **table);
void older_lists(void **table);

#endif

/* Imitates images and samplers. Intel's driver decides whether it accepts their descriptions, but its copies of
 * pixels are GPU code, which does not run. So the pixels of an image are in memory of the device, where rows follow
 * each other without padding, and copies of pixels are copies of this memory. */
#include "stand_ins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef int result;

/* The part of Level Zero that is needed here. */

struct image_description {
    uint32_t type_of_structure;
    const void *next;
    uint32_t flags, type, layout, channel, swizzle[4];
    uint64_t width;
    uint32_t height, depth, layers, levels;
};

struct sampler_description {
    uint32_t type_of_structure;
    const void *next;
    uint32_t addressing, filter;
    uint8_t is_normalized;
};

struct memory_description {
    uint32_t type_of_structure;
    const void *next;
    uint32_t flags, ordinal;
};

struct region {
    uint32_t origin[3], size[3];
};

enum { MEMORY_DESCRIPTION = 0x15, ALIGNMENT = 4096 };

static struct {
    result (*create)(handle, handle, const struct image_description *, handle *);
    result (*destroy)(handle);
    result (*create_sampler)(handle, handle, const struct sampler_description *, handle *);
    result (*destroy_sampler)(handle);
    result (*allocate)(handle, const struct memory_description *, size_t, size_t, handle, void **);
    result (*free)(handle, void *);
    result (*barrier)(handle, handle, uint32_t, handle *);
    result (*copy)(handle, void *, const void *, size_t, handle, uint32_t, handle *);
    result (*copy_pixels)(handle, handle, handle, const struct region *, const struct region *, handle, uint32_t,
                          handle *);
    result (*to_memory)(handle, void *, handle, const struct region *, handle, uint32_t, handle *);
    result (*from_memory)(handle, handle, const void *, const struct region *, handle, uint32_t, handle *);
} intel;

struct image {
    struct image *next;
    handle handle, context;
    struct image_form form;
    void *pixels; /* address in the device's memory */
};

struct sampler {
    struct sampler *next;
    handle handle;
    struct sampler_form form;
};

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static struct image *images;
static struct sampler *samplers;

/* Returns the sizes of an image in pixels. Layers count as the last dimension. */
static struct image_form form_of(const struct image_description *description)
{
    static const size_t sizes[] = { 1, 2, 4, 2, 4, 4, 8, 8, 16 }, channels[] = { 1, 1, 1, 2, 4, 2, 4, 2, 4 };
    if (description->layout >= sizeof sizes / sizeof *sizes)
        die("images of the layout %u are not imitated", description->layout);
    struct image_form form = { description->type, description->channel, 0, 0, { description->width, 1, 1 } };
    form.pixel = sizes[description->layout];
    form.channels = channels[description->layout];
    switch (description->type) {
    case IMAGE_1D: break;
    case IMAGE_1D_ARRAY: form.size[1] = description->layers; break;
    case IMAGE_2D: form.size[1] = description->height; break;
    case IMAGE_2D_ARRAY: form.size[1] = description->height; form.size[2] = description->layers; break;
    case IMAGE_3D: form.size[1] = description->height; form.size[2] = description->depth; break;
    default: die("images of the type %u are not imitated", description->type);
    }
    return form;
}

static result create(handle context, handle device, const struct image_description *description, handle *created)
{
    result status = intel.create(context, device, description, created);
    if (status)
        return status;
    struct image *image = allocate(sizeof *image);
    image->handle = *created;
    image->context = context;
    image->form = form_of(description);
    size_t pixels = image->form.size[0] * image->form.size[1] * image->form.size[2];
    struct memory_description memory = { .type_of_structure = MEMORY_DESCRIPTION };
    status = intel.allocate(context, &memory, pixels * image->form.pixel, ALIGNMENT, device, &image->pixels);
    if (status) {
        free(image);
        intel.destroy(*created);
        return status;
    }
    pthread_mutex_lock(&lists);
    image->next = images;
    images = image;
    pthread_mutex_unlock(&lists);
    return 0;
}

static struct image *find(handle sought)
{
    pthread_mutex_lock(&lists);
    struct image *image = images;
    while (image && image->handle != sought)
        image = image->next;
    pthread_mutex_unlock(&lists);
    if (!image)
        die("%p is not an image", sought);
    return image;
}

static result destroy(handle destroyed)
{
    struct image *image = find(destroyed);
    pthread_mutex_lock(&lists);
    struct image **at = &images;
    while (*at != image)
        at = &(*at)->next;
    *at = image->next;
    pthread_mutex_unlock(&lists);
    result status = intel.free(image->context, image->pixels);
    free(image);
    return status ? status : intel.destroy(destroyed);
}

static result create_sampler(handle context, handle device, const struct sampler_description *description,
                             handle *created)
{
    result status = intel.create_sampler(context, device, description, created);
    if (status)
        return status;
    struct sampler *sampler = allocate(sizeof *sampler);
    sampler->handle = *created;
    sampler->form =
        (struct sampler_form){ description->addressing, description->filter, description->is_normalized };
    pthread_mutex_lock(&lists);
    sampler->next = samplers;
    samplers = sampler;
    pthread_mutex_unlock(&lists);
    return 0;
}

static result destroy_sampler(handle destroyed)
{
    pthread_mutex_lock(&lists);
    struct sampler **at = &samplers;
    while (*at && (*at)->handle != destroyed)
        at = &(*at)->next;
    struct sampler *sampler = *at;
    if (sampler)
        *at = sampler->next;
    pthread_mutex_unlock(&lists);
    free(sampler);
    return intel.destroy_sampler(destroyed);
}

struct image_form image_of(void *sought, void **pixels)
{
    struct image *image = find(sought);
    *pixels = image->pixels;
    return image->form;
}

struct sampler_form sampler_of(void *sought)
{
    pthread_mutex_lock(&lists);
    struct sampler *sampler = samplers;
    while (sampler && sampler->handle != sought)
        sampler = sampler->next;
    pthread_mutex_unlock(&lists);
    if (!sampler)
        die("%p is not a sampler", sought);
    return sampler->form;
}

/* Rows of bytes in memory. */
struct rows {
    char *start;
    size_t row, plane; /* distances in bytes */
};

static struct rows rows_of(const struct image *image, const struct region *region)
{
    const size_t *size = image->form.size;
    size_t at[3];
    for (int i = 0; i < 3; i++) {
        at[i] = region->origin[i];
        if (!region->size[i] || at[i] + region->size[i] > size[i])
            die("%u pixels at %zu are outside of an image with %zu", region->size[i], at[i], size[i]);
    }
    if (image->form.type == IMAGE_1D_ARRAY && region->size[1] > 1)
        die("the specification does not state how several layers of rows are copied at once");
    size_t row = size[0] * image->form.pixel, plane = row * size[1];
    char *start = (char *)image->pixels + at[2] * plane + at[1] * row + at[0] * image->form.pixel;
    return (struct rows){ start, row, plane };
}

/* Returns rows that follow each other without padding. */
static struct rows packed(const void *memory, const struct image *image, const struct region *region)
{
    size_t row = region->size[0] * image->form.pixel;
    return (struct rows){ (char *)memory, row, row * region->size[1] };
}

static result copy_rows(handle list, struct rows to, struct rows from, size_t bytes, const uint32_t size[3],
                        handle signal, uint32_t waits, handle *wait)
{
    size_t rows = size[1], planes = size[2];
    if (to.row == bytes && from.row == bytes) {
        bytes *= rows;
        rows = 1;
        if (to.plane == bytes && from.plane == bytes) {
            bytes *= planes;
            planes = 1;
        }
    }
    if (rows * planes == 1)
        return intel.copy(list, to.start, from.start, bytes, signal, waits, wait);
    result status = intel.barrier(list, NULL, waits, wait);
    for (size_t z = 0; z < planes; z++)
        for (size_t y = 0; y < rows && !status; y++)
            status = intel.copy(list, to.start + z * to.plane + y * to.row,
                                from.start + z * from.plane + y * from.row, bytes, NULL, 0, NULL);
    return status ? status : intel.barrier(list, signal, 0, NULL);
}

static result copy_pixels(handle list, handle to, handle from, const struct region *target,
                          const struct region *source, handle signal, uint32_t waits, handle *wait)
{
    const struct image *one = find(to), *two = find(from);
    if (memcmp(target->size, source->size, sizeof target->size) || one->form.pixel != two->form.pixel)
        die("a copy between images has two sizes");
    return copy_rows(list, rows_of(one, target), rows_of(two, source), target->size[0] * one->form.pixel,
                     target->size, signal, waits, wait);
}

static result to_memory(handle list, void *to, handle from, const struct region *region, handle signal,
                        uint32_t waits, handle *wait)
{
    const struct image *image = find(from);
    return copy_rows(list, packed(to, image, region), rows_of(image, region), region->size[0] * image->form.pixel,
                     region->size, signal, waits, wait);
}

static result from_memory(handle list, handle to, const void *from, const struct region *region, handle signal,
                          uint32_t waits, handle *wait)
{
    const struct image *image = find(to);
    return copy_rows(list, rows_of(image, region), packed(from, image, region),
                     region->size[0] * image->form.pixel, region->size, signal, waits, wait);
}

#define REPLACE(place, function)                    \
    if (table[place] != (void *)function) {         \
        *(void **)&intel.function = table[place];   \
        table[place] = (void *)function;            \
    }

void images_images(void **table)
{
    REPLACE(1, create) REPLACE(2, destroy)
}

void images_samplers(void **table)
{
    REPLACE(0, create_sampler) REPLACE(1, destroy_sampler)
}

void images_memory(void **table)
{
    *(void **)&intel.allocate = table[1];
    *(void **)&intel.free = table[3];
}

void images_lists(void **table)
{
    *(void **)&intel.barrier = table[6];
    *(void **)&intel.copy = table[8];
    REPLACE(13, copy_pixels) REPLACE(14, to_memory) REPLACE(15, from_memory)
}

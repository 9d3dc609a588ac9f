/* What the kernels of the suites do, for a machine whose GPU is imitated: there, the driver and its
 * compiler are the real ones and a launch calls the C function `drmshim_kernel_<name>`, with the
 * arguments and sizes as the driver handed them over. `scripts/test-level-zero` builds it. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

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

typedef const struct drmshim_call Call;

static uint64_t global_size(Call *call, int dimension)
{
    return (uint64_t)call->groups[dimension] * call->local[dimension];
}

/* A value argument. */
#define VALUE(type, call, index) \
    ({ type value_ = 0; memcpy(&value_, (call)->arg[index].value, sizeof value_); value_; })

/* For each global id of the first dimension. */
#define EACH(call, i) \
    for (uint64_t i = (call)->offset[0]; i < (call)->offset[0] + global_size(call, 0); i++)

#define BUFFER(type, call, index) ((type *)(call)->arg[index].ptr)

/* Whether element `i` is inside a buffer argument: nothing else is touched. */
static bool fits(Call *call, int index, uint64_t i, uint64_t size)
{
    return call->arg[index].ptr && (i + 1) * size <= call->arg[index].left;
}

void drmshim_kernel_saxpy(Call *call)
{
    float a = VALUE(float, call, 0);
    float *x = BUFFER(float, call, 1), *y = BUFFER(float, call, 2);
    EACH(call, i)
        if (fits(call, 1, i, sizeof *x) && fits(call, 2, i, sizeof *y))
            y[i] += a * x[i];
}

/* What a work-item keeps in local memory, it alone reads. */
void drmshim_kernel_every_kind(Call *call)
{
    int32_t count = VALUE(int32_t, call, 0);
    float bias[4], *table = BUFFER(float, call, 2), *output = BUFFER(float, call, 5);
    uint8_t *input = BUFFER(uint8_t, call, 4);
    memcpy(bias, call->arg[1].value, sizeof bias);
    EACH(call, i)
        if (fits(call, 2, 0, sizeof *table) && fits(call, 4, i, 1) && fits(call, 5, i, sizeof *output))
            output[i] = table[0] + bias[1] + input[i] + count;
}

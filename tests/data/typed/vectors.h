// Kernels for a scalar type and its vectors, which are made by a macro.
#pragma once

#define PASS(type, lanes)                                                                                      \
    kernel void pass_##type##lanes(type##lanes value, global const type##lanes *in,                            \
                                   constant type##lanes *table, local type##lanes *scratch,                    \
                                   global type##lanes *out)                                                    \
    {                                                                                                          \
        size_t i = get_global_id(0), l = get_local_id(0);                                                      \
        scratch[l] = in[i] + table[0];                                                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                          \
        out[i] = scratch[get_local_size(0) - 1 - l] + value;                                                   \
    }

#define PASS_ALL(type) \
    PASS(type, )       \
    PASS(type, 2)      \
    PASS(type, 3)      \
    PASS(type, 4)      \
    PASS(type, 8)      \
    PASS(type, 16)

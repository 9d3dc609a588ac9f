// Kernels that ask for their ids and sizes in every way, for the tests of launches that are fused
// though their nd-ranges differ.

kernel void row_major(global const uint *src, global uint *dst) {
    size_t width = get_global_size(0), height = get_global_size(1);
    size_t i = (get_global_id(2) * height + get_global_id(1)) * width + get_global_id(0);
    dst[i] = src[i] * 3 + 1;
}

// All that a work-item can ask of its place in the nd-range, but for its work-group.
kernel void places(global uint *dst, uint which) {
    size_t at = get_global_linear_id();
    size_t hash = at * 31 + get_global_id(0) * 7 + get_global_id(1) * 11 + get_global_id(2) * 13;
    hash = hash * 31 + get_global_size(0) * 3 + get_global_size(1) * 5 + get_global_size(2);
    hash = hash * 31 + get_global_offset(0) + get_global_offset(1) * 7 + get_work_dim();
    // A dimension that is only known when it runs.
    hash = hash * 31 + get_global_id(which) * 17 + get_global_size(which);
    dst[at] = (uint)hash;
}

size_t __attribute__((noinline)) column(void) { return get_global_id(0); }
size_t __attribute__((noinline)) line(size_t width) { return get_global_id(1) * width; }

// Through functions that it calls, in a width that is a constant.
kernel void sheet(global const uint *src, global uint *dst) {
    dst[line(8) + column()] = src[line(8) + column()] ^ 21;
}

kernel void linear(global const uint *src, global uint *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i] + 7;
}

kernel void groups(global const uint *src, global uint *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i] + 100 * (uint)get_num_groups(0) + (uint)get_local_size(0)
        + 1000 * (uint)get_enqueued_local_size(1);
}

kernel void mine(global uint *dst) {
    dst[get_global_id(0)] += get_local_id(0);
}

// Within its work-group.
kernel void swapped(global const uint *src, global uint *dst) {
    local uint scratch[16];
    size_t i = get_global_id(0), l = get_local_id(0);
    scratch[l] = src[i] + get_group_id(0) + 100 * get_num_groups(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    dst[i] = scratch[get_local_size(0) - 1 - l];
}

// Vectors as arguments, of four components and of three.
kernel void tinted(global float4 *x, float4 by, int3 from) {
    x[get_global_id(0)] = x[get_global_id(0)] * by + convert_float(from.x + from.z);
}

int __spirv_SpecConstant(int, int);

// A constant that a program is built with: how many elements it is that a work-item has.
kernel void tuned(global const uint *src, global uint *dst) {
    uint count = __spirv_SpecConstant(7, 2);
    size_t i = get_global_id(0) * count;
    dst[i] = src[i] * 10 + count;
}

kernel void switched(global uint *x) {
    size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
    switch (get_global_id(1)) {
    case 0: x[i] += 1; break;
    case 2: x[i] *= 5; break;
    case 3: x[i] -= x[i] >> 3; break;
    case 5: x[i] ^= 77; break;
    default: x[i] = 0;
    }
}

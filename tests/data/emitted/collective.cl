// Functions that the work-items of a work-group call together.

kernel void reduced(global uint *out, global const uint *in) {
    size_t i = get_global_id(0);
    uint n = in[i];
    uint sum = work_group_reduce_add(n) * 31 + work_group_reduce_max(n);
    sum = sum * 31 + (uint)work_group_reduce_min((int)n);
    sum = sum * 31 + work_group_scan_inclusive_add(n);
    sum = sum * 31 + (uint)work_group_scan_exclusive_max((int)n);
    sum = sum * 31 + as_uint(work_group_reduce_max((float)(n & 0xff)));
    sum = sum * 31 + work_group_broadcast(n, 5);
    sum = sum * 31 + (work_group_any(n > 77) ? 1 : 0) + (work_group_all(n > 77) ? 2 : 0);
    out[i] = sum + (uint)work_group_reduce_add((ulong)n);
}

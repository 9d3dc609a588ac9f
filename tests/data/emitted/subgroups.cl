// Functions that the work-items of a subgroup call together. The results do not depend on the subgroups' size.

#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable

kernel void together(global uint *out, global const uint *in) {
    size_t i = get_global_id(0);
    uint n = in[i];
    uint same = sub_group_broadcast(7u, 0) + sub_group_reduce_max(5u) + sub_group_reduce_min(-3);
    bool fits = get_sub_group_local_id() < get_sub_group_size() && get_sub_group_id() < get_num_sub_groups();
    fits = fits && get_sub_group_size() <= get_max_sub_group_size();
    fits = fits && sub_group_scan_inclusive_add(1u) == get_sub_group_local_id() + 1;
    sub_group_barrier(CLK_GLOBAL_MEM_FENCE);
    out[i] = same + (sub_group_all(fits) ? 100 : 0) + (sub_group_any(n > 0 && fits) ? 1000 : 0);
}
#endif

//@ clang -cl-std=CL2.0 -O2
//@ check group_sum(in[4096], out[64]) over 1024 in 64
//@ check group_sum(in[4096], out[60]) over 1024 in 64
//@ check group_sum_with_return(in[4096], out[64], 1000) over 1024 in 64

// Sums by a function of the work-group, and the same after a return of some work-items.
kernel void group_sum(global const float *in, global float *out) {
    float sum = work_group_reduce_add(in[get_global_id(0)]);
    if (get_local_id(0) == 0)
        out[get_group_id(0)] = sum;
}

kernel void group_sum_with_return(global const float *in, global float *out, int n) {
    int i = get_global_id(0);
    if (i >= n)
        return;
    float sum = work_group_reduce_add(in[i]);
    if (get_local_id(0) == 0)
        out[get_group_id(0)] = sum;
}

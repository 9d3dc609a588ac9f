//@ fuse over 4096
//@   update(x[16384], r[16384], p[16384], q[16384], 0.5)
//@   direction(r[16384], p[16384], 0.25)
//@ lacks not fused
//@ fuse over 4096 in 256 not-validated
//@   direction(r[16384], p[16384], 0.25)
//@   products(r[16384], p[16384], sums[64], local:1024)
//@ partition over 4096 in 256
//@   update(x[16384], r[16384], p[16384], q[16384], 0.5)
//@   direction(r[16384], p[16384], 0.25)
//@   products(r[16384], p[16384], sums[64], local:1024)

// Vector operations of a step of the conjugate gradient method.
kernel void update(global float *x, global float *r, global const float *p, global const float *q, float alpha) {
    size_t i = get_global_id(0);
    x[i] += alpha * p[i];
    r[i] -= alpha * q[i];
}

kernel void direction(global const float *r, global float *p, float beta) {
    size_t i = get_global_id(0);
    p[i] = r[i] + beta * p[i];
}

kernel void products(global const float *a, global const float *b, global float *sums, local float *scratch) {
    int i = get_global_id(0), item = get_local_id(0);
    scratch[item] = a[i] * b[i];
    for (int d = get_local_size(0) / 2; d > 0; d /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < d)
            scratch[item] += scratch[item + d];
    }
    if (item == 0)
        sums[get_group_id(0)] = scratch[0];
}

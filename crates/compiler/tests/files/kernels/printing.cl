//@ check traced(x[4096]) over 1024
//@ check addressed(x[4096], out[8192]) over 1024

// Kernels that no check covers: one prints, one makes an integer of an address.
kernel void traced(global const float *x) {
    if (x[get_global_id(0)] < 0.0f)
        printf("%d is negative\n", (int)get_global_id(0));
}

kernel void addressed(global float *x, global ulong *out) {
    out[get_global_id(0)] = (ulong)(x + get_global_id(0));
}
